"""Judging a tree on the device: distributions, draws and the walk, in a constant number of
launches."""
