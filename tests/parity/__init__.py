"""Speculative text equals plain text: every tree, controller, architecture and attention."""
