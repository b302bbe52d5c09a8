"""Prompt lookup with counts: what followed the text's last tokens before."""
