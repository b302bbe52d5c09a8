"""Drafters: each proposes a law over the next few tokens."""
