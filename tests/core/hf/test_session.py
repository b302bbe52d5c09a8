"""After any history a session is what a fresh prefill of its tokens would be."""

import gc
import random
import weakref

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from draftwood.core.errors import RequestError, TreeError
from draftwood.core.hf.cache import GROWTH, ROWS, LayerShape, TreeCache, window_start
from draftwood.core.tree import TokenTree

VOCAB = 61
SEEDS = st.integers(0, 2**32 - 1)


def keys_and_values(session):
    """Committed K/V of every layer: list of (1, heads, length, dim)."""
    layers, length = session.cache.layers, session.length
    return [x[:, :, :length] for layer in layers for x in (layer.keys, layer.values)]


def difference(one, other):
    assert one.length == other.length
    pairs = zip(keys_and_values(one), keys_and_values(other), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


class Histories(RuleBasedStateMachine):
    """Prefill, score trees, commit paths, fork, on several sessions in turn."""

    target = None
    tree = None
    bound = 1e-5

    def __init__(self):
        super().__init__()
        self.sessions = []  # [session, committed tokens, last tree or None]
        self.touched = set()  # by the last step: only these are compared, all of them at the end

    @initialize(length=st.integers(1, 12), seed=SEEDS)
    def begin(self, length, seed):
        self.prefill(length, seed)

    @precondition(lambda self: len(self.sessions) < 3)
    @rule(length=st.integers(1, 12), seed=SEEDS)
    def prefill(self, length, seed):
        rng = random.Random(seed)
        session, prompt = self.target.open(), [rng.randrange(VOCAB) for _ in range(length)]
        session.prefill(prompt)
        self.touched.add(len(self.sessions))
        self.sessions.append([session, prompt, None])

    @rule(which=st.integers(0, 2), nodes=st.integers(0, 12), seed=SEEDS)
    def forward(self, which, nodes, seed):
        self.touched.add(which % len(self.sessions))
        entry = self.sessions[which % len(self.sessions)]
        entry[2] = type(self).tree(nodes, random.Random(seed))
        self.target.forward([(entry[0], entry[2])])

    @rule(which=st.integers(0, 2), node=st.integers(0, 12))
    def commit(self, which, node):
        entry = self.sessions[which % len(self.sessions)]
        session, tokens, tree = entry
        if tree is not None:
            path = tree.path(node % len(tree))
            session.commit(path)
            self.touched.add(which % len(self.sessions))
            tokens += [tree.token_list[i] for i in path]
            entry[2] = None

    @precondition(lambda self: len(self.sessions) < 3)
    @rule(which=st.integers(0, 2))
    def fork(self, which):
        session, tokens, _ = self.sessions[which % len(self.sessions)]
        self.touched.add(len(self.sessions))
        self.sessions.append([session.fork(), list(tokens), None])

    @invariant()
    def what_was_touched_equals_a_fresh_prefill(self):
        for which in self.touched:
            self.compare(*self.sessions[which])
        self.touched = set()

    def teardown(self):
        for entry in self.sessions:
            self.compare(*entry)

    def compare(self, session, tokens, tree):
        fresh = self.target.open()
        fresh.prefill(tokens)
        assert session.length == len(tokens)
        assert difference(session, fresh) <= self.bound
        if tree is None:  # a forward would replace the one still to be committed
            step = TokenTree.root(5)
            a, b = (self.target.forward([(s, step)])[0].logits for s in (session, fresh))
            assert float((a - b).abs().max()) <= self.bound * 10


@pytest.mark.covers("cache-rows")
def test_every_history_of_commits_equals_a_fresh_prefill(
    architecture, attention, tiny_target, random_tree
):
    class Machine(Histories):
        target = tiny_target(architecture, attention, torch.float32)
        tree = staticmethod(random_tree)

    run_machine(Machine, settings=settings(max_examples=8, stateful_step_count=12, deadline=None))


@pytest.mark.covers("cache-rows")
def test_a_commit_moves_rows_inside_the_same_buffers(tiny_target):
    target = tiny_target("qwen3")
    session = target.open()
    session.prefill(list(range(40)))
    tree = TokenTree.from_lists([1, 2, 3, 4, 5], [-1, 0, 0, 2, 2], [0, 1, 1, 2, 2], [0.0] * 5)

    def addresses():
        layers = session.cache.layers
        return [x.data_ptr() for layer in layers for x in (layer.keys, layer.values)]

    before = addresses()
    kept = [x[:, :, :40].clone() for x in keys_and_values(session)]
    for _ in range(30):
        target.forward([(session, tree)])
        session.commit([0, 2, 4])
    assert session.length == 40 + 90
    assert addresses() == before
    now = [x[:, :, :40] for x in keys_and_values(session)]
    assert all(torch.equal(a, b) for a, b in zip(kept, now, strict=True))


@pytest.mark.covers("memory-growth")
def test_buffers_grow_geometrically_and_keep_what_they_hold(tiny_target):
    session = tiny_target("llama", dtype=torch.float32).open()
    session.prefill(list(range(10)))
    held = [x.clone() for x in keys_and_values(session)]
    capacities = []
    for rows in range(1, 5000, 7):
        session.cache.reserve(rows)
        capacities.append(session.cache.capacity)
    assert len(set(capacities)) < 12
    assert all(c >= 10 + rows for c, rows in zip(capacities, range(1, 5000, 7), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(held, keys_and_values(session), strict=True))


@pytest.mark.covers("memory-growth")
def test_memory_does_not_grow_while_only_scoring(tiny_target):
    """Forwards that are never committed leave nothing behind."""
    target = tiny_target("gemma3")
    session = target.open()
    session.prefill([1, 2, 3])
    capacity = session.cache.capacity
    for _ in range(300):
        target.forward([(session, TokenTree.root(4))])
    assert session.cache.capacity == capacity
    assert session.length == 3


@pytest.mark.covers("memory-growth")
def test_a_finished_session_frees_its_buffers_at_once(tiny_target):
    """Without waiting for the garbage collector: caches are large."""
    gc.disable()
    try:
        session = tiny_target("qwen3").open()
        session.prefill([1, 2, 3])
        cache = weakref.ref(session.cache)
        del session
        assert cache() is None
    finally:
        gc.enable()


def test_a_fork_is_independent(tiny_target, random_tree):
    target, rng = tiny_target("mistral"), random.Random(0)
    session = target.open()
    session.prefill([rng.randrange(VOCAB) for _ in range(9)])
    twin = session.fork()
    step = TokenTree.root(3)
    expected = target.forward([(twin, step)])[0].logits.clone()
    for _ in range(5):
        tree = random_tree(6, rng)
        target.forward([(session, tree)])
        session.commit(tree.path(rng.randrange(7)))
    assert torch.equal(target.forward([(twin, step)])[0].logits, expected)
    assert twin.length == 9


@pytest.mark.parametrize("path", [[], [1], [0, 3], [1, 2]])
def test_a_wrong_path_is_refused_and_changes_nothing(path, tiny_target):
    target = tiny_target("llama")
    session = target.open()
    session.prefill([1, 2])
    target.forward([(session, TokenTree.from_lists([3, 4, 5], [-1, 0, 0], [0, 1, 1], [0.0] * 3))])
    with pytest.raises(TreeError, match="cannot commit"):
        session.commit(path)
    assert session.length == 2
    session.commit([0, 2])
    with pytest.raises(TreeError, match="cannot commit"):
        session.commit([0])  # the forward is used up


def test_empty_and_second_prompts_are_refused(tiny_target):
    target = tiny_target("llama")
    with pytest.raises(RequestError, match="empty"):
        target.open().prefill([])
    session = target.open()
    session.prefill([1])
    with pytest.raises(RequestError, match="fresh session"):
        session.prefill([1])


def test_a_prompt_over_the_limit_leaves_the_session_fresh(tiny_target):
    session = tiny_target("llama").open()
    with pytest.raises(RequestError, match="past the 320"):
        session.prefill([1] * 321)
    assert session.length == 0
    session.prefill([1] * 320)


def test_a_forward_that_fails_leaves_nothing_to_commit(tiny_target):
    target = tiny_target("llama")
    session = target.open()
    session.prefill([1, 2])
    target.forward([(session, TokenTree.root(3))])
    with pytest.raises(IndexError):
        target.forward([(session, TokenTree.root(999))])
    with pytest.raises(TreeError, match="cannot commit"):
        session.commit([0])
    target.forward([(session, TokenTree.root(3))])
    session.commit([0])
    assert session.length == 3


def small_cache():
    return TreeCache([LayerShape(1, 2, 3, torch.float32, torch.device("cpu"))])


@pytest.mark.parametrize("prompt", [1, 200, 255, 256, 257, 512, 3000])
def test_a_prompt_of_any_length_leaves_room_for_many_rounds(prompt):
    cache = small_cache()
    cache.reserve(prompt)
    cache.advance(prompt)
    capacity = cache.capacity
    assert capacity % ROWS == 0
    assert prompt + ROWS <= capacity < prompt + 2 * ROWS
    for _ in range(ROWS // 4):
        cache.reserve(4)
        cache.advance(4)
    assert cache.capacity == capacity


def test_buffers_of_a_growing_text_are_seldom_replaced():
    cache, replaced = small_cache(), []
    for _ in range(3000):
        before = cache.capacity
        cache.reserve(33)
        cache.advance(3)
        if cache.capacity != before:
            replaced.append(cache.capacity / max(before, 1))
    assert len(replaced) <= 9
    assert min(replaced) >= GROWTH


def test_a_window_holds_its_own_token_and_those_that_it_still_sees():
    assert [window_start(length, 4) for length in range(7)] == [0, 0, 0, 0, 1, 2, 3]
    assert [window_start(length, 1) for length in (0, 1, 5)] == [0, 1, 5]
    assert [window_start(length, None) for length in (0, 9)] == [0, 0]
