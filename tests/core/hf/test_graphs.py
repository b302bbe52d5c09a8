"""Forwards of fixed size: padded, masked, recorded once and replayed, they score what others do.

There is no graph on a CPU; see `replaying` for what stands for one here.
"""

import gc
import random
import time
import weakref

import pytest
import torch
from replaying import CapturableKernels, recorded

from draftwood.core.build import build_component
from draftwood.core.errors import UnsupportedTarget
from draftwood.core.generation import Pipeline
from draftwood.core.hf import HFTarget, cache, graphs
from draftwood.core.hf.graphs import FixedForward, Graphs, choose_graphs, padded
from draftwood.core.kernels import buffer_pool
from draftwood.core.kernels.capture import Capturing
from draftwood.core.options import Sampling
from draftwood.core.proposals import FactorizedProposal, Vocabulary
from draftwood.core.registry.plugin import Kind
from draftwood.testing import OracleDrafter

GREEDY = Sampling(temperature=0.0)


def recording_target(model, capture=recorded, **options):
    target = HFTarget(model)
    target.graphs = Graphs(target.scorer, Capturing(capture, **options))
    return target


def prompt_of(length, rng):
    return [rng.randrange(61) for _ in range(length)]


def same(found, expected):
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.features, expected.features, rtol=1e-9, atol=1e-9)


def rounds(target, own, plain, nodes, rng, random_tree):
    """Score and commit the same random trees in both sessions."""
    for count in nodes:
        tree = random_tree(count, rng)
        found, expected = (target.forward([(session, tree)])[0] for session in (own, plain))
        same(found, expected)
        path = tree.path(rng.randrange(count + 1))
        own.commit(path)
        plain.commit(path)


def test_replays_score_what_forwards_score(architecture, fresh_model, random_tree):
    target, rng = recording_target(fresh_model(architecture)), random.Random(0)
    own, plain = target.open((1,), CapturableKernels()), target.open((1,))
    prompt = prompt_of(9, rng)
    same(own.prefill(prompt), plain.prefill(prompt))
    rounds(target, own, plain, (3, 4, 1, 0, 7, 2, 40, 0, 3, 8, 33), rng, random_tree)
    (buffers,) = own.cache.held
    assert {size for size, *_ in buffers.forwards} == {1, 5, 9, 49}


def test_a_replay_keeps_what_the_one_before_returned(fresh_model, random_tree):
    target, rng = recording_target(fresh_model("llama")), random.Random(1)
    session = target.open((1,), CapturableKernels())
    session.prefill(prompt_of(9, rng))
    first = target.forward([(session, random_tree(4, rng))])[0]
    logits, features = first.logits.clone(), first.features.clone()
    target.forward([(session, random_tree(4, rng))])
    assert torch.equal(first.logits, logits)
    assert torch.equal(first.features, features)


def test_the_next_request_takes_over_what_was_recorded(fresh_model, random_tree):
    target, rng = recording_target(fresh_model("gemma3")), random.Random(2)
    recordings = []
    target.graphs.capturing.capture = lambda *call: recordings.append(1) or recorded(*call)
    for length in (9, 17):
        own, plain = target.open((1,), CapturableKernels()), target.open((1,))
        prompt = prompt_of(length, rng)
        own.prefill(prompt)
        plain.prefill(prompt)
        before = len(recordings)
        rounds(target, own, plain, (4, 3, 0), rng, random_tree)
        del own
        gc.collect()
    assert before == len(recordings) > 0


def test_buffers_that_nobody_waits_for_are_freed(fresh_model, random_tree, monkeypatch):
    monkeypatch.setattr(buffer_pool, "IDLE", 0)
    target, rng = recording_target(fresh_model("llama")), random.Random(9)
    session = target.open((1,), CapturableKernels())
    session.prefill([1, 2, 3])
    target.forward([(session, random_tree(4, rng))])
    memory = weakref.ref(session.cache.held[0])
    gc.disable()  # at once, not when a collection comes
    try:
        del session
        assert memory() is None
    finally:
        gc.enable()


def test_two_requests_and_a_fork_go_on_beside_each_other(fresh_model, random_tree):
    target, rng = recording_target(fresh_model("mistral")), random.Random(3)
    pairs = []
    for length in (5, 12):
        pair = target.open((1,), CapturableKernels()), target.open((1,))
        prompt = prompt_of(length, rng)
        for session in pair:
            session.prefill(prompt)
        pairs.append(pair)
    pairs.append(tuple(session.fork() for session in pairs[0]))
    for _ in range(2):
        for own, plain in pairs:
            rounds(target, own, plain, (3, 2), rng, random_tree)
    memory = {own.cache.held[0].stacks[0][0].data_ptr() for own, _ in pairs}
    assert len(memory) == 3


def test_a_context_that_outgrows_its_buffers_is_recorded_again(
    fresh_model, random_tree, monkeypatch
):
    monkeypatch.setattr(cache, "ROWS", 8)
    monkeypatch.setattr(buffer_pool, "ROWS", 8)
    target, rng = recording_target(fresh_model("llama")), random.Random(4)
    own, plain = target.open((1,), CapturableKernels()), target.open((1,))
    prompt = prompt_of(4, rng)
    own.prefill(prompt)
    plain.prefill(prompt)
    before = own.cache.capacity
    rounds(target, own, plain, (4,) * 12, rng, random_tree)
    assert own.cache.capacity > before


def test_a_tree_larger_than_all_sizes_runs_as_it_is(fresh_model, random_tree, monkeypatch):
    monkeypatch.setattr(graphs, "SIZES", (1, 5))
    target, rng = recording_target(fresh_model("llama")), random.Random(5)
    own, plain = target.open((1,), CapturableKernels()), target.open((1,))
    own.prefill([1, 2, 3])
    plain.prefill([1, 2, 3])
    rounds(target, own, plain, (9, 4, 20), rng, random_tree)
    assert {size for size, *_ in own.cache.held[0].forwards} == {5}


def test_what_is_not_written_into_tensors_would_show(fresh_model, random_tree, monkeypatch):
    """The comparison has power: a length that stays as it was recorded gives other scores."""
    fill = FixedForward.fill
    target, rng = recording_target(fresh_model("llama")), random.Random(6)
    session, plain = target.open((1,), CapturableKernels()), target.open((1,))
    for each in (session, plain):
        each.prefill([1, 2, 3])
    rounds(target, session, plain, (4,), rng, random_tree)
    at = session.length - 1
    monkeypatch.setattr(FixedForward, "fill", lambda self, length, tree: fill(self, at, tree))
    tree = random_tree(4, rng)
    found, expected = (target.forward([(each, tree)])[0] for each in (session, plain))
    assert (found.logits - expected.logits).abs().max() > 1e-3


def test_replayed_launches_are_counted(fresh_model, random_tree):
    target, rng, kernels = (
        recording_target(fresh_model("llama")),
        random.Random(7),
        CapturableKernels(),
    )
    session = target.open((), kernels)
    session.prefill([1, 2, 3])
    target.forward([(session, random_tree(3, rng))])
    before = kernels.attended
    target.forward([(session, random_tree(4, rng))])
    assert kernels.attended - before == target.layers


def refused(launch, replayed):
    raise RuntimeError("operation not permitted when stream is capturing")


def test_where_nothing_can_be_captured_forwards_go_on_and_say_so(fresh_model, random_tree, caplog):
    target = recording_target(fresh_model("llama"), refused, must=False)
    own, plain, rng = target.open((1,), CapturableKernels()), target.open((1,)), random.Random(8)
    own.prefill([1, 2, 3])
    plain.prefill([1, 2, 3])
    rounds(target, own, plain, (4, 3), rng, random_tree)
    assert "not permitted" in target.graphs.off
    assert sum("cannot be captured" in line for line in caplog.messages) == 1
    assert target.costs(time.perf_counter, CapturableKernels()).sizes == ()


def test_where_capturing_is_demanded_its_failure_is_an_error(fresh_model):
    target = recording_target(fresh_model("llama"), refused)
    with pytest.raises(UnsupportedTarget, match=r"cannot be captured: .*graphs: off"):
        target.open((), CapturableKernels())


def test_without_a_gpu_graphs_are_an_error_only_if_demanded(tiny_target):
    target = tiny_target("llama")
    assert choose_graphs(target.scorer, "auto") is None
    assert choose_graphs(target.scorer, "off") is None
    with pytest.raises(UnsupportedTarget, match=r"runtime\.graphs is on, .* on cpu; use auto"):
        choose_graphs(target.scorer, "on")


def test_sizes_hold_the_budgets_that_are_usual():
    assert [padded(nodes + 1) for nodes in (0, 4, 16, 32, 64, 128, 256, 512)] == [
        1, 5, 17, 33, 65, 129, 257, 513,
    ]  # fmt: skip
    assert padded(66) == 97
    assert padded(514) is None


def drafter_of(text):
    """Knows the text, and has each third token in second place, where only a tree finds it."""
    logits = torch.randn(len(text) + 5, 61, generator=torch.Generator().manual_seed(1))
    for position, token in enumerate(text):
        best, second = ((token + 1) % 61, token) if position % 3 == 0 else (token, token - 1)
        logits[position, second], logits[position, best] = 6.0, 7.0
    rows = [
        FactorizedProposal(logits[at : at + 5], GREEDY, Vocabulary(61)) for at in range(len(text))
    ]
    return OracleDrafter(lambda prefix, sampling: rows[len(prefix)])


@pytest.mark.parametrize("nodes", [2, 12])
def test_pipelines_say_what_plain_decoding_says(fresh_model, nodes):
    target, rng = recording_target(fresh_model("gemma3")), random.Random(10)
    prompt = prompt_of(9, rng)
    plain = Pipeline(target).generate(prompt, max_new_tokens=24).tokens
    pipeline = Pipeline(
        target,
        drafter_of((*prompt, *plain)),
        build_component(Kind.TREE, "best_first", max_nodes=nodes),
        build_component(Kind.CONTROLLER, "fixed", nodes=nodes),
        kernels=CapturableKernels(),
    )
    for _ in range(2):  # the second on the first one's buffers
        found = pipeline.generate(prompt, max_new_tokens=24)
        assert found.tokens == plain
        assert found.stats.accepted > 8
    assert target.graphs.off is None


def test_prices_of_captured_forwards_have_their_sizes_and_an_identity_of_their_own(fresh_model):
    target = recording_target(fresh_model("llama"))
    plain, captured = (
        target.costs(time.perf_counter),
        target.costs(time.perf_counter, CapturableKernels()),
    )
    assert plain.sizes == ()
    assert captured.sizes == graphs.SIZES
    assert plain.identity != captured.identity
    assert captured.seconds(3, 16) > 0
    (buffers,) = captured._session.cache.held
    assert {size for size, *_ in buffers.forwards} == {5}
