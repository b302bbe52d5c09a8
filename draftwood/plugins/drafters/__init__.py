"""Drafters: each proposes a distribution over the next few tokens."""
