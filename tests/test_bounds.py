"""`bounds.matmul_bound` holds for reordered sums and is exceeded by wrong ones."""

import pytest
import torch
from bounds import matmul_bound


@pytest.mark.parametrize("length", [1, 16, 300, 4096])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_reordered_sums_differ_by_less_than_the_bound(length: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(length)
    a = torch.randn(20, length, generator=generator, dtype=dtype)
    b = torch.randn(length, 20, generator=generator, dtype=dtype)
    order = torch.randperm(length, generator=generator)
    difference = (a @ b - a[:, order] @ b[order]).abs().max()
    bound = matmul_bound(dtype, length, a.abs() @ b.abs())
    assert difference <= bound
    assert bound < 1e-2 * (a @ b).abs().max()  # negative control: it does not cover wrong sums
