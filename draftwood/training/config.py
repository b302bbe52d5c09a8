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
from draftwood.core.registry.loader import installed
from draftwood.core.registry.registry import TRAINABLE, Refusal, Registered, Registry


def _shares(_: Any, attribute: "attrs.Attribute[Any]", value: tuple[float, ...]) -> None:
    if not value or min(value) < 0:
        raise ValueError(f"'{attribute.name}' must be one or more numbers >= 0: {value}")


@frozen
class SampleOptions:
    """Stage 1: text that the target writes itself, from prompts.

    Attributes:
        prompts: A .npy array of token ids, of which a prompt is a random stretch, or a .jsonl file
            with a "text" in every line, of which a prompt is the beginning.
        heldout: The same for evaluation only.
        sequences: Number of sequences.
        heldout_sequences: Number of sequences for evaluation.
        length: Tokens of a sequence, prompt included.
        prompt_tokens: Shortest and longest prompt.
        temperatures: One of these for each sequence; 0 is greedy.
        batch: Sequences written at once.
        minutes: Stop after this even if fewer sequences are done.
        dtype: Data type of the target while it writes.
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

    Attributes:
        taps: 0-based target layers to read.
        heads: Query heads of a layer.
        kv_heads: Key and value heads of a layer.
        head_dim: Width of a head.
        intermediate: Width of a feed-forward layer.
    """

    taps: tuple[int, ...] = field(validator=min_len(1))
    heads: int = field(default=4, validator=ge(1))
    kv_heads: int = field(default=2, validator=ge(1))
    head_dim: int = field(default=32, validator=ge(2))
    intermediate: int = field(default=384, validator=ge(1))


@frozen(kw_only=True)
class BlockShape(DrafterOptions):
    """A block drafter, with the target's head.

    Attributes:
        layers: Number of layers.
        block_size: Slots of a forward pass, the anchor included.
        mask_token: Token of the empty slots, text or id; None takes the tokenizer's mask token.
    """

    layers: int = field(default=1, validator=ge(1))
    block_size: int = field(default=10, validator=ge(2))
    mask_token: str | int | None = None


@frozen
class SelectorShape:
    """DFlash 2's selector, which makes a token's distribution depend on the token before it.

    Attributes:
        candidates: Most likely tokens of each position that it scores when drafting.
        rank: Rank of its codebooks.
    """

    candidates: int = field(default=16, validator=ge(1))
    rank: int = field(default=32, validator=ge(1))


@frozen(kw_only=True)
class DFlashShape(BlockShape):
    """A block drafter of one branch.

    Attributes:
        algorithm: dflash.
        vocabulary: Tokens that it can propose, the most frequent ones of samples and prompts; None
            for all of the target's. Its head is the target's rows of these tokens and is stored in
            the checkpoint.
        selector: None for independent positions.
        init: A DFlash checkpoint to start from, of the shape that this file states; its tokens are
            kept. None starts from random weights.
    """

    algorithm: Literal["dflash"] = "dflash"
    vocabulary: int | None = field(default=None, validator=optional(ge(2)))
    selector: SelectorShape | None = None
    init: Path | str | None = None


@frozen(kw_only=True)
class DBlastShape(BlockShape):
    """A block drafter of several branches.

    Attributes:
        algorithm: dblast.
        branches: Number of branches, K.
        rank: Rank of the difference between branches.
        spread: Initial distance between branches; 1 is that of a layer of this rank.
        init: A DFlash or DBlast checkpoint to start from, of the shape that this file states; None
            starts from random weights.
    """

    algorithm: Literal["dblast"]
    branches: int = field(default=4, validator=ge(1))
    rank: int = field(default=16, validator=ge(1))
    spread: float = field(default=1.0, validator=ge(0.0))
    init: Path | str | None = None


@frozen(kw_only=True)
class Eagle3Shape(DrafterOptions):
    """An autoregressive drafter of one layer, with the target's head.

    Attributes:
        algorithm: eagle3.
        decoder: qwen3 normalises queries and keys per head.
        norm_before_residual: As in a speculators checkpoint.
        norm_before_fc: As in a speculators checkpoint.
        fc_norm: As in a speculators checkpoint.
        norm_output: As in a speculators checkpoint.
    """

    algorithm: Literal["eagle3"]
    decoder: Literal["llama", "qwen3"] = "llama"
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False


@frozen(kw_only=True)
class OptimiserOptions:
    """Stage 3, optimisation.

    Attributes:
        minutes: Time budget.
        steps: Budget in steps, which replaces minutes.
        batch: Sequences of a step.
        lr: Learning rate of Muon, for matrices.
        adam_lr: Learning rate of the other parameters.
        weight_decay: Weight decay.
        warm_up: Fraction of the budget at its beginning in which the rate rises.
        cool_down: Fraction of the budget at its end in which the rate falls.
        autocast: Compute in bfloat16 where torch does so safely.
        compile: Compile the drafter with torch.compile.
        seed: Seed of new parameters and of the order of batches; None for the file's, which samples
            depend on too.
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
    """Options of `objective: al`.

    Attributes:
        retained: Prefixes of a block that are learnt from.
        threshold: For `retained: threshold`: least probability of a prefix under the drafter.
        rule: Ratios of whole prefixes, or of tokens as `ratio` judges them.
    """

    retained: Literal["threshold", "whole_block", "one_prefix", "all_retained"] = "threshold"
    threshold: float = field(default=0.1, validator=and_(gt(0.0), lt(1.0)))
    rule: Literal["sequence", "token"] = "sequence"


@frozen
class DPaceOptions:
    """Options of `objective: dpace`.

    Attributes:
        alpha: How far confidences are smoothed towards 1.
    """

    alpha: float = field(default=0.5, validator=and_(ge(0.0), le(1.0)))


@frozen(kw_only=True)
class BlockOptions(OptimiserOptions):
    """Optimisation of block drafters.

    Attributes:
        objective: A name in `draftwood.training.objectives`.
        gamma: For `nll_weighted`: decay of the weights of later positions; None for the paper's
            value for the block size.
        al: Options of the objective al.
        dpace: Options of the objective dpace.
        tempered: Divide the drafter's logits by the temperature of each text, as decoding at it
            does.
        anchors: Blocks of each sequence, drawn uniformly.
    """

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
    """Optimisation of DFlash.

    Attributes:
        scale_features: Divide features by their size, dimension by dimension, and store the
            division in the checkpoint's first matrix. For targets whose layers are of very
            different size, or have a few huge dimensions.
        selector_only: Train the selector and leave the rest as `drafter.init` has it.
    """

    scale_features: bool = False
    selector_only: bool = False


@frozen(kw_only=True)
class MixtureOptions(BlockOptions):
    """Optimisation of DBlast.

    Attributes:
        balance: Weight of KL(mean prior || uniform) beside the objective, against branches that are
            never chosen.
    """

    balance: float = field(default=0.0, validator=ge(0.0))


@frozen(kw_only=True)
class UnrollOptions(OptimiserOptions):
    """Optimisation of EAGLE-3.

    Attributes:
        anchors: Drafts of each sequence, from uniformly drawn tokens.
        unroll: Steps of each draft, every one from the drafter's own state of the step before.
        decay: Factor of the weight of each later step.
        label_temperature: Temperature of the target's distribution that is learnt; None takes that
            of each text.
    """

    anchors: int = field(default=32, validator=and_(ge(1), le(512)))
    unroll: int = field(default=7, validator=ge(1))
    decay: float = field(default=0.8, validator=and_(gt(0.0), le(1.0)))
    label_temperature: float | None = field(default=None, validator=optional(ge(0.0)))


@frozen
class PaceOptions:
    """How a run shares the machine.

    Attributes:
        threads: Threads of torch; None leaves torch's choice.
        nice: Added to the process's niceness.
        pause_file: While this file exists the run sleeps, and the time does not count.
        checkpoint_minutes: Minutes between checkpoints.
        evaluate_minutes: Minutes between evaluations.
        export_minutes: Minutes between exports of the current weights.
    """

    threads: int | None = field(default=None, validator=optional(ge(1)))
    nice: int = field(default=0, validator=ge(0))
    pause_file: Path | None = None
    checkpoint_minutes: float = field(default=2.0, validator=gt(0.0))
    evaluate_minutes: float = field(default=5.0, validator=gt(0.0))
    export_minutes: float = field(default=5.0, validator=gt(0.0))


@frozen(kw_only=True)
class TrainingConfig:
    """What a training file of any algorithm says.

    Attributes:
        target: Folder or hub name of the model.
        work: Folder of samples, features and checkpoints.
        export: Folder of the finished drafter.
        sample: Stage 1, samples.
        drafter: The drafter's shape.
        train: Stage 3, optimisation.
        pace: How the run shares the machine.
        feature_dtype: Data type on disk; features take taps * width * 2 bytes for each token.
        device: Device of the training.
        seed: Seed of samples and of training.
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
    def algorithm(self) -> str:
        """Name of the trainable, as `drafter.algorithm` says it."""
        return str(getattr(self.drafter, "algorithm", "dflash"))

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


def load_training(
    path: Path | str, set_options: Iterable[str] = (), registry: Registry | None = None
) -> TrainingConfig:
    """Read and validate a training file.

    Args:
        path: The file.
        set_options: "section.option=value", applied before validation.
        registry: Where `drafter.algorithm` is looked up; the installed plugins if None.

    Raises:
        ConfigError: With every problem, each located.
    """
    document = apply_settings(read_file(Path(path)), set_options)
    return as_options(_training(document, registry or installed()), document)


def _training(document: Node, registry: Registry) -> type[TrainingConfig]:
    """The class for the algorithm that a document names."""
    drafter = document.data.get("drafter") if document.is_mapping else None
    named = drafter.data.get("algorithm") if drafter is not None and drafter.is_mapping else None
    if named is None:
        return DFlashTraining
    found = registry.find(TRAINABLE, named.data) if isinstance(named.data, str) else None
    if not isinstance(found, Registered):
        choices = f"choices: {', '.join(registry.names(TRAINABLE))}"
        message = f"no training of {shown(named)}"
        hints = (choices, *found.hints) if isinstance(found, Refusal) else (choices,)
        raise ConfigError([Problem(named.where, "drafter.algorithm", message, hints)])
    options: type[TrainingConfig] = found.plugin.options
    return options
