"""Attention and compaction of trees: what the target's forward and commit run on."""
