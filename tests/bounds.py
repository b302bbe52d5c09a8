"""Bounds for comparing floating-point results that differ in the order of their operations."""

import torch

CONFIDENCE = 8.0
"""lambda of the bound below: one sum exceeds it with probability at most 2 exp(-lambda^2 / 2)."""


def matmul_bound(dtype: torch.dtype, length: int, magnitude: torch.Tensor | float) -> float:
    """The most that two computations of the same matrix product may differ by.

    The rounding error of a sum of n products is at most n u sum |a_i b_i| (u is half of
    `finfo.eps`), and at most lambda sqrt(n) u sum |a_i b_i| with the probability above (Higham and
    Mary, A New Approach to Probabilistic Rounding Error Analysis, 2019). Both computations have it.

    Args:
        dtype: Of the sums.
        length: n, the number of products that are added up; for products of products their total.
        magnitude: sum |a_i b_i|, or a tensor of such sums whose largest counts.
    """
    largest = float(torch.as_tensor(magnitude).max())
    return min(length, CONFIDENCE * length**0.5) * torch.finfo(dtype).eps * largest
