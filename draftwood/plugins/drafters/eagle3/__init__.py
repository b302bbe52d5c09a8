"""EAGLE-3 (arXiv 2503.01840): a layer that drafts token after token from the target's features."""
