"""Attention of a draft tree over its context, in two kernels."""
