"""Compaction moves the accepted rows of every layer, and changes no other row."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood.core.hf.cache import LayerShape, TreeCache
from draftwood.core.kernels.launches import LAUNCHES
from draftwood.core.kernels.triton.compaction import ROWS, compact

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def moved(stack: torch.Tensor, length: int, path: list[int]) -> torch.Tensor:
    """The expected rows, by a gather into another buffer in float64."""
    wide = stack.double()
    result = wide.clone()
    for place, row in enumerate(path):
        result[:, :, :, length + place] = wide[:, :, :, length + row]
    return result


paths = st.sets(st.integers(1, 60), max_size=40).map(lambda rows: [0, *sorted(rows)])


@settings(max_examples=12, derandomize=True)
@given(
    path=paths,
    length=st.integers(0, 5),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
    dim=st.sampled_from([1, 6, 16, 80]),
)
def test_compaction_equals_a_gather(
    path: list[int], length: int, dtype: torch.dtype, dim: int
) -> None:
    generator = torch.Generator().manual_seed(len(path))
    stack = torch.randn(2, 1, 2, 70, dim, generator=generator).to(DEVICE, dtype)
    expected = moved(stack, length, path)
    compact([stack], length, path)
    assert torch.equal(stack.double(), expected)


def test_rows_that_overlap_are_read_before_they_are_written() -> None:
    """Every row moves by one, so each destination is another row's source, in several blocks."""
    path = [0, *range(2, 3 * ROWS)]
    stack = torch.arange(60.0, device=DEVICE).reshape(1, 1, 1, 60, 1).clone()
    compact([stack], 2, path)
    assert stack.flatten()[2 : 2 + len(path)].tolist() == [2.0 + row for row in path]


def test_one_launch_moves_all_layers_of_one_width() -> None:
    stacks = [torch.randn(8, 1, 2, 30, 8, device=DEVICE) for _ in range(2)]
    expected = [moved(stack, 4, [0, 2, 5]) for stack in stacks]
    before = LAUNCHES.counts().get("compact", 0)
    compact(stacks, 4, [0, 2, 5])
    assert LAUNCHES.counts()["compact"] - before == 1
    for stack, result in zip(stacks, expected, strict=True):
        assert torch.equal(stack.double(), result)


def test_a_path_already_in_place_launches_nothing() -> None:
    stack = torch.randn(2, 1, 2, 30, 8, device=DEVICE)
    kept, before = stack.clone(), LAUNCHES.counts().get("compact", 0)
    compact([stack], 4, [0, 1, 2])
    assert torch.equal(stack, kept)
    assert LAUNCHES.counts().get("compact", 0) == before


@pytest.mark.parametrize("path", [[0], [0, 1, 3], [0, 3, 4, 9]])
def test_a_cache_with_kernels_commits_as_without(path: list[int]) -> None:
    """With a layer that caches nothing."""
    from draftwood.core.kernels.triton.kernels import TritonKernels

    where = {"dtype": torch.float32, "device": DEVICE}
    layout = [
        LayerShape(2, 8, 4, **where),
        LayerShape(0, 0, 0, **where),
        LayerShape(2, 8, 4, **where, window=3),
    ]
    caches = []
    for kernels in (None, TritonKernels()):
        cache = TreeCache(layout)
        cache.reserve(20)
        generator = torch.Generator().manual_seed(0)
        for stack in cache.stacks:
            stack.copy_(torch.randn(stack.shape, generator=generator).to(DEVICE))
        cache.advance(5)
        cache.commit(path, kernels)
        caches.append(cache)
    by_torch, by_kernels = caches
    assert by_torch.length == by_kernels.length == 5 + len(path)
    for left, right in zip(by_torch.stacks, by_kernels.stacks, strict=True):
        assert torch.equal(left[:, :, :, : by_torch.length], right[:, :, :, : by_torch.length])
