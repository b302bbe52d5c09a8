"""What a checkpoint is, from its config.json and the headers of its weights: none are loaded."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import asdict, frozen

from draftwood.core.errors import CheckpointError
from draftwood.plugins.drafters.common.config import read_config
from draftwood.plugins.drafters.common.headers import read_headers
from draftwood.plugins.drafters.common.weights import outlines
from draftwood.plugins.drafters.dblast.config import SECTION, DBlastConfig
from draftwood.plugins.drafters.dblast.model import DBlastModel
from draftwood.plugins.drafters.dflash.config import DFlashConfig, is_assistant
from draftwood.plugins.drafters.dflash.model import DFlashModel
from draftwood.plugins.drafters.eagle3.config import Eagle3Config
from draftwood.plugins.drafters.eagle3.model import Eagle3Model

ASSISTANTS = ("muse_glimmer_assistant",)
"""Model types of transformers' own assistants that are DFlash drafters."""

UNTAPPED = "it does not say which target layers it reads"


@frozen
class Pairing:
    """What a target must be. model: as the checkpoint names it. None: it does not say."""

    model: str | None = None
    layers: int | None = None
    hidden_size: int | None = None


@frozen
class Mapped:
    """size: of the target's vocabulary. draft: of the drafter's own."""

    size: int
    draft: int


@frozen
class Description:
    """A checkpoint. format: zlab, speculators, eagle (the original EAGLE-3 layout) or
    transformers (an assistant or a language model). algorithm: dflash, dflash2, dblast, eagle3 or
    causal_lm; a checkpoint of another kind by its own name. taps: 0-based target layers that are
    read. block: slots of one pass, None for one token a pass. problems: why it cannot be used;
    empty if it can.
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

    Raises CheckpointError if it has no readable config.json, or none that says what it is; what
    is wrong with a checkpoint of a known kind is among its problems.
    """
    data, source = read_config(folder)
    format_, algorithm = identify(data, source)
    pairing = Pairing(_target_name(data))
    if algorithm == "causal_lm":
        return _language_model(data, source, pairing)
    try:
        config: DFlashConfig | Eagle3Config
        if algorithm in ("dflash", "dflash2"):
            config = DFlashConfig.from_mapping(data, source)
        elif algorithm == "dblast":
            config = DBlastConfig.from_mapping(data, source)
        elif algorithm == "eagle3":
            config = Eagle3Config.from_mapping(data, source)
        else:
            key = "model_type" if format_ == "transformers" else "speculators_model_type"
            raise CheckpointError(f"{source}: {key}: {algorithm!r} is not supported")
    except CheckpointError as error:
        return Description(format_, algorithm, pairing, problems=(str(error),))
    layers = config.num_target_layers if isinstance(config, DFlashConfig) else None
    size = config.vocab_size
    return Description(
        format_,
        algorithm,
        Pairing(pairing.model, layers, config.target_hidden_size),
        config.target_layer_ids,
        config.block_size if isinstance(config, DFlashConfig) else None,
        Mapped(size, config.draft_vocab_size) if size else None,
        tuple(_problems(folder, config)),
    )


def identify(data: Mapping[str, Any], source: str) -> tuple[str, str]:
    """(format, algorithm) of a config.json. Raises CheckpointError if it is of no known kind."""
    architectures = data.get("architectures") or [""]
    if "transformer_layer_config" in data or "speculators_model_type" in data:
        return "speculators", str(data.get("speculators_model_type", "unknown"))
    if is_assistant(data):
        kind = str(data["model_type"])
        return "transformers", "dflash" if kind in ASSISTANTS else kind
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
    raise CheckpointError(
        f"{source}: of no known kind: no dflash_config (z-lab), transformer_layer_config "
        "(speculators), draft_vocab_size (EAGLE-3) or causal language model"
    )


def _target_name(data: Mapping[str, Any]) -> str | None:
    verifier = (data.get("speculators_config") or {}).get("verifier") or {}
    name = verifier.get("name_or_path")
    return name if isinstance(name, str) and name else None


def _language_model(data: Mapping[str, Any], source: str, pairing: Pairing) -> Description:
    """A model that `draft_model` runs; what it pairs with is decided by its tokenizer."""
    size = {**data, **data.get("text_config", {})}.get("vocab_size")
    problems = []
    if not isinstance(size, int):
        problems.append(f"{source}: vocab_size: an integer is expected, got {size!r}")
    try:
        read_headers(Path(source).parent)
    except CheckpointError as error:
        problems.append(str(error))
    vocabulary = Mapped(size, size) if isinstance(size, int) else None
    return Description(
        "transformers",
        "causal_lm",
        pairing,
        taps=(),
        vocabulary=vocabulary,
        problems=tuple(problems),
    )


def _problems(folder: Path, config: DFlashConfig | Eagle3Config) -> list[str]:
    """Why the checkpoint would not load, or could not be run as it is."""
    problems = []
    try:
        found = outlines(read_headers(folder), folder)
        with torch.device("meta"):
            if isinstance(config, DBlastConfig):
                DBlastModel(config).load_published(found, folder)
            elif isinstance(config, DFlashConfig):
                DFlashModel(config).load_published(found, folder)
            else:
                Eagle3Model(config).load_published(found, folder)
    except CheckpointError as error:
        problems.append(str(error))
    if not config.target_layer_ids:
        problems.append(f"{config.source}: {UNTAPPED}; a pipeline must set drafter.taps")
    return problems
