"""A commit moves the accepted rows of every layer, and nothing else."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood.core.hf.cache import LayerShape, TreeCache
from draftwood.core.kernels.launches import LAUNCHES
from draftwood.core.kernels.triton.compaction import ROWS, compact

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def moved(stack: torch.Tensor, length: int, path: list[int]) -> torch.Tensor:
    """By a gather into another buffer, in float64."""
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
def test_rows_end_where_a_gather_would_put_them(
    path: list[int], length: int, dtype: torch.dtype, dim: int
) -> None:
    generator = torch.Generator().manual_seed(len(path))
    stack = torch.randn(2, 1, 2, 70, dim, generator=generator).to(DEVICE, dtype)
    wanted = moved(stack, length, path)
    compact([stack], length, path)
    assert torch.equal(stack.double(), wanted)


def test_rows_that_overlap_are_read_before_they_are_written() -> None:
    """Every row moves up by one: each place is another's source, across the blocks of a program."""
    path = [0, *range(2, 3 * ROWS)]
    stack = torch.arange(60.0, device=DEVICE).reshape(1, 1, 1, 60, 1).clone()
    compact([stack], 2, path)
    assert stack.flatten()[2 : 2 + len(path)].tolist() == [2.0 + row for row in path]


def test_one_launch_moves_all_layers_of_one_width() -> None:
    stacks = [torch.randn(8, 1, 2, 30, 8, device=DEVICE) for _ in range(2)]
    wanted = [moved(stack, 4, [0, 2, 5]) for stack in stacks]
    before = LAUNCHES.counts().get("compact", 0)
    compact(stacks, 4, [0, 2, 5])
    assert LAUNCHES.counts()["compact"] - before == 1
    for stack, right in zip(stacks, wanted, strict=True):
        assert torch.equal(stack.double(), right)


def test_a_path_that_lies_in_place_launches_nothing() -> None:
    stack = torch.randn(2, 1, 2, 30, 8, device=DEVICE)
    kept, before = stack.clone(), LAUNCHES.counts().get("compact", 0)
    compact([stack], 4, [0, 1, 2])
    assert torch.equal(stack, kept)
    assert LAUNCHES.counts().get("compact", 0) == before


@pytest.mark.parametrize("path", [[0], [0, 1, 3], [0, 3, 4, 9]])
def test_a_cache_commits_by_kernels_as_it_does_by_itself(path: list[int]) -> None:
    """Layers of two widths and one that caches nothing."""
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
    alone, by_kernels = caches
    assert alone.length == by_kernels.length == 5 + len(path)
    for left, right in zip(alone.stacks, by_kernels.stacks, strict=True):
        assert torch.equal(left[:, :, :, : alone.length], right[:, :, :, : alone.length])
