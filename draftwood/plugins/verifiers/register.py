"""Registers the bundled verifiers."""

from typing import Any

from draftwood.core.kernels.available import interpreting, unavailable_reason
from draftwood.core.registry.hookspecs import hookimpl
from draftwood.core.registry.plugin import Plugin, VerifierTraits
from draftwood.plugins.verifiers.options import (
    AutoOptions,
    MatchOptions,
    MultiRoundOptions,
    RatioOptions,
    TraversalOptions,
    TritonOptions,
)
from draftwood.plugins.verifiers.rules import RULE_DRAWS, SEED_PARITY


@hookimpl
def draftwood_register_verifiers() -> list[Plugin]:
    return [
        Plugin(
            name="match",
            summary="draws from the target and follows the tree while it has the draw; any tree",
            options=MatchOptions,
            factory="draftwood.plugins.verifiers.match:Match",
            traits=lambda options: _traits("match"),
        ),
        Plugin(
            name="ratio",
            summary="accepts with min(1, p/q); chains drawn from the drafter",
            options=RatioOptions,
            factory="draftwood.plugins.verifiers.ratio:Ratio",
            traits=lambda options: _traits("ratio"),
        ),
        Plugin(
            name="multi_round",
            summary="p/q sibling by sibling, each against the residual; drawn trees",
            options=MultiRoundOptions,
            factory="draftwood.plugins.verifiers.multi_round:MultiRound",
            traits=lambda options: _traits("multi_round"),
        ),
        Plugin(
            name="traversal",
            summary="judges whole paths from the leaves; accepts most; drawn trees",
            options=TraversalOptions,
            factory="draftwood.plugins.verifiers.traversal:Traversal",
            traits=lambda options: _traits("traversal"),
        ),
        Plugin(
            name="triton",
            summary="match, ratio or multi_round in kernels on the device",
            options=TritonOptions,
            factory="draftwood.plugins.verifiers.triton.verifier:Triton",
            traits=_triton,
        ),
        Plugin(
            name="auto",
            summary="triton where its kernels run, else the rule of the same name",
            options=AutoOptions,
            factory="draftwood.plugins.verifiers.auto:Auto",
            traits=_auto,
        ),
    ]


def _traits(rule: str, **more: Any) -> VerifierTraits:
    return VerifierTraits(RULE_DRAWS[rule], seed_parity=rule in SEED_PARITY, **more)


def _triton(options: TritonOptions) -> VerifierTraits:
    return _traits(
        options.rule,
        devices=None if interpreting() else frozenset({"cuda"}),
        unsupported_device_hint="use: auto picks by the device; TRITON_INTERPRET=1 in the "
        "environment runs the kernels on any, in Triton's interpreter, which is slow",
        kernels="triton",
    )


def _auto(options: AutoOptions) -> VerifierTraits:
    def resolve_for_device(device: str) -> str:
        return options.rule if unavailable_reason(device) else f"triton, rule {options.rule}"

    return _traits(options.rule, resolve_for_device=resolve_for_device)
