"""Reads a pipeline from YAML, a mapping or a builtin name as one frozen, validated configuration.

Every problem of a document is reported at once, each at its file, line and column. Imports no
torch.
"""

import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TypeVar

import attrs
from attrs import field, frozen
from attrs.validators import min_len, optional

from draftwood.core.config.defaults import default_controller, default_tree, default_verifier
from draftwood.core.config.document import Node, apply_settings, from_python, merge, read_file
from draftwood.core.config.structure import INVALID, build, shown, structure, unknown_key
from draftwood.core.errors import ConfigError, DraftwoodError, Problem
from draftwood.core.kernels.available import KernelsName
from draftwood.core.options import GenerationOptions
from draftwood.core.registry.loader import installed
from draftwood.core.registry.option_types import Nested
from draftwood.core.registry.plugin import Kind
from draftwood.core.registry.registry import Refusal, Registered, Registry
from draftwood.core.suggestions import KEYS, did_you_mean

T = TypeVar("T")

BUILTIN = "builtin"
"""The bundled model or checkpoint; `builtin:NAME` names another bundled one."""


MAX_THREADS = 4096


def _threads(_: Any, attribute: "attrs.Attribute[Any]", value: int | str) -> None:
    if isinstance(value, int) and not 1 <= value <= MAX_THREADS:
        raise ValueError(f"'{attribute.name}' must be auto or 1..{MAX_THREADS}: {value}")


def _device(_: Any, attribute: "attrs.Attribute[Any]", value: str) -> None:
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,4})?", value):
        near = did_you_mean(value.partition(":")[0], ("auto", "cpu", "cuda"))
        message = f"'{attribute.name}' must be auto, cpu, cuda or cuda:N: {value[:80]!r}{near}"
        raise ValueError(message)


@frozen
class TargetConfig:
    """The model whose distribution is preserved.

    Attributes:
        model: A folder, a hub name, a GGUF file, or `builtin`.
        revision: Revision of a hub name.
        gguf_file: Name of a GGUF file in that folder or repository; its weights are unpacked.
        trust_remote_code: Run code that comes with the checkpoint.
        allow_pickle: Read weights that are not safetensors.
    """

    model: Path | str
    revision: str | None = field(default=None, validator=optional(min_len(1)))
    gguf_file: str | None = field(default=None, validator=optional(min_len(1)))
    trust_remote_code: bool = False
    allow_pickle: bool = False


@frozen
class RuntimeConfig:
    """Where and how the models run.

    Attributes:
        device: auto (a GPU if there is one), cpu, cuda, or cuda:N. Scores and draws are in
            float64, which other accelerators may lack.
        dtype: Data type of the weights; auto is the checkpoint's own.
        attention: transformers' implementation; auto is sdpa where the model has it, else eager.
        threads: Threads of torch, for the whole process; auto leaves torch's choice.
        parallel: How the target is split over several devices: tensor splits each layer over
            the processes that torchrun started, as the model's own plan says; layers puts whole
            layers on all GPUs that one process sees (needs accelerate).
        graphs: Capture forwards as CUDA graphs of fixed sizes: auto where that works, on raises
            an error where it does not.
        kernels: What computes the target's attention and compacts its cache: triton, torch (the
            model's own attention), or auto: triton if the verifier is triton or graphs are on,
            and on a GPU where it can compute the model's attention, else torch.
    """

    device: str = field(default="auto", validator=_device)
    dtype: Literal["auto", "float32", "bfloat16", "float16", "float64"] = "auto"
    attention: Literal["auto", "sdpa", "eager"] = "auto"
    threads: Literal["auto"] | int = field(default="auto", validator=_threads)
    parallel: Literal["none", "tensor", "layers"] = "none"
    graphs: Literal["auto", "on", "off"] = "off"
    kernels: KernelsName = "auto"


@frozen
class Component:
    """One plugin of a pipeline with its options.

    Attributes:
        entry: The plugin and its distribution.
        options: An instance of the plugin's options class.
        where: Place of its `use`, for errors about the composition.
        by_default: Whether the document left it out.
    """

    entry: Registered
    options: Any
    where: str = field(eq=False)
    by_default: bool = field(default=False, eq=False)

    @property
    def use(self) -> str:
        """The plugin's name."""
        return self.entry.plugin.name

    @property
    def traits(self) -> Any:
        """The plugin's traits for its options; see `Registered.traits`."""
        return self.entry.traits(self.options)

    def build(self) -> Any:
        """The plugin's object; see `Registered.build`."""
        return self.entry.build(self.options)


@frozen
class PipelineConfig:
    """A validated pipeline; `compose.check_composition` says whether its parts fit together.

    Attributes:
        source: The file, the builtin name or "<mapping>" that it was read from.
        target: The model; None only where the caller brings one.
        drafter: The drafter; None for plain decoding, like tree and controller.
        tree: The tree policy.
        controller: The budget controller.
        verifier: The verifier; None for the default of plain decoding.
        generation: Defaults of a request.
        runtime: Where and how the models run.
    """

    source: str
    target: TargetConfig | None
    drafter: Component | None
    tree: Component | None
    controller: Component | None
    verifier: Component | None
    generation: GenerationOptions
    runtime: RuntimeConfig

    def component(self, kind: Kind) -> Component | None:
        """The part of a kind."""
        part: Component | None = getattr(self, kind.value)
        return part

    @property
    def kernels(self) -> KernelsName:
        """`runtime.kernels`; `auto` only where neither the verifier nor graphs need a kind."""
        runtime, verifier = self.runtime, self.verifier
        if runtime.kernels != "auto":
            return runtime.kernels
        if runtime.graphs == "on":
            return "triton"
        return (verifier and verifier.traits.kernels) or "auto"


SECTIONS = (*(field.name for field in attrs.fields(PipelineConfig) if field.name != "source"),)


def builtin_pipelines() -> dict[str, Path]:
    """The builtin pipelines: name -> file, in natural order of names."""
    folder = Path(str(files("draftwood") / "pipelines"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"), key=_natural_order)}


def load_config(
    source: str | Path | Mapping[str, Any],
    settings: Iterable[str] = (),
    *,
    registry: Registry | None = None,
    target_given: bool = False,
) -> PipelineConfig:
    """Read, merge and validate a pipeline.

    Args:
        source: A builtin name, a file, or a mapping.
        settings: "section.option=value"; all apply before validation.
        registry: The plugins to choose from; the installed ones by default.
        target_given: Whether the caller brings a model, so that the document needs none.

    Raises:
        ConfigError: With every problem found.
    """
    registry = registry or installed()
    name = "<mapping>" if isinstance(source, Mapping) else str(source)
    document = apply_settings(_read(source), settings)
    if not document.is_mapping:
        message = f"expected a mapping with {', '.join(SECTIONS)}; got {shown(document)}"
        raise ConfigError([Problem(document.where, "", message)])
    problems: list[Problem] = []
    parts = dict.fromkeys(SECTIONS)
    for key, node in document.data.items():
        if key == "extends":
            message = "can only be written in the file"
            problems.append(Problem(node.where, key, message))
        elif key not in SECTIONS:
            problems.append(unknown_key(key, node, "", (*SECTIONS, "extends")))
        elif node.data is not None:
            parts[key] = _section(key, node, registry, problems)
    if parts["target"] is None and not target_given:
        message = "is required: the model whose output is preserved"
        hint = "example: target: {model: builtin}"
        problems.append(Problem(document.where, "target", message, (hint,)))
    _raise(problems)
    parts["generation"] = parts["generation"] or GenerationOptions()
    parts["runtime"] = parts["runtime"] or RuntimeConfig()
    config = PipelineConfig(source=name, **parts)  # type: ignore[arg-type]
    return config if config.drafter is None else _with_defaults(config, registry)


def target_config(model: str | Path) -> TargetConfig:
    """The target that a caller names: a folder, a hub name, or `builtin`.

    Raises:
        ConfigError: There is no such folder.
    """
    return as_options(TargetConfig, from_python({"model": model}, "target"))


def load_options(
    cls: type[T], source: str | Path | Mapping[str, Any], settings: Iterable[str] = ()
) -> T:
    """Any frozen attrs class of options from a YAML file or mapping, read like a pipeline.

    Raises:
        ConfigError: With every problem found.
    """
    document = from_python(source) if isinstance(source, Mapping) else read_file(Path(source))
    return as_options(cls, apply_settings(document, settings))


def as_options(cls: type[T], document: Node) -> T:
    """`load_options` from a document that has been read, which may say the class to choose."""
    problems: list[Problem] = []
    value: T = structure(Nested(cls), document, "", problems)
    _raise(problems)
    return value


def _raise(problems: list[Problem]) -> None:
    if problems:
        raise ConfigError(sorted(problems, key=_order))


def _with_defaults(config: PipelineConfig, registry: Registry) -> PipelineConfig:
    """The pipeline with the parts that the document leaves out beside its drafter."""
    assert config.drafter is not None
    base = config.drafter

    def traits(kind: Kind) -> Any:
        """None where there is no part, or none that gives traits: the composition check says so."""
        part = config.component(kind)
        try:
            return None if part is None else part.traits
        except DraftwoodError:
            return None

    def add(kind: Kind, document: Mapping[str, Any]) -> None:
        nonlocal config
        if config.component(kind) is not None:
            return
        node, problems = from_python(document, base.where, builtin=True), list[Problem]()
        part = _component(kind, node, registry, problems)
        _raise(problems)
        config = attrs.evolve(config, **{kind.value: attrs.evolve(part, by_default=True)})

    drafter = traits(Kind.DRAFTER)
    add(Kind.TREE, default_tree(drafter, traits(Kind.VERIFIER)))
    tree = traits(Kind.TREE)
    add(Kind.CONTROLLER, default_controller(drafter, tree))
    add(Kind.VERIFIER, default_verifier(tree, config.generation))
    return config


def _section(key: str, node: Node, registry: Registry, problems: list[Problem]) -> Any:
    match key:
        case "target":
            return build(TargetConfig, node, key, problems)
        case "generation":
            return build(GenerationOptions, node, key, problems)
        case "runtime":
            return build(RuntimeConfig, node, key, problems)
        case _:
            return _component(Kind(key), node, registry, problems)


def _component(kind: Kind, node: Node, registry: Registry, problems: list[Problem]) -> Any:
    """The plugin that `use` names, with its options, or INVALID."""
    if not node.is_mapping:
        hint = f"write {kind}: {{use: {node.data}}}" if isinstance(node.data, str) else ""
        message = f"expected a mapping with `use`, got {shown(node)}"
        problems.append(Problem(node.where, kind, message, (hint,) if hint else ()))
        return INVALID
    use = node.data.get("use")
    if use is None or not isinstance(use.data, str):
        names = ", ".join(registry.names(kind)) or "none"
        message = f"`use` must name a {kind}, got {shown(use) if use else 'no `use`'}"
        other = next((key for key in node.data if KEYS.get(key, ("",))[0] == "use"), None)
        message += f"; did you mean `use` by {other!r}?" if use is None and other else ""
        where = (use or node).where
        problems.append(Problem(where, f"{kind}.use", message, (f"installed: {names}",)))
        return INVALID
    entry = registry.find(kind, use.data, bundled_only=use.builtin)
    if isinstance(entry, Refusal):
        problems.append(Problem(use.where, f"{kind}.use", entry.message, entry.hints))
        return INVALID
    options = build(
        entry.plugin.options,
        node,
        kind,
        problems,
        label=use.data,
        skip="use",
        registry=registry,
    )
    return INVALID if options is INVALID else Component(entry, options, use.where)


def _read(source: str | Path | Mapping[str, Any], inside: tuple[Path, ...] = ()) -> Node:
    """A document merged with what it extends.

    Args:
        source: What to read.
        inside: The files being read, to find a cycle.
    """
    if isinstance(source, Mapping):
        document = from_python(source)
    else:
        path, builtin = _locate(source)
        if path.resolve() in inside:
            message = "extends itself: " + " -> ".join(p.name for p in (*inside, path))
            raise ConfigError([Problem(str(source), "extends", message)])
        inside = (*inside, path.resolve())
        shown_as = f"{source} (builtin)" if builtin else str(source)
        document = read_file(path, shown=shown_as, builtin=builtin)
    if not document.is_mapping or "extends" not in document.data:
        return document
    rest = {key: node for key, node in document.data.items() if key != "extends"}
    base = document.data["extends"]
    if not isinstance(base.data, (str, Path)):
        message = f"expected a builtin name or a path, got {shown(base)}"
        raise ConfigError([Problem(base.where, "extends", message)])
    parent = base.data
    if str(parent) not in builtin_pipelines():
        file = _existing(Path(parent), base.base)
        if file is None:
            raise ConfigError([_no_pipeline(str(base.data), base.where, "extends")])
        parent = file
    return merge(_read(parent, inside), attrs.evolve(document, data=rest))


def _locate(source: str | Path) -> tuple[Path, bool]:
    """The file of a pipeline argument, and whether it is a builtin one."""
    builtin = builtin_pipelines()
    if isinstance(source, str) and source in builtin:
        return builtin[source], True
    if (path := _existing(Path(source))) is None:
        raise ConfigError([_no_pipeline(str(source), "", "")])
    return path, False


def _existing(path: Path, base: Path = Path()) -> Path | None:
    """The file, relative to `base`; None if there is none, or none can have this name."""
    try:
        path = base / path.expanduser()
        return path if path.is_file() else None
    except (OSError, ValueError, RuntimeError):
        return None


def _no_pipeline(name: str, where: str, key: str) -> Problem:
    builtin = list(builtin_pipelines())
    message = f"{name[:200]!r} is neither a builtin pipeline nor a file"
    message += did_you_mean(name, builtin)
    return Problem(where, key, message, (f"builtin: {', '.join(builtin)}",))


def _natural_order(path: Path) -> list[tuple[int, str]]:
    """tree-8 before tree-16."""
    parts = re.split(r"(\d+)", path.stem)
    return [(int(part), "") if part.isdigit() else (0, part) for part in parts]


def _order(problem: Problem) -> tuple[str, int, int]:
    """In the order of the document."""
    place = re.fullmatch(r"(.*?):(\d+):(\d+)", problem.where)
    return (place[1], int(place[2]), int(place[3])) if place else (problem.where, 0, 0)
