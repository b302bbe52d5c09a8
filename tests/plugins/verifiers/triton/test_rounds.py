"""A round stays on the device: between draft and commit the host asks once, for the verdict."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from draftwood.core import devices
from draftwood.core.build import build_component
from draftwood.core.distributions import stable_topk, stable_topk_no_sync
from draftwood.core.generation import Pipeline
from draftwood.core.options import Sampling
from draftwood.core.proposals import FactorizedProposal, Vocabulary
from draftwood.core.registry.plugin import Kind
from draftwood.plugins.trees.by_level import grow_by_level
from draftwood.plugins.verifiers.triton.verifier import Triton
from draftwood.testing import toy_proposal

ZLAB = Path(__file__).parents[3] / "fixtures" / "zlab"
ASKING = {
    "item", "tolist", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__",
    "__array__", "equal", "argwhere",
}  # fmt: skip


class Questions(TorchFunctionMode):
    """Takes CPU tensors for a device's: notes who reads one, and who copies one to the host.

    What was copied may be read freely. Triton's interpreter reads what a kernel would.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.copies = 0
        self._host: set[int] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name == "cpu" and not _interpreting():
            self.copies += 1
            self._host.add(result.untyped_storage().data_ptr())
        elif name in ASKING and not self._free(args) and not _interpreting():
            self.asked.append(f"{name} in {_caller()}")
        return result

    def _free(self, args: tuple[Any, ...]) -> bool:
        return args[0].untyped_storage().data_ptr() in self._host


def _frames() -> Iterator[str]:
    frame: Any = sys._getframe(2)
    while frame is not None:
        yield f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back


def _interpreting() -> bool:
    return any("triton/runtime" in place for place in _frames())


def _caller() -> str:
    return next((place for place in _frames() if "draftwood" in place and "tests" not in place), "")


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the CPU were a device to wait for."""
    monkeypatch.setattr(devices, "reads_without_sync", lambda device: False)


@pytest.fixture(scope="module")
def pipeline() -> Callable[[Any], Pipeline]:
    from draftwood.core.hf import load_target

    target = load_target(ZLAB / "target", device="cpu", dtype="float32")

    def build(verifier: Any) -> Pipeline:
        return Pipeline(
            target,
            build_component(Kind.DRAFTER, "dflash", checkpoint=ZLAB / "dflash"),
            build_component(Kind.TREE, "best_first", max_nodes=3, form="by_level"),
            build_component(Kind.CONTROLLER, "fixed", nodes=3),
            verifier,
            kernels="triton" if isinstance(verifier, Triton) else None,
        )

    return build


def questions_of_a_round(pipeline: Pipeline, temperature: float) -> Questions:
    request = pipeline.request([1, 2, 3], temperature=temperature, seed=0, max_new_tokens=8)
    run = pipeline.engine.open(request)
    pipeline.engine.step([run])
    with Questions() as questions:
        (step,) = pipeline.engine.step([run])
    assert step.stats.budget == 3
    return questions


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_round_asks_once(
    pipeline: Callable[[Any], Pipeline], far: None, temperature: float
) -> None:
    found = questions_of_a_round(pipeline(Triton()), temperature)
    assert found.asked == []
    assert found.copies == 1


def test_the_count_finds_a_verifier_that_walks_on_the_host(
    pipeline: Callable[[Any], Pipeline], far: None
) -> None:
    found = questions_of_a_round(pipeline(build_component(Kind.VERIFIER, "match")), 1.0)
    assert any("match.py" in place or "node_distributions.py" in place for place in found.asked)


def test_a_tree_that_stays_on_the_device_is_the_one_that_is_asked_about(
    far: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for form in ("factorized", "markov"):
        for seed in range(12):
            proposal = toy_proposal(form, ("unasked", seed), Sampling(1.0), vocab=6, depth=3)
            there = grow_by_level(0, proposal, 7, 3, lambda tree: True)
            with monkeypatch.context() as here:
                here.setattr(devices, "reads_without_sync", lambda device: True)
                wanted = grow_by_level(0, proposal, 7, 3, lambda tree: True)
            alive = len(wanted)  # distributions with zeros have fewer nodes, and the rest come last
            assert there.token_list[:alive] == wanted.token_list
            assert there.parent_list[:alive] == wanted.parent_list
            assert there.depth_list[:alive] == wanted.depth_list
            assert torch.equal(there.log_rho[:alive], wanted.log_rho)
            assert bool((there.log_rho[alive:] == -torch.inf).all())


def test_the_best_of_a_distribution_are_the_same_without_asking() -> None:
    generator = torch.Generator().manual_seed(0)
    for ids in (None, torch.randperm(30, generator=generator)):
        for step in (0.01, 0.2):
            probs = (torch.rand(4, 30, generator=generator) / step).round() * step
            for k in (1, 5, 30):
                mine, wanted = stable_topk_no_sync(probs, k, ids), stable_topk(probs, k, ids)
                assert torch.equal(mine[1], wanted[1])
                above = wanted[1] > 0
                assert torch.equal(mine[0][above], wanted[0][above])


def test_filters_may_leave_too_few_tokens_so_they_are_asked_about(far: None) -> None:
    logits = torch.randn(2, 9, generator=torch.Generator().manual_seed(0))
    proposal = FactorizedProposal(logits, Sampling(1.0, top_k=1), Vocabulary(9))
    tree = grow_by_level(0, proposal, 6, 2, lambda tree: True)
    assert tree.nodes == 2
    assert bool((tree.log_rho > -torch.inf).all())
