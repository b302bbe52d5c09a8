"""From a validated configuration to a pipeline that decodes."""

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from attrs import evolve

from draftwood.core.assets import resolve
from draftwood.core.config.compose import check_composition
from draftwood.core.config.pipeline import PipelineConfig, TargetConfig, load_config, target_config
from draftwood.core.generation import Pipeline
from draftwood.core.interfaces import Target
from draftwood.core.registry.loader import installed
from draftwood.core.registry.plugin import Kind
from draftwood.core.registry.registry import Registry


def load_pipeline(
    source: str | Path | Mapping[str, Any] | PipelineConfig,
    settings: Iterable[str] = (),
    *,
    target: Any | None = None,
    tokenizer: Any | None = None,
    registry: Registry | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Pipeline:
    """A pipeline from a builtin name, a YAML file or a mapping.

    Args:
        source: What to load.
        settings: Overrides, such as "tree.max_nodes=64".
        target: A model or `Target` to use instead of the document's, with its `tokenizer`; or a
            folder, hub name or "builtin" to load instead.
        tokenizer: To use instead of the target's.
        registry: The plugins to choose from; the installed ones by default.
        clock: Seconds; the only source of time.

    Raises:
        ConfigError: With every problem in the document.
        CompositionError: The parts do not work together. Like ConfigError, before weights load.
        PairingError: The drafter was not made for the target.
        UnsupportedTarget: The model's state cannot be rolled back.
        PluginError: A plugin could not be loaded or bound.
    """
    registry = registry or installed()
    if isinstance(source, PipelineConfig):
        config = source
    else:
        config = load_config(source, settings, registry=registry, target_given=target is not None)
    if isinstance(target, (str, Path)):
        config, target = evolve(config, target=target_config(target)), None
    check_composition(config, registry)
    if target is None:
        assert config.target is not None
        target, tokenizer = _load_target(config, config.target, tokenizer)
    elif not isinstance(target, Target):
        from draftwood.core.hf import wrap_model

        target = wrap_model(target, tokenizer, graphs=config.runtime.graphs)
    parts = {kind: config.component(kind) for kind in Kind}
    return Pipeline(
        target,
        **{kind.value: part.build() if part else None for kind, part in parts.items()},
        tokenizer=tokenizer,
        generation=config.generation,
        observers=[observer.notify for observer in registry.observers],
        clock=clock,
        kernels=config.kernels,
    )


def build_component(
    kind: Kind, name: str, /, *, registry: Registry | None = None, **options: Any
) -> Any:
    """A plugin's object by name.

    Args:
        kind: Kind of the plugin.
        name: Its name in YAML.
        registry: The plugins to choose from; the installed ones by default.
        options: The plugin's options.

    Raises:
        PluginError: There is no such plugin; the message lists the choices.
    """
    entry = (registry or installed()).get(kind, name)
    return entry.build(entry.plugin.options(**options))


def _load_target(
    config: PipelineConfig, source: TargetConfig, tokenizer: Any | None
) -> tuple[Target, Any | None]:
    """The document's model, and its tokenizer unless the caller brings one."""
    from draftwood.core.hf import load_target, load_tokenizer

    runtime = config.runtime
    location = resolve(source.model, "target")
    if tokenizer is None:
        tokenizer = load_tokenizer(
            location,
            revision=source.revision,
            gguf_file=source.gguf_file,
            trust_remote_code=source.trust_remote_code,
        )
    target = load_target(
        location,
        revision=source.revision,
        gguf_file=source.gguf_file,
        device=runtime.device,
        dtype=runtime.dtype,
        attention=runtime.attention,
        threads=runtime.threads,
        parallel=runtime.parallel,
        graphs=runtime.graphs,
        trust_remote_code=source.trust_remote_code,
        allow_pickle=source.allow_pickle,
        tokenizer=tokenizer,
    )
    return target, tokenizer
