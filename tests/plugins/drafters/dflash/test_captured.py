"""Captured work of a DFlash drafter, replayed, equals its uncaptured forward passes.

There are no graphs on a CPU: `replaying` records operations instead.
"""

import gc
import json
import shutil
import weakref
from functools import cache
from pathlib import Path

import pytest
import torch
from replaying import CapturableKernels, recorded

from draftwood.core.build import build_component
from draftwood.core.errors import UnsupportedTarget
from draftwood.core.generation import Pipeline
from draftwood.core.hf import load_target
from draftwood.core.hf.graphs import Graphs
from draftwood.core.kernels import buffer_pool
from draftwood.core.kernels.capture import Capturing
from draftwood.core.options import Sampling
from draftwood.core.registry.plugin import Kind
from draftwood.plugins.drafters.dflash.captured import Block, Commit
from draftwood.plugins.drafters.dflash.drafter import DFlash
from draftwood.plugins.drafters.options import DFlashOptions, NgramOptions, UnionOptions
from draftwood.plugins.drafters.union.drafter import Union

ZLAB = Path(__file__).parents[3] / "fixtures" / "zlab"
FEATURES, SIZE, LAYERS = 192, 8, 2  # of the fixtures: tapped width, slots of a block, layers
LAYERED = {
    "full": {},
    "causal": {"is_causal": True},
    "one sliding layer": {
        "layer_types": ["full_attention", "sliding_attention"],
        "sliding_window": 9,
    },
    "causal sliding layers": {
        "layer_types": ["sliding_attention", "sliding_attention"],
        "sliding_window": 5,
        "is_causal": True,
    },
}
NARROW = {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": SIZE - 1,
    "is_causal": False,
}


@cache
def target():
    loaded = load_target(ZLAB / "target", device="cpu", dtype="float64")
    loaded.graphs = Graphs(loaded.scorer, Capturing(recorded))
    return loaded


@pytest.fixture
def drafter(tmp_path):
    """Builds a bound float64 drafter, captured unless `capture` is None."""

    def build(layout="dflash", capture=recorded, kernels=None, must=True, **change):
        folder = tmp_path / "-".join((layout, *map(str, change.values())))[:60].replace("/", " ")
        if not folder.exists():
            shutil.copytree(ZLAB / layout, folder)
            data = json.loads((folder / "config.json").read_text())
            for key, value in change.items():
                data["dflash_config"].pop(key, None)
                data[key] = value
            (folder / "config.json").write_text(json.dumps(data))
        built = DFlash(DFlashOptions(checkpoint=folder))
        built = built.bind(target())
        if capture is not None:
            built = built.capture(kernels or CapturableKernels(), Capturing(capture, must))
        return built

    return build


def opened(*drafters):
    return [each.open(target(), Sampling(1.0)) for each in drafters]


def features(rows, seed):
    made = torch.randn(rows, FEATURES, generator=torch.Generator().manual_seed(seed))
    return made.double()


def commit(sessions, rows, seed):
    for session in sessions:
        session.commit((1,) * rows, features(rows, seed))


def blocks(sessions, anchor):
    with torch.inference_mode():
        return [session.slots(anchor) for session in sessions]


def assert_same(sessions, anchor):
    actual, expected = blocks(sessions, anchor)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("layout", ["dflash", "dflash2"])
@pytest.mark.parametrize("layers", list(LAYERED))
def test_replayed_blocks_equal_uncaptured_blocks(drafter, layout, layers):
    change = LAYERED[layers]
    sessions = opened(drafter(layout, **change), drafter(layout, None, **change))
    for seed, rows in enumerate((13, 1, 3, SIZE, SIZE + 1, 2, 1)):
        commit(sessions, rows, seed)
        assert_same(sessions, anchor=5 * seed)
    assert set(sessions[0].cache.memory.forwards) == {Block, Commit}


def test_contexts_that_outgrow_their_memory_are_captured_again(drafter, monkeypatch):
    monkeypatch.setattr(buffer_pool, "ROWS", 16)
    monkeypatch.setattr("draftwood.plugins.drafters.common.cache.FIRST", 16)
    sessions = opened(drafter(), drafter(capture=None))
    before = sessions[0].cache.memory.capacity
    for seed in range(9):
        commit(sessions, 4, seed)
        assert_same(sessions, anchor=seed)
    assert before == 16 < sessions[0].cache.memory.capacity


def test_the_next_request_reuses_captured_work(drafter):
    recordings = []
    one = drafter(capture=lambda *call: recordings.append(1) or recorded(*call))
    plain = drafter(capture=None)
    for request in range(3):
        sessions = opened(one, plain)
        commit(sessions, 9 + request, request)
        commit(sessions, 2, request)
        assert_same(sessions, anchor=request)
        del sessions
        gc.collect()
    assert len(recordings) == 2  # a block and a commit


def test_concurrent_requests_and_forks_have_separate_memory(drafter):
    one, plain = drafter(), drafter(capture=None)
    pairs = [opened(one, plain), opened(one, plain)]
    for seed, pair in enumerate(pairs):
        commit(pair, 10 + seed, seed)
        assert_same(pair, anchor=seed)
    pairs.append([session.fork() for session in pairs[0]])
    for seed, pair in enumerate(pairs, 5):
        commit(pair, 3, seed)
    for seed, pair in enumerate(pairs):
        assert_same(pair, anchor=seed)
    assert len({pair[0].cache.stacks[0].data_ptr() for pair in pairs}) == 3


def test_a_replay_does_not_overwrite_earlier_results(drafter):
    sessions = opened(drafter())
    commit(sessions, 9, 0)
    (first,) = blocks(sessions, 1)
    kept = first.clone()
    (second,) = blocks(sessions, 2)
    assert torch.equal(first, kept)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("kind", [Block, Commit])
def test_a_stale_length_changes_replayed_blocks(drafter, monkeypatch, kind):
    """Negative control: with the length of the recording, states differ."""
    sessions = opened(drafter(), drafter(capture=None))
    commit(sessions, 3, 0)
    assert_same(sessions, anchor=1)
    fill, at = kind.fill, sessions[0].cache.length
    monkeypatch.setattr(kind, "fill", lambda self, length, given: fill(self, at, given))
    commit(sessions, 3, 1)
    commit(sessions, 3, 2)
    actual, expected = blocks(sessions, 2)
    assert (actual - expected).abs().max() > 1e-3


def test_replays_count_their_launches(drafter):
    kernels = CapturableKernels()
    sessions = opened(drafter(kernels=kernels))
    commit(sessions, 3, 0)
    blocks(sessions, 1)
    before = kernels.attended
    blocks(sessions, 2)
    assert kernels.attended - before == LAYERS


def test_captured_rotary_tables_outlive_larger_ones(drafter):
    one = drafter(capture=lambda launch, replayed: launch)
    sessions = opened(one)
    commit(sessions, 3, 0)
    blocks(sessions, 1)
    rotary, model = one.model.rotary, one.model
    table = weakref.ref(rotary.table(model.device, model.dtype))
    rotary.reserve(rotary.size + 1)
    assert rotary.table(model.device, model.dtype) is not table()
    assert table() is not None
    del sessions, one
    gc.collect()


@pytest.mark.parametrize("kind", [Block, Commit])
def test_captured_rotary_tables_cover_the_memorys_capacity(drafter, kind):
    """A graph reads the table that it was captured with, however long its context becomes."""
    one = drafter()
    one.model.rotary.size = SIZE  # fewer positions than a new cache has room for
    one.model.rotary._tables.clear()
    sessions = [*opened(one), *opened(drafter(capture=None))]
    commit(sessions, 3, 0)
    assert_same(sessions, anchor=1)
    memory = sessions[0].cache.memory
    assert memory.forwards[kind].table.shape[1] >= memory.capacity > SIZE
    recordings = dict(memory.forwards)
    for seed in range(1, 6):
        commit(sessions, SIZE, seed)
        assert_same(sessions, anchor=seed)
    assert sessions[0].cache.memory.forwards == recordings


def refused(launch, replayed):
    raise RuntimeError("operation not permitted when stream is capturing")


def test_work_that_cannot_be_captured_runs_uncaptured_with_one_warning(drafter, caplog):
    sessions = opened(drafter(capture=refused, must=False), drafter(capture=None))
    for seed in range(3):
        commit(sessions, 3, seed)
        assert_same(sessions, anchor=seed)
    warnings = [line for line in caplog.messages if "cannot be captured: operation not" in line]
    assert len(warnings) == 1


def test_failure_to_capture_is_an_error_where_capturing_is_required(drafter):
    sessions = opened(drafter(capture=refused))
    with pytest.raises(UnsupportedTarget, match=r"cannot be captured: .*graphs: off"):
        commit(sessions, 3, 0)


def test_windows_narrower_than_a_block_are_not_captured(drafter):
    """Kernels apply windows backwards only; one as wide as the block hides nothing ahead."""
    sessions = opened(drafter(must=False, **NARROW), drafter(capture=None, **NARROW))
    commit(sessions, 12, 0)
    assert_same(sessions, anchor=1)
    assert not sessions[0].cache.memory.forwards
    with pytest.raises(UnsupportedTarget, match=f"window of {SIZE - 1} hides"):
        drafter(**NARROW)
    wide = NARROW | {"sliding_window": SIZE}
    sessions = opened(drafter(**wide), drafter(capture=None, **wide))
    commit(sessions, 12, 0)
    assert_same(sessions, anchor=1)
    assert sessions[0].cache.memory.forwards


def test_a_union_captures_each_source_separately():
    union = Union(
        UnionOptions.of(ngram=NgramOptions(), dflash=DFlashOptions(checkpoint=ZLAB / "dflash"))
    )
    capturing = Capturing(refused, must=False)
    union = union.bind(target()).capture(CapturableKernels(), capturing)
    session = union.open(target(), Sampling(1.0))
    session.commit((1, 2, 3), features(3, 0))
    for source in session.sources:
        source.settle()
    _, dflash = union.sources
    assert "operation not permitted" in dflash.drafter._captured.capturing.off
    assert capturing.off is None


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_pipelines_with_replays_give_the_tokens_of_plain_decoding(drafter, temperature):
    own = DFlash(DFlashOptions(checkpoint=ZLAB / "dflash"))
    pipeline = Pipeline(
        target(),
        own,
        build_component(Kind.TREE, "best_first", max_nodes=6),
        build_component(Kind.CONTROLLER, "fixed", nodes=6),
        kernels=CapturableKernels(),
    )
    options = {"max_new_tokens": 20, "temperature": temperature, "seed": 3, "eos_token_id": ()}
    prompt = json.loads((ZLAB / "dflash" / "expected.json").read_text())[0]["prompt"]
    actual = pipeline.generate(prompt, **options)
    assert actual.tokens == Pipeline(target()).generate(prompt, **options).tokens
    assert actual.stats.accepted > 0
    (memory,) = pipeline.engine.drafter._captured.pool._idle
    assert set(memory.forwards) == {Block, Commit}
    stats = actual.stats
    assert stats.kernels["attend"] >= stats.rounds * (LAYERS + target().layers)
