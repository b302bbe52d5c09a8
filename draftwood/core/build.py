"""From a validated configuration to a pipeline that decodes."""

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from draftwood.core.assets import resolve
from draftwood.core.config.compose import check_composition
from draftwood.core.config.pipeline import PipelineConfig, TargetConfig, load_config
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

    settings: overrides, "tree.max_nodes=64". target: a model or `Target` that the caller brings,
    with its tokenizer; the document's target is then not loaded. registry: the plugins to choose
    from, the installed ones by default.

    Raises ConfigError with every problem in the document, CompositionError if its parts do not
    work together (both before any weights load), PairingError if drafter and target do not
    belong together, UnsupportedTarget if the model cannot be rolled back.
    """
    registry = registry or installed()
    if isinstance(source, PipelineConfig):
        config = source
    else:
        config = load_config(source, settings, registry=registry, target_given=target is not None)
    check_composition(config)
    if target is None:
        assert config.target is not None
        target, tokenizer = _load_target(config, config.target, tokenizer)
    elif not isinstance(target, Target):
        from draftwood.core.hf import wrap_model

        target = wrap_model(target, tokenizer, graphs=config.runtime.graphs)
    parts = {kind.value: _built(config, kind) for kind in Kind}
    return Pipeline(
        target,
        **parts,
        tokenizer=tokenizer,
        generation=config.generation,
        observers=[observer.notify for observer in registry.observers],
        clock=clock,
    )


def build_component(kind: Kind, name: str, **options: Any) -> Any:
    """One installed plugin's object by name. Raises PluginError with the choices."""
    entry = installed().get(kind, name)
    return entry.build(entry.plugin.options(**options))


def _built(config: PipelineConfig, kind: Kind) -> Any:
    component = config.component(kind)
    return None if component is None else component.build()


def _load_target(
    config: PipelineConfig, wanted: TargetConfig, tokenizer: Any | None
) -> tuple[Target, Any | None]:
    """The document's model, and its tokenizer unless the caller brings one."""
    from draftwood.core.hf import load_target, load_tokenizer

    runtime = config.runtime
    place = resolve(wanted.model, "target")
    if tokenizer is None:
        tokenizer = load_tokenizer(
            place,
            revision=wanted.revision,
            gguf_file=wanted.gguf_file,
            trust_remote_code=wanted.trust_remote_code,
        )
    target = load_target(
        place,
        revision=wanted.revision,
        gguf_file=wanted.gguf_file,
        device=runtime.device,
        dtype=runtime.dtype,
        attention=runtime.attention,
        threads=runtime.threads,
        parallel=runtime.parallel,
        graphs=runtime.graphs,
        trust_remote_code=wanted.trust_remote_code,
        allow_pickle=wanted.allow_pickle,
        tokenizer=tokenizer,
    )
    return target, tokenizer
