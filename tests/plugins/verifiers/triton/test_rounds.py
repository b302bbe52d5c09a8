"""A round synchronises once between draft and commit, to copy the verdict to the host."""

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
SYNCHRONISING = {
    "item", "tolist", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__",
    "__array__", "equal", "argwhere",
}  # fmt: skip


class RecordsReads(TorchFunctionMode):
    """Treats CPU tensors as a device's: records reads and counts copies to the host.

    Copies may be read freely, and so may Triton's interpreter, which reads what a kernel would.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []
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
        elif name in SYNCHRONISING and not self._is_on_host(args) and not _interpreting():
            self.reads.append(f"{name} in {_caller()}")
        return result

    def _is_on_host(self, args: tuple[Any, ...]) -> bool:
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
def as_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading CPU tensors counts as a synchronisation."""
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


def reads_of_a_round(pipeline: Pipeline, temperature: float) -> RecordsReads:
    request = pipeline.request([1, 2, 3], temperature=temperature, seed=0, max_new_tokens=8)
    run = pipeline.engine.open(request)
    pipeline.engine.step([run])
    with RecordsReads() as reads:
        (step,) = pipeline.engine.step([run])
    assert step.stats.budget == 3
    return reads


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_round_synchronises_once(
    pipeline: Callable[[Any], Pipeline], as_device: None, temperature: float
) -> None:
    recorded = reads_of_a_round(pipeline(Triton()), temperature)
    assert recorded.reads == []
    assert recorded.copies == 1


def test_a_verifier_on_the_host_reads_the_device(
    pipeline: Callable[[Any], Pipeline], as_device: None
) -> None:
    recorded = reads_of_a_round(pipeline(build_component(Kind.VERIFIER, "match")), 1.0)
    assert any("match.py" in place or "node_distributions.py" in place for place in recorded.reads)


def test_a_tree_grown_without_synchronisation_equals_the_synchronised_one(
    as_device: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for form in ("factorized", "markov"):
        for seed in range(12):
            proposal = toy_proposal(form, ("unasked", seed), Sampling(1.0), vocab=6, depth=3)
            on_device = grow_by_level(0, proposal, 7, 3, lambda tree: True)
            with monkeypatch.context() as patch:
                patch.setattr(devices, "reads_without_sync", lambda device: True)
                expected = grow_by_level(0, proposal, 7, 3, lambda tree: True)
            # Behind the nodes of the expected tree are the children with probability 0.
            listed = len(expected)
            assert on_device.token_list[:listed] == expected.token_list
            assert on_device.parent_list[:listed] == expected.parent_list
            assert on_device.depth_list[:listed] == expected.depth_list
            assert torch.equal(on_device.log_rho[:listed], expected.log_rho)
            assert bool((on_device.log_rho[listed:] == -torch.inf).all())


def test_topk_without_synchronisation_equals_topk() -> None:
    generator = torch.Generator().manual_seed(0)
    for ids in (None, torch.randperm(30, generator=generator)):
        for step in (0.01, 0.2):
            probs = (torch.rand(4, 30, generator=generator) / step).round() * step
            for k in (1, 5, 30):
                actual, expected = stable_topk_no_sync(probs, k, ids), stable_topk(probs, k, ids)
                assert torch.equal(actual[1], expected[1])
                above = expected[1] > 0
                assert torch.equal(actual[0][above], expected[0][above])


def test_growth_with_filters_stops_where_too_few_tokens_remain(as_device: None) -> None:
    logits = torch.randn(2, 9, generator=torch.Generator().manual_seed(0))
    proposal = FactorizedProposal(logits, Sampling(1.0, top_k=1), Vocabulary(9))
    tree = grow_by_level(0, proposal, 6, 2, lambda tree: True)
    assert tree.nodes == 2
    assert bool((tree.log_rho > -torch.inf).all())
