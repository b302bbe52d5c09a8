"""Options of the bundled drafters. Torch-free."""

from itertools import pairwise
from pathlib import Path
from typing import Any

from attrs import Attribute, field, frozen
from attrs.validators import and_, ge, gt, le, lt, optional

from draftwood.core.options import MAX_DEPTH, MAX_NODES
from draftwood.core.registry.loader import installed
from draftwood.core.registry.plugin import Kind
from draftwood.core.registry.plugin_options import DrafterOptions


@frozen
class NgramOptions:
    """Continuations of the same tokens earlier in prompt and output.

    Attributes:
        max_ngram: Longest context that is looked up, in tokens. The longest that occurred before is
            used first.
        min_ngram: Shortest context that is looked up.
        max_depth: Most tokens ahead.
        continuations: Most different tokens proposed after one path.
        confidence: Initial probability that a context predicts the next token. Later proposals are
            scored by how often contexts of their length were right.
    """

    max_ngram: int = field(default=6, validator=and_(ge(1), le(MAX_DEPTH)))
    min_ngram: int = field(default=1, validator=and_(ge(1), le(MAX_DEPTH)))
    max_depth: int = field(default=16, validator=and_(ge(1), le(MAX_DEPTH)))
    continuations: int = field(default=4, validator=and_(ge(1), le(MAX_NODES)))
    confidence: float = field(default=0.7, validator=and_(gt(0.0), lt(1.0)))

    def __attrs_post_init__(self) -> None:
        if self.min_ngram > self.max_ngram:
            raise ValueError(f"min_ngram {self.min_ngram} is above max_ngram {self.max_ngram}")


@frozen
class DFlashOptions:
    """A DFlash drafter of either generation.

    Attributes:
        checkpoint: Folder or hub name in the z-lab, speculators or transformers layout, or
            "builtin".
        revision: Of a hub name.
        allow_pickle: Read weights that are not safetensors. They can run code: use it only for
            files you trust.
    """

    checkpoint: Path | str
    revision: str | None = None
    allow_pickle: bool = False


def _temperatures(_: object, attribute: "Attribute[Any]", value: Any) -> None:
    """A number, or [target temperature, Z_T] pairs by rising target temperature."""
    table = value if isinstance(value, tuple) else ((0.0, value),)
    if any(number < 0 for pair in table for number in pair):
        raise ValueError(f"'{attribute.name}' holds temperatures, which are not negative: {value}")
    if not table or any(low >= high for (low, _), (high, _) in pairwise(table)):
        raise ValueError(f"'{attribute.name}': target temperatures must rise: {value}")


@frozen
class DBlastOptions(DFlashOptions):
    """A DBlast drafter.

    Attributes:
        checkpoint: Folder or hub name in the z-lab layout with a `dblast_config`, or of a
            first-generation DFlash drafter, which is one branch; or "builtin".
        revision: Of a hub name.
        allow_pickle: Read weights that are not safetensors. They can run code: use it only for
            files you trust.
        prior_temperature: Z_T, the temperature of the distribution over branches; or a list of
            [target temperature, Z_T] to interpolate, as `python -m studies.dblast tune-zt` prints
            it; None for the checkpoint's own table, 1.0 if it has none.
    """

    prior_temperature: float | tuple[tuple[float, float], ...] | None = field(
        default=None, validator=optional(_temperatures)
    )


@frozen
class Eagle3Options:
    """An EAGLE-3 drafter.

    Attributes:
        checkpoint: Folder or hub name in the original EAGLE-3 or the speculators layout, or
            "builtin".
        revision: Of a hub name.
        max_depth: Most tokens ahead; each costs a forward pass of the drafter.
        taps: 0-based target layers whose output is read, for a checkpoint that does not say; None
            for the checkpoint's.
        allow_pickle: Read weights that are not safetensors. They can run code: use it only for
            files you trust.
    """

    checkpoint: Path | str
    revision: str | None = None
    max_depth: int = field(default=8, validator=and_(ge(1), le(MAX_DEPTH)))
    taps: tuple[int, ...] | None = None
    allow_pickle: bool = False


@frozen
class DraftModelOptions:
    """A causal language model with the target's tokenizer.

    Attributes:
        model: Folder or hub name, or "builtin" for the draft model of the bundled target.
        revision: Of a hub name.
        max_depth: Most tokens ahead; each costs a forward pass of the model.
        trust_remote_code: Run code inside the checkpoint; use it only for files you trust.
        allow_pickle: Read weights that are not safetensors. They can run code: use it only for
            files you trust.
    """

    model: Path | str
    revision: str | None = None
    max_depth: int = field(default=6, validator=and_(ge(1), le(MAX_DEPTH)))
    trust_remote_code: bool = False
    allow_pickle: bool = False


@frozen
class UnionOptions:
    """Sources of a union: installed drafters by name, each with its own options; at least two.

    Attributes:
        sources: Options of each source; in YAML the names are keys beside `use`, and {} takes a
            source's defaults.
    """

    sources: DrafterOptions = field(factory=DrafterOptions)

    @classmethod
    def of(cls, **options: Any) -> "UnionOptions":
        """Options from Python: an options instance for each installed drafter."""
        registry = installed()
        entries = {name: registry.get(Kind.DRAFTER, name) for name in options}
        return cls(DrafterOptions(entries, options))

    def __attrs_post_init__(self) -> None:
        if len(self.sources) < 2:
            registry = installed()
            names = registry.names(Kind.DRAFTER)
            plugins = [(name, registry.get(Kind.DRAFTER, name).plugin) for name in names]
            choices = ", ".join(n for n, plugin in plugins if plugin.options is not UnionOptions)
            raise ValueError(f"a union has at least two sources; choices: {choices}")
