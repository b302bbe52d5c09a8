"""Describes a checkpoint from its config.json and the headers of its weights, loading none."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import asdict, frozen

from draftwood.core.errors import CheckpointError
from draftwood.plugins.drafters.common.config import (
    DrafterConfig,
    read_config,
    readable,
    target_vocab_size,
)
from draftwood.plugins.drafters.common.headers import read_headers
from draftwood.plugins.drafters.common.model import DrafterModel
from draftwood.plugins.drafters.common.weights import outlines
from draftwood.plugins.drafters.dblast.config import SECTION
from draftwood.plugins.drafters.dblast.model import DBlastModel
from draftwood.plugins.drafters.dflash.config import (
    DFlashConfig,
    is_assistant,
    refuse_other_heads,
)
from draftwood.plugins.drafters.dflash.model import DFlashModel
from draftwood.plugins.drafters.eagle3.model import Eagle3Model
from draftwood.plugins.drafters.formats.dflash import ASSISTANT

UNTAPPED = "it does not name the target layers that it reads"

MODELS: Mapping[str, type[DrafterModel]] = {
    "dflash": DFlashModel,
    "dflash2": DFlashModel,
    "dblast": DBlastModel,
    "eagle3": Eagle3Model,
}
"""The network of each supported algorithm."""


@frozen
class Pairing:
    """Properties of the target that a checkpoint was trained for; None where it does not say."""

    model: str | None = None
    layers: int | None = None
    hidden_size: int | None = None


@frozen
class Mapped:
    """Sizes of the target's vocabulary (`size`) and of the drafter's own (`draft`)."""

    size: int
    draft: int


@frozen
class Description:
    """A checkpoint.

    Attributes:
        format: zlab, speculators, eagle (the original EAGLE-3 layout) or transformers (an assistant
            or a language model).
        algorithm: dflash, dflash2, dblast, eagle3 or causal_lm; an unsupported one by its own name.
        taps: 0-based target layers that are read.
        block: Slots of one forward pass; None for one token per pass.
        problems: Why it cannot be used; empty if it can.
    """

    format: str
    algorithm: str
    pairs_with: Pairing
    taps: tuple[int, ...] | None = None
    block: int | None = None
    vocabulary: Mapped | None = None
    problems: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def describe(folder: Path) -> Description:
    """Describe a checkpoint folder.

    Errors of a checkpoint of a known kind are among its problems.

    Raises:
        CheckpointError: There is no readable config.json, or it is of no known kind.
    """
    data, source = read_config(folder)
    with readable(source):
        format_, algorithm = identify(data, source)
        name = _target_name(data)
    if algorithm == "causal_lm":
        return _language_model(data, source, name)
    model_class = MODELS.get(algorithm)
    try:
        if model_class is None:
            key = "model_type" if format_ == "transformers" else "speculators_model_type"
            raise CheckpointError(f"{source}: {key}: {algorithm!r} is not supported")
        with readable(source):
            config: Any = model_class.config_class.from_mapping(data, source)
    except CheckpointError as error:
        return Description(format_, algorithm, Pairing(name), problems=(str(error),))
    block = isinstance(config, DFlashConfig)
    return Description(
        format_,
        algorithm,
        Pairing(name, config.num_target_layers if block else None, config.target_hidden_size),
        config.target_layer_ids,
        config.block_size if block else None,
        Mapped(config.vocab_size, config.draft_vocab_size) if config.vocab_size else None,
        tuple(_problems(folder, model_class, config)),
    )


def identify(data: Mapping[str, Any], source: str) -> tuple[str, str]:
    """(format, algorithm) of a config.json.

    Raises:
        CheckpointError: It is of no known kind.
    """
    architectures = data.get("architectures") or [""]
    if "transformer_layer_config" in data or "speculators_model_type" in data:
        return "speculators", str(data.get("speculators_model_type", "unknown"))
    if is_assistant(data):
        kind = str(data["model_type"])
        return "transformers", "dflash" if kind == ASSISTANT else kind
    if data.get(SECTION):
        return "zlab", "dblast"
    if "dflash_config" in data or "DFlash" in architectures[0]:
        inner = data.get("dflash_config") or {}
        second = inner.get("selector_rank", data.get("selector_rank"))
        return "zlab", "dflash2" if second else "dflash"
    if data.get("draft_vocab_size") is not None:
        return "eagle", "eagle3"
    if "CausalLM" in architectures[0]:
        return "transformers", "causal_lm"
    refuse_other_heads(data, source)
    raise CheckpointError(
        f"{source}: of no known kind: no dflash_config (z-lab), transformer_layer_config "
        "(speculators), draft_vocab_size (EAGLE-3) or causal language model"
    )


def _target_name(data: Mapping[str, Any]) -> str | None:
    verifier = (data.get("speculators_config") or {}).get("verifier") or {}
    name = verifier.get("name_or_path")
    return name if isinstance(name, str) and name else None


def _language_model(data: Mapping[str, Any], source: str, name: str | None) -> Description:
    """A model for `draft_model`; its tokenizer decides which targets it fits."""
    problems, vocabulary = [], None
    try:
        with readable(source):
            size = target_vocab_size(data, source)
        vocabulary = Mapped(size, size)
    except CheckpointError as error:
        problems.append(str(error))
    try:
        read_headers(Path(source).parent)
    except CheckpointError as error:
        problems.append(str(error))
    return Description(
        "transformers", "causal_lm", Pairing(name), (), None, vocabulary, tuple(problems)
    )


def _problems(folder: Path, model_class: type[DrafterModel], config: DrafterConfig) -> list[str]:
    """Why the checkpoint does not load, or cannot run as it is."""
    problems = []
    try:
        tensors = outlines(read_headers(folder), folder)
        with torch.device("meta"):
            model_class(config).load_published(tensors, folder)
    except CheckpointError as error:
        problems.append(str(error))
    except (RuntimeError, TypeError, ValueError, ArithmeticError) as error:
        reason = str(error).partition("\n")[0]
        problems.append(f"{config.source}: no model has these sizes ({reason})")
    if not getattr(config, "target_layer_ids", None):
        problems.append(f"{config.source}: {UNTAPPED}; a pipeline must set drafter.taps")
    return problems
