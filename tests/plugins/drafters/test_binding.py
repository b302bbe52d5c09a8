"""One drafter object serves several targets: `bind` returns what belongs to one of them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from draftwood.core.build import build_component
from draftwood.core.generation import Pipeline
from draftwood.core.hf import load_target
from draftwood.core.interfaces import Drafter, Target
from draftwood.core.registry.plugin import Kind
from draftwood.plugins.drafters.common.placement import placed_like
from draftwood.plugins.drafters.dblast.drafter import DBlast
from draftwood.plugins.drafters.dflash.drafter import DFlash
from draftwood.plugins.drafters.draft_model.drafter import DraftModel
from draftwood.plugins.drafters.eagle3.drafter import Eagle3
from draftwood.plugins.drafters.options import (
    DBlastOptions,
    DFlashOptions,
    DraftModelOptions,
    Eagle3Options,
    NgramOptions,
    UnionOptions,
)
from draftwood.plugins.drafters.union.drafter import Union

FIXTURES = Path(__file__).parents[2] / "fixtures"
ZLAB = FIXTURES / "zlab"
PROMPT = [5, 17, 40, 41, 60, 3, 22, 71]

DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "dflash": lambda: DFlash(DFlashOptions(checkpoint=ZLAB / "dflash")),
    "dblast": lambda: DBlast(DBlastOptions(checkpoint=ZLAB / "dflash")),
    "eagle3": lambda: Eagle3(Eagle3Options(FIXTURES / "speculators/eagle3")),
    "draft_model": lambda: DraftModel(DraftModelOptions(ZLAB / "target")),
    "union": lambda: Union(
        UnionOptions.of(ngram=NgramOptions(), dflash=DFlashOptions(checkpoint=ZLAB / "dflash"))
    ),
}


@pytest.fixture(scope="module")
def targets() -> list[Target]:
    """Two targets of one shape, with different weights and dtypes."""
    single = load_target(ZLAB / "target", device="cpu", dtype="float32")
    double = load_target(ZLAB / "target", device="cpu", dtype="float64")
    with torch.no_grad():
        for parameter in double.model.parameters():
            parameter += 0.05 * torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(1)
            )
    return [single, double]


def pipeline(target: Target, drafter: Drafter) -> Pipeline:
    return Pipeline(
        target,
        drafter,
        build_component(Kind.TREE, "best_first", max_nodes=6),
        build_component(Kind.CONTROLLER, "fixed", nodes=6),
        build_component(Kind.VERIFIER, "match"),
    )


def decode(decoder: Pipeline) -> tuple[tuple[int, ...], int]:
    """Tokens, and how many drafts were accepted, which depends on the drafter's state."""
    result = decoder.generate(PROMPT, max_new_tokens=24, eos_token_id=())
    return result.tokens, result.stats.accepted


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_drafter_bound_to_two_targets_decodes_both_as_two_drafters_do(
    name: str, targets: list[Target]
) -> None:
    build = DRAFTERS[name]
    shared = build()
    shared_pipelines = [pipeline(target, shared) for target in targets]
    separate_pipelines = [pipeline(target, build()) for target in targets]
    for _ in range(2):
        decoded = [decode(decoder) for decoder in shared_pipelines]
        assert decoded == [decode(decoder) for decoder in separate_pipelines]
    plain = [
        Pipeline(target).generate(PROMPT, max_new_tokens=24, eos_token_id=()) for target in targets
    ]
    assert [tokens for tokens, _ in decoded] == [result.tokens for result in plain]
    assert plain[0].tokens != plain[1].tokens  # negative control: the targets differ


@pytest.mark.parametrize("name", DRAFTERS)
def test_bind_leaves_the_drafter_as_it_was(name: str, targets: list[Target]) -> None:
    drafter = DRAFTERS[name]()
    before = dict(vars(drafter))
    bound = drafter.bind(targets[1])
    assert bound is not drafter
    assert vars(drafter) == before


def test_a_placed_network_shares_no_converted_tensor() -> None:
    network = torch.nn.Linear(3, 2)
    network.register_buffer("ids", torch.arange(2))
    placed = placed_like(network, torch.zeros(1, dtype=torch.float64))
    assert placed.weight.dtype is torch.float64
    assert placed.ids.dtype is torch.int64
    assert network.weight.dtype is torch.float32
    torch.testing.assert_close(placed.weight, network.weight.double(), rtol=0, atol=0)
