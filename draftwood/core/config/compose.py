"""Whether the parts of a pipeline work together, decided before any weights load.

Each part may be fine and the whole still wrong: a verifier with no distribution for the tree's
draws would change the output. What is checked here needs only traits and config.json files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from draftwood.core import assets
from draftwood.core.config.pipeline import PipelineConfig, TargetConfig
from draftwood.core.errors import CompositionError, DraftwoodError, PluginError, Problem
from draftwood.core.registry.loader import installed
from draftwood.core.registry.plugin import (
    ControllerTraits,
    DrafterTraits,
    Kind,
    Plugin,
    Traits,
    TreeTraits,
    VerifierTraits,
)
from draftwood.core.registry.registry import Registered, Registry, cause_of

TRAITS: dict[Kind, type] = {
    Kind.DRAFTER: DrafterTraits,
    Kind.TREE: TreeTraits,
    Kind.CONTROLLER: ControllerTraits,
    Kind.VERIFIER: VerifierTraits,
}
_NEEDED = (Kind.TREE, Kind.CONTROLLER, Kind.VERIFIER)


def check_composition(config: PipelineConfig, registry: Registry | None = None) -> None:
    """Raise CompositionError with every reason why the parts do not work together.

    registry: where suggestions come from, the installed plugins by default. Reads the target's
    config.json if it is a folder or bundled; sizes of a hub model are checked when it loads.
    """
    registry = registry or installed()
    problems = _missing(config, registry)
    traits: dict[Kind, Any] = {}
    for kind in Kind:
        part = config.component(kind)
        if part is None:
            continue
        try:
            traits[kind] = traits_of(part.entry, part.options)
        except DraftwoodError as error:
            problems.append(_problem(part.where, kind, error))
    for check in (_draws, _distributions, _device, _graphs):
        problems += check(config, traits, registry)
    if config.target is not None:
        problems += _sizes(config, config.target, traits)
    if problems:
        raise CompositionError(problems)


def remarks(config: PipelineConfig) -> list[str]:
    """What is allowed and worth knowing, a sentence each."""
    verifier = config.verifier
    if verifier is None:
        return []
    traits = traits_of(verifier.entry, verifier.options)
    return [*_picked(config, traits), *_unrepeatable(config, traits)]


def _picked(config: PipelineConfig, verifier: VerifierTraits) -> list[str]:
    """What a verifier that picks by device picks."""
    if verifier.resolve_for_device is None or config.verifier is None:
        return []
    use, device = config.verifier.use, config.runtime.device.partition(":")[0]
    if device == "auto":
        gpu, cpu = map(verifier.resolve_for_device, ("cuda", "cpu"))
        here = f"{gpu!r} on a GPU, {cpu!r} on the CPU"
        return [f"verifier {use!r} picks when the target is loaded: {here}"]
    return [f"verifier {use!r} picked {verifier.resolve_for_device(device)!r} for {device}"]


def _unrepeatable(config: PipelineConfig, traits: VerifierTraits) -> list[str]:
    """Whether one seed can give two texts."""
    controller, verifier = config.controller, config.verifier
    if controller is None or verifier is None or config.generation.sampling.greedy:
        return []
    timed = traits_of(controller.entry, controller.options).timed
    if timed and not traits.seed_parity:
        return [
            f"text is not reproducible from the seed: budgets of {controller.use!r} follow "
            f"measured times, and what {verifier.use!r} draws depends on the tree; the "
            f"distribution of the "
            "output is exact all the same"
        ]
    return []


def traits_of(entry: Registered, options: Any) -> Any:
    """A plugin's traits for its options.

    Raises PluginError naming the distribution if the plugin fails or gives something else; a
    DraftwoodError of its own (a checkpoint it cannot read) passes through.
    """
    try:
        traits: Traits = entry.plugin.traits(options)
    except DraftwoodError:
        raise
    except Exception as error:
        raise PluginError(
            f"{entry.kind} {entry.plugin.name!r} of {entry.source} failed to give its traits "
            f"({cause_of(error)})"
        ) from error
    if not isinstance(traits, TRAITS[entry.kind]):
        raise PluginError(
            f"{entry.kind} {entry.plugin.name!r} of {entry.source} gave "
            f"{type(traits).__name__} as traits, not {TRAITS[entry.kind].__name__}"
        )
    return traits


def _missing(config: PipelineConfig, registry: Registry) -> list[Problem]:
    """Drafter, tree and controller stand or fall together; with them a verifier is named."""
    if config.drafter is not None:
        return [
            Problem(
                config.drafter.where,
                kind,
                f"is required beside drafter {config.drafter.use!r}",
                (f"installed: {', '.join(registry.names(kind)) or 'none'}",),
            )
            for kind in _NEEDED
            if config.component(kind) is None
        ]
    return [
        Problem(
            part.where,
            kind,
            f"{part.use!r} has nothing to work on: there is no drafter",
            (f"name a drafter, or leave out {kind}: plain decoding needs the target alone",),
        )
        for kind in (Kind.TREE, Kind.CONTROLLER)
        if (part := config.component(kind)) is not None
    ]


def _draws(config: PipelineConfig, traits: dict[Kind, Any], registry: Registry) -> list[Problem]:
    """The verifier has a distribution for how the tree's nodes are drawn."""
    tree, verifier = traits.get(Kind.TREE), traits.get(Kind.VERIFIER)
    if tree is None or verifier is None or tree.draws in verifier.draws:
        return []
    assert config.tree is not None
    assert config.verifier is not None
    verifiers = _working(registry, Kind.VERIFIER, lambda other: tree.draws in other.draws)
    trees = _working(registry, Kind.TREE, lambda other: other.draws in verifier.draws)
    return [
        Problem(
            config.verifier.where,
            "verifier.use",
            f"{config.verifier.use!r} would change the output: it verifies "
            f"{_listed(verifier.draws)} trees, and those of {config.tree.use!r} are {tree.draws}",
            (
                f"verifiers for {tree.draws} trees: {verifiers}",
                f"trees that {config.verifier.use!r} verifies: {trees}",
            ),
        )
    ]


def _distributions(
    config: PipelineConfig, traits: dict[Kind, Any], registry: Registry
) -> list[Problem]:
    """The tree policy can grow from the form of the drafter's distribution."""
    tree, drafter = traits.get(Kind.TREE), traits.get(Kind.DRAFTER)
    if tree is None or drafter is None or tree.forms is None or drafter.form in tree.forms:
        return []
    assert config.tree is not None
    assert config.drafter is not None
    trees = _working(
        registry, Kind.TREE, lambda other: other.forms is None or drafter.form in other.forms
    )
    drafters = _working(registry, Kind.DRAFTER, lambda other: other.form in tree.forms)
    return [
        Problem(
            config.tree.where,
            "tree.use",
            f"{config.tree.use!r} grows from {_listed(tree.forms)} distributions, and drafter "
            f"{config.drafter.use!r} proposes {drafter.form}",
            (
                f"trees for {drafter.form} distributions: {trees}",
                f"drafters for {config.tree.use!r}: {drafters}",
            ),
        )
    ]


def _device(config: PipelineConfig, traits: dict[Kind, Any], registry: Registry) -> list[Problem]:
    """The verifier runs where the pipeline is told to run; `auto` is settled when it loads."""
    verifier, device = traits.get(Kind.VERIFIER), config.runtime.device.partition(":")[0]
    if verifier is None or verifier.devices is None or device in ("auto", *verifier.devices):
        return []
    assert config.verifier is not None
    others = _working(
        registry, Kind.VERIFIER, lambda other: other.devices is None or device in other.devices
    )
    return [
        Problem(
            config.verifier.where,
            "verifier.use",
            f"{config.verifier.use!r} runs on {_listed(verifier.devices)}, and runtime.device is "
            f"{config.runtime.device!r}",
            tuple(
                filter(
                    None,
                    (f"verifiers for {device}: {others}", verifier.unsupported_device_hint or ""),
                )
            ),
        )
    ]


def _graphs(config: PipelineConfig, traits: dict[Kind, Any], registry: Registry) -> list[Problem]:
    """Where graphs must be captured there are a GPU and kernels that read lengths on it."""
    if config.runtime.graphs != "on":
        return []
    verifier, device = traits.get(Kind.VERIFIER), config.runtime.device.partition(":")[0]
    where = config.verifier.where if config.verifier is not None else config.source
    hint = "runtime.graphs: auto captures where it can, off nowhere"
    if device == "cpu":
        message = "graphs are captured on a GPU, and runtime.device is 'cpu'"
        return [Problem(where, "runtime.graphs", message, (hint,))]
    if verifier is None or (verifier.devices is None and verifier.resolve_for_device is None):
        able = _working(registry, Kind.VERIFIER, lambda other: other.devices is not None)
        message = "graphs need a verifier that brings kernels of its own"
        return [Problem(where, "runtime.graphs", message, (f"such verifiers: {able}", hint))]
    return []


def _sizes(config: PipelineConfig, target: TargetConfig, traits: dict[Kind, Any]) -> list[Problem]:
    """The drafter was made for a target of this depth and width, and taps layers that exist."""
    try:
        folder = assets.resolve(target.model, "target")
    except DraftwoodError as error:
        return [_problem(config.source, "target.model", error)]
    drafter = traits.get(Kind.DRAFTER)
    if drafter is None or config.drafter is None:
        return []
    if not isinstance(folder, Path) or not (folder / "config.json").is_file():
        return []
    described = _describe(folder / "config.json")
    where, use = config.drafter.where, config.drafter.use
    problems = []
    layers = described.get("layers")
    if layers is not None:
        taps = [tap for tap in drafter.taps or () if not 0 <= tap < layers]
        if taps:
            message = f"{use!r} reads target layers {_listed(taps)}; {target.model} has "
            problems.append(Problem(where, "drafter", f"{message}0..{layers - 1}"))
    for name, expected, actual in (
        ("layers", drafter.target_layers, layers),
        ("hidden size", drafter.target_hidden_size, described.get("hidden size")),
    ):
        if expected is not None and actual is not None and expected != actual:
            message = f"{use!r} was made for a target of {name} {expected}; "
            problems.append(Problem(where, "drafter", f"{message}{target.model} has {actual}"))
    vocabulary = described.get("vocabulary")
    if vocabulary and drafter.vocab_size and _differ(vocabulary, drafter.vocab_size):
        message = f"{use!r} was made for a vocabulary of {drafter.vocab_size} tokens; "
        problems.append(Problem(where, "drafter", f"{message}{target.model} has {vocabulary}"))
    return problems


def _describe(path: Path) -> dict[str, int]:
    """Layers, hidden size and vocabulary of a config.json, where it says."""
    read = json.loads(path.read_text(encoding="utf-8"))
    read = {**read, **read.get("text_config", {})}
    names = {
        "layers": ("num_hidden_layers", "n_layer"),
        "hidden size": ("hidden_size", "n_embd"),
        "vocabulary": ("vocab_size",),
    }
    return {
        ours: read[theirs]
        for ours, choices in names.items()
        for theirs in choices
        if isinstance(read.get(theirs), int)
    }


def _differ(left: int, right: int) -> bool:
    """Whether two vocabulary sizes cannot be one vocabulary with and without padding rows.

    Padding is to a multiple of at most 128, or under 1% in released models; which tokens they are
    is compared when both are loaded.
    """
    return abs(left - right) > max(128, max(left, right) // 100)


def _working(registry: Registry, kind: Kind, works: Callable[[Any], bool]) -> str:
    """Names of the plugins whose traits, with default options, satisfy `works`."""
    names = []
    for name in registry.names(kind):
        entry = registry.get(kind, name)
        if _has_defaults(entry.plugin):
            try:
                if works(traits_of(entry, entry.plugin.options())):
                    names.append(name)
            except (DraftwoodError, TypeError, ValueError):
                continue
    return ", ".join(names) or "none with default options"


def _has_defaults(plugin: Plugin) -> bool:
    return all(field.default is not attrs.NOTHING for field in attrs.fields(plugin.options))


def _problem(where: str, path: str, error: DraftwoodError) -> Problem:
    """An error's first line is what is wrong; the rest are its hints."""
    message, *hints = str(error).splitlines()
    return Problem(where, path, message, tuple(hint.strip() for hint in hints))


def _listed(items: Any) -> str:
    return ", ".join(map(str, sorted(items)))
