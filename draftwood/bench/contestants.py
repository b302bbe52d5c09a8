"""Who is measured: pipelines, plain decoding of the same target, and Hugging Face's ways."""

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
    """Which of BASELINES to measure. lookup_tokens: most that prompt lookup proposes. assistant:
    a folder or hub name, for hf-assisted."""

    names: tuple[str, ...] = ()
    lookup_tokens: int = 10
    assistant: Path | str | None = None

    def __attrs_post_init__(self) -> None:
        unknown = [name for name in self.names if name not in BASELINES]
        if unknown:
            raise RequestError(f"no baseline {unknown[0]!r}; choices: {', '.join(BASELINES)}")
        if ("hf-assisted" in self.names) != (self.assistant is not None):
            raise RequestError(
                "hf-assisted and an assistant model (--assistant) are given together or not at all"
            )


@frozen(eq=False)
class Contestant:
    """One way of decoding.

    name: unique. plain: name of the plain decoding that it is compared with. hf: of Hugging
    Face's generate, None if that is not measured. parity: its tokens must be plain's. about: JSON
    values that say what it is. decode: (prompt, seed) -> Decoded. machine: what its controller
    knows of the machine by now, None without one.
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


@frozen
class _Setting:
    """What contestants must share to be compared with one plain decoding."""

    target: TargetConfig
    runtime: RuntimeConfig
    generation: GenerationOptions


@define(eq=False)
class _Loader:
    """Loads each target once, and gives each contestant a name of its own."""

    registry: Registry | None
    clock: Callable[[], float]
    models: dict[tuple[TargetConfig, RuntimeConfig], tuple[Target, Any]] = field(factory=dict)
    names: set[str] = field(factory=set)

    def name(self, wanted: str) -> str:
        """`wanted`, or that with a number if it is taken."""
        name, number = wanted, 1
        while name in self.names:
            number += 1
            name = f"{wanted}-{number}"
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
            pipeline.tokenizer = None  # text is made of tokens after the clock has stopped
        return pipeline, tokenizer


def line_up(
    sources: Sequence[str],
    settings: Iterable[str] = (),
    *,
    tokens: int | None = None,
    baselines: Baselines | None = None,
    registry: Registry | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Contestant]:
    """The contestants of a benchmark, loaded: plain decodings, pipelines, baselines.

    sources: builtin names or files. settings: overrides, of all of them. tokens: new tokens per
    prompt, instead of what the pipelines say. Pipelines with equal `target` and `runtime` share
    one loaded model; with equal `generation` too, one plain decoding, which is added where none
    of the sources is plain.
    Raises what `load_pipeline` raises, before any weights load where it can.
    """
    settings = tuple(settings)
    loader = _Loader(registry, clock)
    groups: dict[_Setting, dict[str, PipelineConfig]] = {}
    for source in sources:
        config = _config(source, settings, tokens, registry)
        assert config.target is not None  # no caller brings a model
        key = _Setting(config.target, config.runtime, config.generation)
        groups.setdefault(key, {})[loader.name(Path(source).stem)] = config
    found = [
        contestant
        for members in groups.values()
        for contestant in _group(members, baselines or Baselines(), loader)
    ]
    order = {"plain": 0, "pipeline": 1, "baseline": 2}
    return sorted(found, key=lambda each: order[each.about["kind"]])


def _config(
    source: str, settings: Sequence[str], tokens: int | None, registry: Registry | None
) -> PipelineConfig:
    config = load_config(source, settings, registry=registry)
    # The seeds are the benchmark's: they must not tell two otherwise equal settings apart.
    changes: dict[str, Any] = {"seed": None, "logprobs": False}
    if tokens is not None:
        changes["max_new_tokens"] = tokens
    config = evolve(config, generation=evolve(config.generation, **changes))
    check_composition(config, registry)
    return config


def _group(
    members: dict[str, PipelineConfig], baselines: Baselines, loader: _Loader
) -> Iterator[Contestant]:
    """Everyone who is compared with one plain decoding, that one first."""
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
    """JSON values that say what a pipeline is: its parts, with every option."""
    parts: dict[str, Any] = {"kind": kind, "source": config.source}
    for section in ("target", "generation", "runtime"):
        parts[section] = asdict(getattr(config, section))
    for plugin in Kind:
        part = config.component(plugin)
        parts[plugin.value] = part and {"use": part.use, "options": asdict(part.options)}
    values: dict[str, Any] = json.loads(json.dumps(parts, default=str))
    return values


def _seed_parity(config: PipelineConfig) -> bool:
    """Whether a seed gives plain decoding's tokens. Pipelines without a verifier have `match`."""
    if config.verifier is None:
        return True
    traits = config.verifier.plugin.traits(config.verifier.options)
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
        got = generate(prompt, seed)
        return Decoded(got.tokens, got.seconds, got.first_seconds, got.first_tokens)

    return decode_by_hf
