"""What a training file may say. Imports no torch.

Budgets are in minutes or steps: on a machine of unknown speed minutes are what one knows, and the
learning rate follows the fraction of the budget spent either way.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import attrs
from attrs import field, frozen
from attrs.validators import and_, ge, gt, le, lt, min_len, optional

from draftwood.core.config.document import Node, apply_settings, read_file
from draftwood.core.config.pipeline import as_options
from draftwood.core.config.structure import shown
from draftwood.core.errors import ConfigError, Problem


def _shares(_: Any, attribute: "attrs.Attribute[Any]", value: tuple[float, ...]) -> None:
    if not value or min(value) < 0:
        raise ValueError(f"'{attribute.name}' must be one or more numbers >= 0: {value}")


@frozen
class SampleOptions:
    """Stage 1: text that the target writes itself, from prompts.

    prompts, heldout: a .npy array of token ids (texts one after the other; a prompt is a random
    stretch of it) or a .jsonl file with a "text" in every line (a prompt is its beginning).
    heldout is for evaluation only. sequences, heldout_sequences: how many. length: tokens of each,
    prompt included. prompt_tokens: shortest and longest prompt. temperatures: one of these for
    each sequence; 0 is greedy. batch: sequences written at once. minutes: stop after this even if
    fewer sequences are done. dtype: of the target while it writes.
    """

    prompts: Path
    heldout: Path
    sequences: int = field(default=10_000, validator=ge(1))
    heldout_sequences: int = field(default=64, validator=ge(1))
    length: int = field(default=256, validator=ge(8))
    prompt_tokens: tuple[int, int] = (16, 96)
    temperatures: tuple[float, ...] = field(default=(0.0, 0.5, 0.8, 1.0), validator=_shares)
    batch: int = field(default=128, validator=ge(1))
    minutes: float | None = field(default=None, validator=optional(gt(0.0)))
    dtype: Literal["float32", "bfloat16"] = "float32"

    def __attrs_post_init__(self) -> None:
        shortest, longest = self.prompt_tokens
        if not 0 < shortest <= longest < self.length:
            raise ValueError(
                f"prompt_tokens must be shortest <= longest < length {self.length}: "
                f"{list(self.prompt_tokens)}"
            )


@frozen(kw_only=True)
class DrafterOptions:
    """What every drafter has. Its width and embeddings are the target's.

    taps: 0-based target layers to read. heads, kv_heads, head_dim, intermediate: of the drafter's
    own layers.
    """

    taps: tuple[int, ...] = field(validator=min_len(1))
    heads: int = field(default=4, validator=ge(1))
    kv_heads: int = field(default=2, validator=ge(1))
    head_dim: int = field(default=32, validator=ge(2))
    intermediate: int = field(default=384, validator=ge(1))


@frozen(kw_only=True)
class BlockShape(DrafterOptions):
    """A block drafter, with the target's head.

    layers: how many. block_size: slots of a pass, the anchor included. mask_token: the token that
    stands in the empty slots, text or id; None takes the tokenizer's mask token.
    """

    layers: int = field(default=1, validator=ge(1))
    block_size: int = field(default=10, validator=ge(2))
    mask_token: str | int | None = None


@frozen
class SelectorShape:
    """DFlash 2's selector, which makes a token's distribution depend on the token before it.
    candidates: how many of each position's likeliest tokens it scores when drafting. rank: of its
    codebooks."""

    candidates: int = field(default=16, validator=ge(1))
    rank: int = field(default=32, validator=ge(1))


@frozen(kw_only=True)
class DFlashShape(BlockShape):
    """A block drafter of one branch.

    vocabulary: how many tokens it can say, the most frequent ones of samples and prompts; None for
    all of the target's. Its head is the target's rows of these tokens and goes into the checkpoint.
    selector: None for independent positions. init: a DFlash checkpoint to start from, of the shape
    that this file states, with a selector or without, whose tokens it keeps; None starts anew.
    """

    algorithm: Literal["dflash"] = "dflash"
    vocabulary: int | None = field(default=None, validator=optional(ge(2)))
    selector: SelectorShape | None = None
    init: Path | str | None = None


@frozen(kw_only=True)
class DBlastShape(BlockShape):
    """A block drafter of several branches.

    branches: K. rank: of what sets them apart. spread: how far apart fresh branches start; 1 is
    what a layer of that rank begins with. init: a DFlash or DBlast checkpoint to start from, of the
    shape that this file states; None starts anew.
    """

    algorithm: Literal["dblast"]
    branches: int = field(default=4, validator=ge(1))
    rank: int = field(default=16, validator=ge(1))
    spread: float = field(default=1.0, validator=ge(0.0))
    init: Path | str | None = None


@frozen(kw_only=True)
class Eagle3Shape(DrafterOptions):
    """An autoregressive drafter of one layer, with the target's head.

    taps: a low, a middle and a high layer, as published, or others. decoder: qwen3 norms queries
    and keys per head. norm_before_residual, norm_before_fc, fc_norm, norm_output: where norms go,
    as in a speculators checkpoint.
    """

    algorithm: Literal["eagle3"]
    decoder: Literal["llama", "qwen3"] = "llama"
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False


@frozen(kw_only=True)
class OptimiserOptions:
    """Stage 3. minutes or steps: the budget (steps win where both are given).

    batch: sequences of a step. lr: Muon's, of the matrices. adam_lr: of the rest. warm_up,
    cool_down: fractions of the budget at its ends. seed: of fresh parameters and the order of
    batches, None for the file's, which the samples depend on too.
    """

    minutes: float = field(default=30.0, validator=gt(0.0))
    steps: int | None = field(default=None, validator=optional(ge(1)))
    batch: int = field(default=8, validator=ge(1))
    lr: float = field(default=0.02, validator=gt(0.0))
    adam_lr: float = field(default=3e-3, validator=gt(0.0))
    weight_decay: float = field(default=0.01, validator=ge(0.0))
    warm_up: float = field(default=0.02, validator=and_(gt(0.0), le(1.0)))
    cool_down: float = field(default=0.4, validator=and_(gt(0.0), le(1.0)))
    autocast: bool = True
    compile: bool = False
    seed: int | None = field(default=None, validator=optional(ge(0)))


@frozen
class AcceptedLengthOptions:
    """Of `objective: al`. retained: which prefixes of a block are learnt from. threshold: of
    `retained: threshold`, how likely a prefix must be under the drafter, beside the target's
    distribution. rule: ratios of whole prefixes, or of tokens as `ratio` judges them."""

    retained: Literal["threshold", "whole_block", "one_prefix", "all_retained"] = "threshold"
    threshold: float = field(default=0.1, validator=and_(gt(0.0), lt(1.0)))
    rule: Literal["sequence", "token"] = "sequence"


@frozen
class DPaceOptions:
    """Of `objective: dpace`. alpha: how far confidences are smoothed towards 1."""

    alpha: float = field(default=0.5, validator=and_(ge(0.0), le(1.0)))


@frozen(kw_only=True)
class BlockOptions(OptimiserOptions):
    """Of block drafters. objective: a name in `draftwood.training.objectives`. gamma: of
    `nll_weighted`, decay of the weights of later positions, None for the paper's value for the
    block size. al, dpace: options of the objective of that name. tempered: divide the drafter's
    logits by the temperature of each text, as decoding at it will. anchors: blocks of each
    sequence, drawn uniformly."""

    objective: str = "nll_weighted"
    gamma: float | None = field(default=None, validator=optional(gt(0.0)))
    al: AcceptedLengthOptions | None = None
    dpace: DPaceOptions | None = None
    tempered: bool = False
    anchors: int = field(default=32, validator=and_(ge(1), le(512)))

    def __attrs_post_init__(self) -> None:
        owners = {"gamma": "nll_weighted", "al": "al", "dpace": "dpace"}
        for name, owner in owners.items():
            if getattr(self, name) is not None and self.objective != owner:
                raise ValueError(
                    f"'{name}' is an option of objective {owner!r}, and the objective is "
                    f"{self.objective!r}"
                )


@frozen(kw_only=True)
class SingleOptions(BlockOptions):
    """Of DFlash. scale_features: learn from features divided by their size, dimension by dimension,
    and put the division into the checkpoint's first matrix; begin with final states of the size of
    the target's, if its last layer is tapped. For targets whose layers are of very different size,
    or have a few huge dimensions. selector_only: train the selector and leave the rest as
    `drafter.init` has it, which takes minutes."""

    scale_features: bool = False
    selector_only: bool = False


@frozen(kw_only=True)
class MixtureOptions(BlockOptions):
    """Of DBlast. balance: weight of KL(mean prior || uniform) beside the objective, against
    branches that are never chosen."""

    balance: float = field(default=0.0, validator=ge(0.0))


@frozen(kw_only=True)
class UnrollOptions(OptimiserOptions):
    """Of EAGLE-3. anchors: drafts of each sequence, begun at uniformly drawn
    tokens. unroll: steps of each, every one from the drafter's own state of the step before.
    decay: of the weights of later steps, each by this factor. label_temperature: the target's
    distribution at it is what is learnt; None takes the one that each text was written at."""

    anchors: int = field(default=32, validator=and_(ge(1), le(512)))
    unroll: int = field(default=7, validator=ge(1))
    decay: float = field(default=0.8, validator=and_(gt(0.0), le(1.0)))
    label_temperature: float | None = field(default=None, validator=optional(ge(0.0)))


@frozen
class PaceOptions:
    """How a run behaves beside others. While pause_file exists, it sleeps, and the time does not
    count. threads: of torch, None leaves torch's choice. nice: added to the process's niceness.
    Every N minutes: a checkpoint, an evaluation, an export of what there is so far."""

    threads: int | None = field(default=None, validator=optional(ge(1)))
    nice: int = field(default=0, validator=ge(0))
    pause_file: Path | None = None
    checkpoint_minutes: float = field(default=2.0, validator=gt(0.0))
    evaluate_minutes: float = field(default=5.0, validator=gt(0.0))
    export_minutes: float = field(default=5.0, validator=gt(0.0))


@frozen(kw_only=True)
class TrainingConfig:
    """What a training file of any algorithm says.

    target: folder or hub name of the model. work: where samples, features and checkpoints lie.
    export: the finished drafter's folder. feature_dtype: on disk; features take
    taps * width * 2 bytes for each token.
    """

    target: Path | str
    work: Path
    export: Path
    sample: SampleOptions
    drafter: DrafterOptions
    train: OptimiserOptions = field(factory=OptimiserOptions)
    pace: PaceOptions = field(factory=PaceOptions)
    feature_dtype: Literal["bfloat16", "float16"] = "bfloat16"
    device: str = "cpu"
    seed: int = field(default=0, validator=ge(0))

    @property
    def training_seed(self) -> int:
        """Of stage 3."""
        return self.seed if self.train.seed is None else self.train.seed


@frozen(kw_only=True)
class DFlashTraining(TrainingConfig):
    """A training file with `drafter.algorithm: dflash`, or with none."""

    drafter: DFlashShape
    train: SingleOptions = field(factory=SingleOptions)

    def __attrs_post_init__(self) -> None:
        missing = [name for name in ("selector", "init") if getattr(self.drafter, name) is None]
        if self.train.selector_only and missing:
            raise ValueError(f"'train.selector_only' needs 'drafter.{missing[0]}'")


@frozen(kw_only=True)
class DBlastTraining(TrainingConfig):
    """A training file with `drafter.algorithm: dblast`."""

    drafter: DBlastShape
    train: MixtureOptions = field(factory=MixtureOptions)


@frozen(kw_only=True)
class Eagle3Training(TrainingConfig):
    """A training file with `drafter.algorithm: eagle3`."""

    drafter: Eagle3Shape
    train: UnrollOptions = field(factory=UnrollOptions)


TRAININGS: dict[str, type[TrainingConfig]] = {
    "dflash": DFlashTraining,
    "dblast": DBlastTraining,
    "eagle3": Eagle3Training,
}
"""What a training file says, by its `drafter.algorithm`."""


def load_training(path: Path | str, set_options: Iterable[str] = ()) -> TrainingConfig:
    """Read and validate a training file. Raises ConfigError with every problem, each located."""
    document = apply_settings(read_file(Path(path)), set_options)
    return as_options(_training(document), document)


def _training(document: Node) -> type[TrainingConfig]:
    """The class for the algorithm that a document names."""
    drafter = document.data.get("drafter") if document.is_mapping else None
    named = drafter.data.get("algorithm") if drafter is not None and drafter.is_mapping else None
    if named is None:
        return DFlashTraining
    if named.data not in TRAININGS:
        choices = f"choices: {', '.join(sorted(TRAININGS))}"
        message = f"no training of {shown(named)}"
        raise ConfigError([Problem(named.where, "drafter.algorithm", message, (choices,))])
    return TRAININGS[named.data]
