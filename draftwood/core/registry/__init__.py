"""Plugins: what they register, how they are found, loaded and built."""
