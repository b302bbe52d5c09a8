"""Registers the bundled verifiers."""

from draftwood.core.draws import Draws
from draftwood.core.kernels.available import interpreting, unavailable_reason
from draftwood.core.registry.hookspecs import hookimpl
from draftwood.core.registry.plugin import Plugin, VerifierTraits
from draftwood.plugins.verifiers.options import (
    AutoOptions,
    DeviceRule,
    MatchOptions,
    MultiRoundOptions,
    RatioOptions,
    TraversalOptions,
    TritonOptions,
)

SAMPLED = frozenset({Draws.CHAIN, Draws.IID, Draws.WITHOUT_REPLACEMENT})
EVERY = frozenset(Draws)
RULE_DRAWS: dict[DeviceRule, frozenset[Draws]] = {
    "match": EVERY,
    "ratio": frozenset({Draws.CHAIN}),
    "multi_round": SAMPLED,
}


@hookimpl
def draftwood_register_verifiers() -> list[Plugin]:
    return [
        Plugin(
            name="match",
            summary="draws from the target and follows the tree while it agrees; any tree",
            options=MatchOptions,
            factory="draftwood.plugins.verifiers.match:Match",
            traits=lambda options: VerifierTraits(draws=EVERY, seed_parity=True),
        ),
        Plugin(
            name="ratio",
            summary="accepts with min(1, p/q); chains sampled from the drafter",
            options=RatioOptions,
            factory="draftwood.plugins.verifiers.ratio:Ratio",
            traits=lambda options: VerifierTraits(draws=frozenset({Draws.CHAIN})),
        ),
        Plugin(
            name="multi_round",
            summary="p/q among siblings, each against what the others left; sampled trees",
            options=MultiRoundOptions,
            factory="draftwood.plugins.verifiers.multi_round:MultiRound",
            traits=lambda options: VerifierTraits(draws=SAMPLED),
        ),
        Plugin(
            name="traversal",
            summary="judges whole paths from the leaves; accepts most; sampled trees",
            options=TraversalOptions,
            factory="draftwood.plugins.verifiers.traversal:Traversal",
            traits=lambda options: VerifierTraits(draws=SAMPLED),
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


def _triton(options: TritonOptions) -> VerifierTraits:
    return VerifierTraits(
        draws=RULE_DRAWS[options.rule],
        seed_parity=options.rule == "match",
        devices=None if interpreting() else frozenset({"cuda"}),
        unsupported_device_hint="use: auto picks by the device; "
        "TRITON_INTERPRET=1 in the environment runs the "
        "kernels on any, in Triton's interpreter, which is slow",
        kernels="triton",
    )


def _auto(options: AutoOptions) -> VerifierTraits:
    def resolve_for_device(device: str) -> str:
        return options.rule if unavailable_reason(device) else f"triton, rule {options.rule}"

    return VerifierTraits(
        draws=RULE_DRAWS[options.rule],
        seed_parity=options.rule == "match",
        resolve_for_device=resolve_for_device,
    )
