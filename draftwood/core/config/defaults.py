"""The tree, controller and verifier of a pipeline that names a drafter and leaves them out."""

from collections.abc import Mapping
from typing import Any

from draftwood.core.draws import Draws
from draftwood.core.options import GenerationOptions
from draftwood.core.registry.plugin import DrafterTraits, Kind, TreeTraits, VerifierTraits

DESCRIPTIONS: Mapping[Kind, str] = {
    Kind.TREE: "Without it a drafter gets best_first (max_nodes 16 for a lookup drafter), or "
    "sampled if the verifier takes drawn trees only.",
    Kind.CONTROLLER: "Without it a drafter gets roofline; fixed (16 nodes) for a lookup drafter "
    "and for drawn trees.",
    Kind.VERIFIER: "Without it a drafter gets auto with rule match; for drawn trees at a "
    "temperature above 0 rule ratio (chains) or multi_round. Plain decoding uses match.",
}
"""The defaults in words, for the schema and the reference."""

LOOKUP_NODES = 16
"""A lookup proposal lists few tokens, so that a larger tree adds nothing."""


def default_tree(drafter: DrafterTraits | None, verifier: VerifierTraits | None) -> dict[str, Any]:
    """The tree for a drafter, which the verifier can judge."""
    if verifier is not None and Draws.DETERMINISTIC not in verifier.draws:
        return {"use": "sampled"}
    if drafter is not None and drafter.form == "lookup":
        return {"use": "best_first", "max_nodes": LOOKUP_NODES}
    return {"use": "best_first"}


def default_controller(drafter: DrafterTraits | None, tree: TreeTraits | None) -> dict[str, Any]:
    """The controller for a drafter and a tree: drawn trees cannot be cut after they are grown."""
    lookup = drafter is not None and drafter.form == "lookup"
    if lookup or (tree is not None and tree.draws is not Draws.DETERMINISTIC):
        return {"use": "fixed", "nodes": LOOKUP_NODES}
    return {"use": "roofline"}


def default_verifier(tree: TreeTraits | None, generation: GenerationOptions) -> dict[str, Any]:
    """The verifier for a tree: the rejection rules accept more of drawn trees when sampling."""
    if tree is None or tree.draws is Draws.DETERMINISTIC or generation.sampling.greedy:
        return {"use": "auto"}
    return {"use": "auto", "rule": "ratio" if tree.draws is Draws.CHAIN else "multi_round"}
