"""Whether the parts of a pipeline work together, decided before any weights load.

Parts that are valid one by one can still be wrong together: a verifier that is not exact for the
tree's draws would change the output. The check reads traits and config.json files only.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from draftwood.core import assets
from draftwood.core.checkpoints import read_config
from draftwood.core.config.pipeline import PipelineConfig, TargetConfig
from draftwood.core.errors import CheckpointError, CompositionError, DraftwoodError, Problem
from draftwood.core.hub import cached_file
from draftwood.core.kernels.available import interpreting
from draftwood.core.registry.loader import installed
from draftwood.core.registry.plugin import Kind
from draftwood.core.registry.registry import Registry

ATTENTION_LAYERS = ("full_attention", "sliding_attention")
"""Kinds of layers whose state can be rolled back, by the names of `layer_types`."""

RECURRENT = frozenset(
    (
        "bamba",
        "falcon_h1",
        "falcon_mamba",
        "granitemoehybrid",
        "jamba",
        "mamba",
        "mamba2",
        "nemotron_h",
        "recurrent_gemma",
        "rwkv",
        "xlstm",
        "zamba",
        "zamba2",
    )
)
"""Model types that keep a recurrent state whatever their `layer_types` say."""


def check_composition(config: PipelineConfig, registry: Registry | None = None) -> None:
    """Refuse a pipeline whose parts do not work together.

    Reads the target's config.json if it is on this machine; any other model is checked when it
    loads.

    Args:
        config: The pipeline.
        registry: The plugins to suggest; the installed ones by default.

    Raises:
        CompositionError: With every reason.
    """
    registry = registry or installed()
    problems = _without_drafter(config)
    traits: dict[Kind, Any] = {}
    for kind in Kind:
        if part := config.component(kind):
            try:
                traits[kind] = part.traits
            except DraftwoodError as error:
                problems.append(_problem(part.where, kind, error))
    for check in (_draws, _forms, _device, _kernels, _graphs):
        problems += check(config, traits, registry)
    if config.target is not None:
        refused, values = _target(config, config.target)
        problems += refused or _sizes(config, config.target, traits, values)
    if problems:
        raise CompositionError(problems)


def check_factories(config: PipelineConfig) -> None:
    """Import the factories of the plugins that a pipeline uses; no weights load.

    Raises:
        CompositionError: With every factory that cannot be imported, each naming plugin and
            distribution.
    """
    problems = []
    for kind in Kind:
        if part := config.component(kind):
            try:
                part.entry.load_factory()
            except DraftwoodError as error:
                problems.append(_problem(part.where, f"{kind}.use", error))
    if problems:
        raise CompositionError(problems)


def remarks(config: PipelineConfig) -> list[str]:
    """What is allowed and useful to know, a sentence each."""
    verifier, controller = config.verifier, config.controller
    if verifier is None:
        return []
    traits, sentences = verifier.traits, []
    if resolve := traits.resolve_for_device:
        device = config.runtime.device.partition(":")[0]
        if device == "auto":
            choices = f"{resolve('cuda')!r} on a GPU, {resolve('cpu')!r} on the CPU"
            sentences.append(
                f"verifier {verifier.use!r} picks when the target is loaded: {choices}"
            )
        else:
            sentences.append(f"verifier {verifier.use!r} picked {resolve(device)!r} for {device}")
    sampling = not config.generation.sampling.greedy
    if sampling and not traits.seed_parity and controller and controller.traits.timed:
        sentences.append(
            f"text is not reproducible from the seed: budgets of {controller.use!r} follow "
            f"measured times, and what {verifier.use!r} draws depends on the tree; the "
            "distribution of the output is exact nevertheless"
        )
    return sentences


def _without_drafter(config: PipelineConfig) -> list[Problem]:
    """A tree and a controller need a drafter."""
    if config.drafter is not None:
        return []
    hint = "name a drafter, or leave out {kind}: plain decoding needs the target alone"
    return [
        Problem(
            part.where,
            kind,
            f"{part.use!r} has nothing to work on: there is no drafter",
            (hint.format(kind=kind),),
        )
        for kind in (Kind.TREE, Kind.CONTROLLER)
        if (part := config.component(kind)) is not None
    ]


def _draws(config: PipelineConfig, traits: dict[Kind, Any], registry: Registry) -> list[Problem]:
    """The verifier is exact for the way in which the tree's nodes are chosen."""
    tree, verifier = traits.get(Kind.TREE), traits.get(Kind.VERIFIER)
    if tree is None or verifier is None or tree.draws in verifier.draws:
        return []
    assert config.tree is not None
    assert config.verifier is not None
    verifiers = _working(registry, Kind.VERIFIER, lambda other: tree.draws in other.draws)
    trees = _working(registry, Kind.TREE, lambda other: other.draws in verifier.draws)
    message = (
        f"{config.verifier.use!r} would change the output: it verifies "
        f"{_listed(verifier.draws)} trees, and those of {config.tree.use!r} are {tree.draws}"
    )
    hints = (
        f"verifiers for {tree.draws} trees: {verifiers}",
        f"trees that {config.verifier.use!r} verifies: {trees}",
    )
    return [Problem(config.verifier.where, "verifier.use", message, hints)]


def _forms(config: PipelineConfig, traits: dict[Kind, Any], registry: Registry) -> list[Problem]:
    """The tree policy can grow from the form of the drafter's proposals."""
    tree, drafter = traits.get(Kind.TREE), traits.get(Kind.DRAFTER)
    if tree is None or drafter is None or tree.forms is None or drafter.form in tree.forms:
        return []
    assert config.tree is not None
    assert config.drafter is not None
    trees = _working(
        registry, Kind.TREE, lambda other: other.forms is None or drafter.form in other.forms
    )
    drafters = _working(registry, Kind.DRAFTER, lambda other: other.form in tree.forms)
    message = (
        f"{config.tree.use!r} grows from {_listed(tree.forms)} proposals, and those of drafter "
        f"{config.drafter.use!r} are {drafter.form}"
    )
    hints = (
        f"trees for {drafter.form} proposals: {trees}",
        f"drafters for {config.tree.use!r}: {drafters}",
    )
    return [Problem(config.tree.where, "tree.use", message, hints)]


def _device(config: PipelineConfig, traits: dict[Kind, Any], registry: Registry) -> list[Problem]:
    """The verifier runs on the pipeline's device; `auto` is resolved when the target loads."""
    verifier, device = traits.get(Kind.VERIFIER), config.runtime.device.partition(":")[0]
    if verifier is None or verifier.devices is None or device in ("auto", *verifier.devices):
        return []
    assert config.verifier is not None
    others = _working(
        registry, Kind.VERIFIER, lambda other: other.devices is None or device in other.devices
    )
    message = (
        f"{config.verifier.use!r} runs on {_listed(verifier.devices)}, and runtime.device is "
        f"{config.runtime.device!r}"
    )
    hints = [f"verifiers for {device}: {others}", verifier.unsupported_device_hint]
    return [Problem(config.verifier.where, "verifier.use", message, (*filter(None, hints),))]


def _kernels(config: PipelineConfig, traits: dict[Kind, Any], registry: Registry) -> list[Problem]:
    """The kernels that are required run on the pipeline's device."""
    device = config.runtime.device.partition(":")[0]
    if config.runtime.kernels != "triton" or device != "cpu" or interpreting():
        return []
    message = "Triton kernels run on a GPU, and runtime.device is 'cpu'"
    hints = (
        "runtime.kernels: auto uses them on a GPU, torch nowhere",
        "TRITON_INTERPRET=1 in the environment runs them on any device, in Triton's interpreter, "
        "which is slow",
    )
    return [Problem(config.source, "runtime.kernels", message, hints)]


def _graphs(config: PipelineConfig, traits: dict[Kind, Any], registry: Registry) -> list[Problem]:
    """Where graphs are required there are a GPU and kernels that read lengths on it."""
    if config.runtime.graphs != "on":
        return []
    hint = "runtime.graphs: auto captures where it can, off nowhere"
    if config.runtime.device == "cpu":
        message = "graphs are captured on a GPU, and runtime.device is 'cpu'"
    elif config.runtime.kernels == "torch":
        message = "graphs need Triton kernels, and runtime.kernels is 'torch'"
    else:
        return []
    return [Problem(config.source, "runtime.graphs", message, (hint,))]


def _target(config: PipelineConfig, target: TargetConfig) -> tuple[list[Problem], dict[str, Any]]:
    """Whether the target's config.json is that of a model that can be a target, and its values.

    It is read from a folder, a bundled model or the hub's cache; nothing is downloaded.
    """
    try:
        path = _target_config(target)
        values = {} if path is None else read_config(path)
    except DraftwoodError as error:
        return [_problem(config.source, "target.model", error)], {}
    text = values.get("text_config")
    values = {**values, **text} if isinstance(text, dict) else values
    if values and (reason := _refusal(values)):
        return [Problem(config.source, "target.model", f"{target.model}: {reason}")], values
    return [], values


def _target_config(target: TargetConfig) -> Path | None:
    """The target's config.json; None if it is not on this machine, or is inside a GGUF file."""
    location = assets.resolve(target.model, "target")
    if target.gguf_file or str(location).endswith(".gguf"):
        return None
    if not isinstance(location, Path) and not Path(location).is_dir():
        try:
            return cached_file(location, target.revision)
        except ImportError:  # without huggingface_hub, which comes with transformers
            return None
    path = Path(location) / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{location} has no config.json: it is not a model's folder")
    return path


def _refusal(values: Mapping[str, Any]) -> str | None:
    """Why a model with this config.json cannot be a target; None where only its code can say."""
    kind, layers = values.get("model_type"), values.get("layer_types")
    if values.get("is_encoder_decoder"):
        return "it is an encoder-decoder; a target is a decoder alone"
    if str(kind) in RECURRENT:
        return f"{kind} keeps a recurrent state, which cannot be rolled back to an accepted prefix"
    listed = set(map(str, layers)) if isinstance(layers, list) else set()
    if unsupported := sorted(listed - set(ATTENTION_LAYERS)):
        return (
            f"it has layers of kind {', '.join(unsupported)}; only "
            f"{' and '.join(ATTENTION_LAYERS)} can be rolled back and masked as trees"
        )
    names = values.get("architectures")
    heads = [str(name).partition("For")[2] for name in names] if isinstance(names, list) else []
    if heads and all(heads) and not set(heads) & {"CausalLM", "ConditionalGeneration"}:
        return f"{', '.join(map(str, names or ()))} is no causal language model"
    return None


def _sizes(
    config: PipelineConfig,
    target: TargetConfig,
    traits: dict[Kind, Any],
    values: Mapping[str, Any],
) -> list[Problem]:
    """The drafter fits the target's depth, width and vocabulary, and taps layers that exist."""
    drafter = traits.get(Kind.DRAFTER)
    if drafter is None or config.drafter is None:
        return []
    sizes = _read_sizes(values)
    where, use = config.drafter.where, config.drafter.use
    problems = []
    layers = sizes.get("layers")
    if layers is not None:
        taps = [tap for tap in drafter.taps or () if not 0 <= tap < layers]
        if taps:
            message = f"{use!r} reads target layers {_listed(taps)}; {target.model} has "
            problems.append(Problem(where, "drafter", f"{message}0..{layers - 1}"))
    for name, expected, actual in (
        ("layers", drafter.target_layers, layers),
        ("hidden size", drafter.target_hidden_size, sizes.get("hidden size")),
    ):
        if expected is not None and actual is not None and expected != actual:
            message = f"{use!r} was made for a target of {name} {expected}; "
            problems.append(Problem(where, "drafter", f"{message}{target.model} has {actual}"))
    vocabulary = sizes.get("vocabulary")
    if vocabulary and drafter.vocab_size and _differ(vocabulary, drafter.vocab_size):
        message = f"{use!r} was made for a vocabulary of {drafter.vocab_size} tokens; "
        problems.append(Problem(where, "drafter", f"{message}{target.model} has {vocabulary}"))
    return problems


def _read_sizes(values: Mapping[str, Any]) -> dict[str, int]:
    """Layers, hidden size and vocabulary of a config.json, as far as it has them."""
    names = {
        "layers": ("num_hidden_layers", "n_layer"),
        "hidden size": ("hidden_size", "n_embd"),
        "vocabulary": ("vocab_size",),
    }
    return {
        ours: values[theirs]
        for ours, choices in names.items()
        for theirs in choices
        if isinstance(values.get(theirs), int)
    }


def _differ(left: int, right: int) -> bool:
    """Whether two sizes are too different for one vocabulary with and without padding rows.

    Released models pad to a multiple of at most 128, or by less than 1%. The tokens themselves are
    compared when both models are loaded.
    """
    return abs(left - right) > max(128, max(left, right) // 100)


def _working(registry: Registry, kind: Kind, works: Callable[[Any], bool]) -> str:
    """Names of the plugins whose traits, with default options, satisfy `works`."""
    names = []
    for name in registry.names(kind):
        entry = registry.get(kind, name)
        fields = attrs.fields(entry.plugin.options)
        if all(field.default is not attrs.NOTHING for field in fields):
            try:
                if works(entry.traits(entry.plugin.options())):
                    names.append(name)
            except (DraftwoodError, TypeError, ValueError):
                continue
    return ", ".join(names) or "none with default options"


def _problem(where: str, path: str, error: DraftwoodError) -> Problem:
    """A problem from an error, whose first line is the message and the rest the hints."""
    message, *hints = str(error).splitlines()
    return Problem(where, path, message, tuple(hint.strip() for hint in hints))


def _listed(items: Any) -> str:
    return ", ".join(map(str, sorted(items)))
