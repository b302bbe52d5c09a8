"""The exact distribution of a pipeline's own parts around a toy target and a toy drafter."""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from attrs import asdict, frozen

from draftwood.core.config.pipeline import PipelineConfig, load_config
from draftwood.core.draws import Draws
from draftwood.core.engine import Engine
from draftwood.core.registry.plugin import Kind, ProposalForm
from draftwood.testing.controllers import CappedController
from draftwood.testing.exact import TOLERANCE, Comparison
from draftwood.testing.toy_pipelines import (
    FILTERS,
    HORIZON,
    SHAPES,
    TREES,
    ToyPipeline,
    extreme_shapes,
)

CASES = 24
LONG = 200
"""Tokens of a text in which no random number may be used twice."""

_TEMPERATURES = (1.0, 0.5, 1.5, 0.0)


@frozen
class ExactEvidence:
    """Toy pipelines that were enumerated.

    Attributes:
        cases: How many.
        horizon: Number of new tokens of each.
        max_error: Largest difference of one sequence's probability.
        worst: The first biased case, described, and its comparison; None if none is biased.
        number: Of that case, for `repeat_case`.
        reason: Why fewer than CASES were enumerated; None if all were.
    """

    cases: int
    horizon: int
    max_error: float
    worst: tuple[str, Comparison] | None = None
    reason: str | None = None
    number: int | None = None

    @property
    def biased(self) -> bool:
        return self.worst is not None

    def as_dict(self) -> dict[str, Any]:
        biased = None
        if self.worst is not None:
            case, comparison = self.worst
            biased = {
                "case": case,
                "number": self.number,
                "prefix": [*comparison.prompt, *(comparison.prefix or ())],
                "pipeline": {str(k): v for k, v in comparison.output_probs.items()},
                "target": {str(k): v for k, v in comparison.target_probs.items()},
                "path": comparison.path and asdict(comparison.path),
            }
        return {
            "cases": self.cases,
            "horizon": self.horizon,
            "max_error": self.max_error,
            "biased": biased,
            "reason": self.reason,
        }


def check_exact(
    form: ProposalForm | None,
    build: Callable[[], dict[str, Any]],
    draws: Draws | None = None,
    any_form: bool = False,
) -> ExactEvidence:
    """Enumerate toy pipelines.

    A verifier with a `reference` is replaced by that one.

    Args:
        form: Of the drafter's proposals; None for plain decoding.
        build: Makes fresh parts by kind (tree, controller, verifier), as the pipeline configures
            them. Each case has its own parts, so that no state passes from case to case.
        draws: Of the tree; they choose the trees of extreme shapes.
        any_form: Whether the tree grows over proposals of every form.
    """
    worst, number, largest = None, None, 0.0
    done = 0
    with _own_cache():
        for done, case in enumerate(cases(form, draws, any_form)):
            try:
                comparison = case.compare(build())
                if done == 0:
                    case.decode(build())
            except Exception as error:  # noqa: BLE001 - a part that cannot be enumerated is a result
                reason = f"{case}: {type(error).__name__}: {error}".splitlines()[0]
                return ExactEvidence(done, HORIZON, largest, worst, reason, number)
            largest = max(largest, comparison.max_error)
            if comparison.max_error > TOLERANCE and worst is None:
                worst, number = (str(case), comparison), done
    return ExactEvidence(done + 1, HORIZON, largest, worst, number=number)


def repeat_case(source: str, settings: Sequence[str] = (), case: int = 0) -> Comparison:
    """Enumerate one case of `draftwood lossless` again.

    Args:
        source: A pipeline file, or a builtin pipeline's name.
        settings: "section.option=value".
        case: Its number.
    """
    config = load_config(source, settings)
    with _own_cache():
        return cases(*toy_arguments(config))[case].compare(parts(config))


def parts(config: PipelineConfig) -> dict[str, Any]:
    """A fresh tree, controller and verifier of a pipeline, by kind."""
    kinds = (Kind.TREE, Kind.CONTROLLER, Kind.VERIFIER)
    return {kind.value: part.build() for kind in kinds if (part := config.component(kind))}


def toy_arguments(
    config: PipelineConfig,
) -> tuple[ProposalForm | None, Draws | None, bool]:
    """A pipeline's (form, draws, any_form), as `cases` takes them."""
    drafter, tree = config.drafter, config.tree
    if drafter is None or tree is None:
        return None, None, False
    return drafter.traits.form, tree.traits.draws, tree.traits.forms is None


@contextmanager
def _own_cache() -> Iterator[None]:
    """Prices of a scripted machine must not be stored as this machine's."""
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.dict(os.environ, {"DRAFTWOOD_CACHE": folder}),
    ):
        yield


@frozen
class Case:
    """A toy around a pipeline's parts.

    Attributes:
        toy: Everything that is not the pipeline's.
        nodes: Most draft nodes.
        drafts: Whether the pipeline speculates.
        own_tree: Whether the tree is the pipeline's, else the shape's.
    """

    toy: ToyPipeline
    nodes: int
    drafts: bool = True
    own_tree: bool = True

    def compare(self, parts: Mapping[str, Any]) -> Comparison:
        kept = self._kept(parts)
        if not self.drafts:
            return self.toy.compare_engine(Engine(self.toy.engine().target, kept["verifier"]))
        return self.toy.compare(**kept)

    def decode(self, parts: Mapping[str, Any]) -> None:
        """Decode a long text; raises TestingError where a random number is used twice."""
        if self.drafts:
            self.toy.decode(LONG, **self._kept(parts))

    def _kept(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        """The pipeline's parts that are used here."""
        kept = {"verifier": parts["verifier"].reference or parts["verifier"]}
        if self.own_tree:
            kept["tree"] = parts["tree"]
        # Prices of a toy may stop a controller from drafting as deep as the shape is.
        if self.toy.shape == "standard":
            kept["controller"] = CappedController(parts["controller"], self.nodes)
        return kept

    def __str__(self) -> str:
        toy = self.toy
        penalty = ", repetition penalty" if toy.penalty else ""
        tree = "" if self.own_tree else f", {toy.shape} tree"
        return (
            f"{toy.shape} toy {toy.drafter} drafter {toy.seed}, at most {self.nodes} nodes, "
            f"temperature {toy.temperature}, filter {toy.filters}{penalty}{tree}"
        )


def cases(
    form: ProposalForm | None, draws: Draws | None = None, any_form: bool = False
) -> list[Case]:
    """Toys of every temperature, filter and size, with and without a penalty, then extreme ones.

    Args:
        form: Of the drafter's proposals; None for plain decoding.
        draws: Of the tree.
        any_form: Whether the tree grows over proposals of every form.
    """
    drafter, drafts = form or "lookup", form is not None
    standard = [
        Case(
            ToyPipeline(
                drafter=drafter,
                temperature=_TEMPERATURES[seed % 4],
                filters=tuple(FILTERS)[seed // 4 % 4],
                penalty=seed % 3 == 2,
                seed=seed,
            ),
            4 - seed // 2 % 3,
            drafts,
        )
        for seed in range(CASES)
    ]
    draws = draws or Draws.DETERMINISTIC
    tree = next(name for name, (drawn, _) in TREES.items() if drawn is draws)
    # A lookup proposal is nearly certain of each token: the whole of a shape shows over another.
    grown: list[tuple[ProposalForm, bool]] = [(drafter, True)]
    if drafts:
        grown.append(("factorized", False))
    if any_form and form == "lookup":
        grown.append(("factorized", True))
    extreme = [
        Case(
            ToyPipeline(
                drafter=over,
                tree=tree,
                temperature=_TEMPERATURES[seed % 4],
                # At a filter's edge ties matter: each filter is there.
                filters=tuple(FILTERS)[seed % 4 if shape == "ties" else 0],
                penalty=seed % 2 == 1,
                seed=seed,
                shape=shape,
            ),
            SHAPES[shape].nodes,
            drafts,
            own_tree,
        )
        for shape in extreme_shapes(draws)
        for over, own_tree in grown
        for seed in range(4)
    ]
    return standard + extreme
