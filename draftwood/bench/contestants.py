"""What is measured: pipelines, plain decoding of the same target, and Hugging Face's methods."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from attrs import asdict, define, evolve, field, frozen

from draftwood.bench.decoding import Decoded, decode
from draftwood.core.assets import resolve
from draftwood.core.build import load_pipeline
from draftwood.core.config.compose import check_composition
from draftwood.core.config.pipeline import PipelineConfig, RuntimeConfig, TargetConfig, load_config
from draftwood.core.errors import RequestError
from draftwood.core.generation import Pipeline
from draftwood.core.interfaces import Target
from draftwood.core.options import GenerationOptions
from draftwood.core.registry.plugin import Kind, VerifierTraits
from draftwood.core.registry.registry import Registry

BASELINES = ("hf-generate", "hf-prompt-lookup", "hf-assisted")
"""transformers' own decoding: plain, by prompt lookup, with a small assistant model."""


@frozen
class Baselines:
    """Which of BASELINES to measure.

    Attributes:
        names: Of BASELINES.
        lookup_tokens: Most tokens that prompt lookup proposes.
        assistant: Folder or hub name of the model for hf-assisted.
    """

    names: tuple[str, ...] = ()
    lookup_tokens: int = 10
    assistant: Path | str | None = None

    def __attrs_post_init__(self) -> None:
        unknown = [name for name in self.names if name not in BASELINES]
        if unknown:
            raise RequestError(f"no baseline {unknown[0]!r}; choices: {', '.join(BASELINES)}")
        if ("hf-assisted" in self.names) != (self.assistant is not None):
            raise RequestError(
                "hf-assisted and an assistant model (--assistant) must be given together"
            )


@frozen(eq=False)
class Contestant:
    """One way of decoding.

    Attributes:
        name: Unique.
        plain: Name of the plain decoding that it is compared with.
        hf: Name of Hugging Face's generate; None if that is not measured.
        parity: Whether its tokens must be plain decoding's.
        about: JSON values that describe it.
        target: The model.
        tokenizer: None without one.
        decode: Called with a prompt and a seed.
        machine: The current machine state of its controller; None without one.
    """

    name: str
    plain: str
    hf: str | None
    parity: bool
    about: Mapping[str, Any]
    target: Target
    tokenizer: Any | None
    decode: Callable[[Sequence[int], int], Decoded]
    machine: Callable[[], Any] = lambda: None


@define(eq=False)
class _Loader:
    """Loads each target once, and gives each contestant a unique name."""

    registry: Registry | None
    clock: Callable[[], float]
    models: dict[tuple[TargetConfig, RuntimeConfig], tuple[Target, Any]] = field(factory=dict)
    names: set[str] = field(factory=set)

    def name(self, preferred: str) -> str:
        """The preferred name, with a number if it is taken."""
        name, number = preferred, 1
        while name in self.names:
            number += 1
            name = f"{preferred}-{number}"
        self.names.add(name)
        return name

    def load(self, config: PipelineConfig) -> tuple[Pipeline, Any | None]:
        """The pipeline and its target's tokenizer."""
        assert config.target is not None
        key = (config.target, config.runtime)
        target, tokenizer = self.models.get(key, (None, None))
        pipeline = load_pipeline(
            config, target=target, tokenizer=tokenizer, registry=self.registry, clock=self.clock
        )
        self.models.setdefault(key, (pipeline.target, pipeline.tokenizer))
        tokenizer = pipeline.tokenizer
        if not config.generation.stop_strings:
            pipeline.tokenizer = None  # tokens are decoded to text after the clock has stopped
        return pipeline, tokenizer


def load_contestants(
    sources: Sequence[str],
    settings: Iterable[str] = (),
    *,
    tokens: int | None = None,
    baselines: Baselines | None = None,
    registry: Registry | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Contestant]:
    """Load the contestants of a benchmark: plain decodings, pipelines, baselines.

    Pipelines with equal `target` and `runtime` share one loaded model. With equal `generation` too
    they share one plain decoding, which is added if none of the sources is plain.

    Args:
        sources: Builtin names or files.
        settings: Overrides for all of them.
        tokens: New tokens per prompt; None for what the pipelines say.
        baselines: Hugging Face's methods to measure.
        registry: Of plugins; None for the installed ones.
        clock: Seconds.

    Raises:
        DraftwoodError: As `load_pipeline`, before any weights load if possible.
    """
    settings = tuple(settings)
    loader = _Loader(registry, clock)
    # Contestants with an equal key are compared with one plain decoding.
    groups: dict[tuple[Any, ...], dict[str, PipelineConfig]] = {}
    for source in sources:
        config = _config(source, settings, tokens, registry)
        key = (config.target, config.runtime, config.generation)
        groups.setdefault(key, {})[loader.name(Path(source).stem)] = config
    contestants = [
        contestant
        for members in groups.values()
        for contestant in _group(members, baselines or Baselines(), loader)
    ]
    order = {"plain": 0, "pipeline": 1, "baseline": 2}
    return sorted(contestants, key=lambda each: order[each.about["kind"]])


def _config(
    source: str, settings: Sequence[str], tokens: int | None, registry: Registry | None
) -> PipelineConfig:
    config = load_config(source, settings, registry=registry)
    # Seeds come from the benchmark: two settings that differ in them are equal.
    changes: dict[str, Any] = {"seed": None, "logprobs": False}
    if tokens is not None:
        changes["max_new_tokens"] = tokens
    config = evolve(config, generation=evolve(config.generation, **changes))
    check_composition(config, registry)
    return config


def _group(
    members: dict[str, PipelineConfig], baselines: Baselines, loader: _Loader
) -> Iterator[Contestant]:
    """All that is compared with one plain decoding, that one first."""
    plain = next((name for name, config in members.items() if config.drafter is None), None)
    if plain is None:
        plain = loader.name("plain")
        alone = evolve(
            next(iter(members.values())), drafter=None, tree=None, controller=None, verifier=None
        )
        members = {plain: alone, **members}
    names = {kind: loader.name(kind) for kind in baselines.names}
    hf = names.get("hf-generate")
    for name, config in members.items():
        pipeline, tokenizer = loader.load(config)
        yield Contestant(
            name,
            plain,
            hf,
            config.generation.greedy or _seed_parity(config),
            about(config, "plain" if name == plain else "pipeline"),
            pipeline.target,
            tokenizer,
            partial(decode, pipeline, clock=loader.clock),
            partial(getattr, pipeline.engine, "machine"),
        )
    config = members[plain]
    for kind, name in names.items():
        yield Contestant(
            name,
            plain,
            hf,
            config.generation.greedy,
            {**about(config, "baseline"), "method": kind},
            pipeline.target,
            tokenizer,
            _hf(kind, pipeline.target, tokenizer, config.generation, baselines, loader.clock),
        )


def about(config: PipelineConfig, kind: str) -> dict[str, Any]:
    """JSON values that describe a pipeline: its parts, with every option."""
    parts: dict[str, Any] = {"kind": kind, "source": config.source}
    for section in ("target", "generation", "runtime"):
        parts[section] = asdict(getattr(config, section))
    for plugin in Kind:
        part = config.component(plugin)
        parts[plugin.value] = part and {"use": part.use, "options": asdict(part.options)}
    values: dict[str, Any] = json.loads(json.dumps(parts, default=str))
    return values


def _seed_parity(config: PipelineConfig) -> bool:
    """Whether a seed gives plain decoding's tokens, as with `match`, the default verifier."""
    if config.verifier is None:
        return True
    traits = config.verifier.traits
    assert isinstance(traits, VerifierTraits)
    return traits.seed_parity


def _hf(
    kind: str,
    target: Target,
    tokenizer: Any | None,
    options: GenerationOptions,
    baselines: Baselines,
    clock: Callable[[], float],
) -> Callable[[Sequence[int], int], Decoded]:
    from draftwood.core.hf.baselines import HFGenerate, load_assistant

    extra: dict[str, Any] = {}
    if kind == "hf-prompt-lookup":
        extra["prompt_lookup_num_tokens"] = baselines.lookup_tokens
    elif kind == "hf-assisted":
        assert baselines.assistant is not None
        extra["assistant_model"] = load_assistant(resolve(baselines.assistant, "target"), target)
    generate = HFGenerate(target, options, tokenizer=tokenizer, clock=clock, **extra)

    def decode_by_hf(prompt: Sequence[int], seed: int) -> Decoded:
        output = generate(prompt, seed)
        return Decoded(output.tokens, output.seconds, output.first_seconds, output.first_tokens)

    return decode_by_hf
