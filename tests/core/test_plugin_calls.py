"""Plugins that fail while decoding: the error names the plugin, and no malformed value passes."""

from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from draftwood.core import plugin_calls
from draftwood.core.draws import Draws
from draftwood.core.engine import Engine, Request
from draftwood.core.errors import DraftwoodError, PairingError, PluginError, TreeError
from draftwood.core.interfaces import BudgetController, Drafter, TreePolicy
from draftwood.core.options import GenerationOptions, Sampling
from draftwood.core.proposals import LookupPaths, Proposal
from draftwood.core.randomness import Seeded
from draftwood.core.registry.plugin import VerifierTraits
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits, Verdict
from draftwood.plugins.verifiers.match import Match
from draftwood.testing import OracleDrafter, OracleTarget, ScriptedClock

V, PROMPT = 7, (1, 2)


def counts_up(prefix: tuple[int, ...]) -> list[float]:
    """Nearly certain of the token after the last one."""
    probs = [0.02] * V
    probs[(prefix[-1] + 1) % V] = 1.0
    return probs


def propose(prefix: tuple[int, ...], sampling: Sampling) -> Proposal:
    last = prefix[-1]
    return LookupPaths((((last + 1) % V, (last + 2) % V),), sampling, V)


class Chain(TreePolicy):
    def grow(self, anchor: int, proposal: Any, limits: Limits, *rest: Any) -> TokenTree:
        return TokenTree.chain([anchor, *proposal.paths[0][: limits.depth]])


class Fixed(BudgetController[None, None]):
    def init(self, costs: object) -> None:
        return None

    def open(self) -> None:
        return None

    def before_draft(self, ctx: object, state: object) -> Limits:
        return Limits(2)


def parts() -> dict[str, Any]:
    return {
        "drafter": OracleDrafter(propose),
        "tree": Chain(),
        "controller": Fixed(),
        "verifier": Match(),
    }


def decode(chosen: dict[str, Any], temperature: float = 0.0) -> list[int]:
    engine = Engine(
        OracleTarget(V, counts_up),
        chosen["verifier"],
        chosen["drafter"],
        chosen["tree"],
        chosen["controller"],
        ScriptedClock(),
    )
    options = GenerationOptions(max_new_tokens=9, temperature=temperature)
    run = engine.open(Request(PROMPT, options, Seeded(0)))
    while run.finish_reason is None:
        engine.step([run])
    return run.new_ids


TEXT = [(PROMPT[-1] + 1 + i) % V for i in range(9)]


def test_the_parts_as_they_are_decode_the_targets_text() -> None:
    assert decode(parts()) == TEXT


METHODS = [
    ("drafter", "bind"),
    ("drafter", "open"),
    ("drafter", "propose"),
    ("tree", "grow"),
    ("controller", "init"),
    ("controller", "open"),
    ("controller", "before_draft"),
    ("controller", "choose"),
    ("controller", "observe"),
    ("verifier", "bind"),
    ("verifier", "judge"),
]


def replaced(part: str, method: str, function: Any) -> dict[str, Any]:
    """The parts, one of which is of a class `Broken` with this method."""
    chosen = parts()
    base = type(chosen[part])
    broken = type("Broken", (base,), {method: function, "__module__": __name__})
    chosen[part].__class__ = broken
    return chosen


@pytest.mark.parametrize(("part", "method"), METHODS)
def test_an_error_of_a_plugin_names_the_plugin_and_keeps_the_cause(part: str, method: str) -> None:
    def fails(self: object, *given: object) -> None:
        raise ZeroDivisionError("no such thing")

    with pytest.raises(PluginError, match=r"ZeroDivisionError: no such thing") as error:
        decode(replaced(part, method, fails))
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    assert f"plugin {__name__}:Broken.fails failed" in str(error.value)
    assert "test_plugin_calls.py:" in str(error.value)


@pytest.mark.parametrize(
    ("part", "method"),
    [case for case in METHODS if case not in [("controller", "init"), ("controller", "open")]],
)
def test_a_result_of_the_wrong_type_names_the_plugin(part: str, method: str) -> None:
    with pytest.raises(PluginError, match=r"Broken\.\S+ returned complex, not \w+"):
        decode(replaced(part, method, lambda self, *given: 5j))


@pytest.mark.parametrize("given", [[], [None], ["a", "b"]])
def test_anything_but_one_proposal_for_a_request_is_an_error(given: list[object]) -> None:
    with pytest.raises(PluginError, match="not one Proposal per request"):
        decode(replaced("drafter", "propose", lambda self, work: given))


@pytest.mark.parametrize("nodes", [-1, 3])
def test_a_budget_outside_the_tree_is_an_error(nodes: int) -> None:
    with pytest.raises(PluginError, match=f"chose {nodes} of 2 draft nodes"):
        decode(replaced("controller", "choose", lambda self, *given: nodes))


@pytest.mark.parametrize(
    ("verdict", "message"),
    [
        (Verdict((), 3), "not a path"),
        (Verdict((1,), 3), "not a path"),
        (Verdict((0, 2), 3), "not a path"),
        (Verdict((0, 1, 2, 3), 3), "not a path"),
        (Verdict((0,), V), "bonus token 7, which is outside"),
        (Verdict((0,), -1), "bonus token -1, which is outside"),
    ],
)
def test_a_malformed_verdict_is_an_error(verdict: Verdict, message: str) -> None:
    judge = Match().judge

    def judged(self: object, distributions: Any, tree: TokenTree, rng: Any) -> Verdict:
        return verdict if tree.nodes else judge(distributions, tree, rng)

    with pytest.raises(PluginError, match=message):
        decode(replaced("verifier", "judge", judged))


@pytest.mark.parametrize("error", [PairingError("a pair"), torch.OutOfMemoryError("full")])
def test_errors_that_are_not_the_plugins_fault_pass_through(error: Exception) -> None:
    def fails(self: object, *given: object) -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        decode(replaced("drafter", "bind", fails))
    assert raised.value is error


MALFORMED = {
    "equal siblings": ([1, 1], [0, 0], [1, 1]),
    "a parent after its child": ([1, 2], [2, 0], [1, 1]),
    "a wrong depth": ([1, 2], [0, 1], [1, 1]),
    "a token outside the vocabulary": ([1, V], [0, 1], [1, 2]),
    "more nodes than allowed": ([1, 2, 3], [0, 0, 0], [1, 1, 1]),
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_tree_is_an_error_that_names_the_policy(name: str, temperature: float) -> None:
    tokens, parents, depths = MALFORMED[name]

    def grow(self: object, anchor: int, *given: object) -> TokenTree:
        columns = [anchor, *tokens], [-1, *parents], [0, *depths]
        return TokenTree.from_lists(*columns, [0.0] * (len(tokens) + 1))

    with pytest.raises(PluginError, match=r"Broken\.grow returned a malformed tree: ") as error:
        decode(replaced("tree", "grow", grow), temperature)
    assert isinstance(error.value.__cause__, TreeError)


def test_a_tree_of_another_anchor_is_an_error() -> None:
    with pytest.raises(PluginError, match="the anchor is token 3"):
        decode(replaced("tree", "grow", lambda self, *given: TokenTree.chain([5, 6])))


def test_a_wrong_depth_changed_the_text_where_it_was_not_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Negative control: positions come from depths, so draws are keyed by the wrong one."""
    chosen = parts()
    plain = decode(chosen, temperature=4.0)

    def grow(self: object, anchor: int, proposal: Any, *given: object) -> TokenTree:
        every_token = [anchor, *range(V)]
        return TokenTree.from_lists(every_token, [-1, *[0] * V], [0, *[3] * V], [0.0] * (V + 1))

    flawed = replaced("tree", "grow", grow)
    monkeypatch.setattr(TokenTree, "validate", lambda self, **given: self)
    assert decode(flawed, temperature=4.0) != plain


def test_a_tree_on_a_device_is_checked_after_the_verdict_and_before_the_commit() -> None:
    """The meta device refuses every read: nothing waits for the columns before the judge."""
    twin = TokenTree.chain([3, 4, 5])
    commits: list[object] = []

    class Device(OracleTarget):
        def forward(self, work: Any) -> Any:
            ((session, tree),) = work
            return super().forward([(session, twin if tree.nodes else tree)])

    def grow(self: object, anchor: int, *given: object) -> TokenTree:
        columns = (twin.tokens, twin.parents, twin.depths, twin.log_rho)
        return TokenTree(*(column.to("meta") for column in columns))

    def judge(self: object, distributions: Any, tree: TokenTree, rng: Any) -> Verdict:
        if not tree.nodes:
            return Verdict((0,), 3)
        tree.keep_lists(tokens=[3, 4, 5], parents=[-1, 0, 0], depths=[0, 1, 2], log_rho=[0.0] * 3)
        return Verdict((0, 1), 5)

    chosen = replaced("tree", "grow", grow)
    verifier = replaced("verifier", "judge", judge)["verifier"]
    engine = Engine(
        Device(V, counts_up), verifier, chosen["drafter"], chosen["tree"], Fixed(), ScriptedClock()
    )
    run = engine.open(Request(PROMPT, GenerationOptions(max_new_tokens=9), Seeded(0)))
    engine.step([run])
    run.session.commit = commits.append  # type: ignore[method-assign]
    with pytest.raises(PluginError, match="node 2 has depth 2; its parent has 0"):
        engine.step([run])
    assert not commits
    assert run.new_ids == [3]


def test_the_distribution_is_named_where_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("comb", "comb_plugin.register", "draftwood")
    dist = SimpleNamespace(name="comb-spec", version="0.2")
    listed = SimpleNamespace(module=point.module, dist=dist)
    monkeypatch.setattr(plugin_calls, "entry_points", lambda group: [listed])

    class Comb(Drafter):
        __module__ = "comb_plugin.drafter"
        open = propose = None  # type: ignore[assignment]

        def bind(self, target: object) -> Drafter:
            raise KeyError("comb")

    with pytest.raises(PluginError, match=r"of 'comb-spec 0\.2' failed: KeyError: 'comb'"):
        decode(parts() | {"drafter": Comb()})
    assert issubclass(PluginError, DraftwoodError)  # the command line's exit code 2


@pytest.mark.parametrize("nodes", [-1, 2.5, None])
def test_limits_that_are_no_count_of_nodes_blame_the_controller(nodes: Any) -> None:
    def allows(self: object, ctx: object, state: object) -> Limits:
        return Limits(nodes)

    with pytest.raises(PluginError, match=rf"Broken\.allows .*allowed {nodes!r} draft nodes"):
        decode(replaced("controller", "before_draft", allows))


def test_a_verifiers_trait_takes_one_kind_of_draws_or_several() -> None:
    assert VerifierTraits(Draws.CHAIN).draws == frozenset({Draws.CHAIN})
    assert VerifierTraits([Draws.CHAIN, Draws.IID]).draws == frozenset({Draws.CHAIN, Draws.IID})
