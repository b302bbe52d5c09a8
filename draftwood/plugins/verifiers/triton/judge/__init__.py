"""Judging a tree on the device: laws, draws and the walk, in a constant number of launches."""
