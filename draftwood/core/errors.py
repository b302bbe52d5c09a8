"""Every error that draftwood raises on purpose, in one hierarchy.

Catch `DraftwoodError` to tell wrong input from a fault in draftwood. Messages say what is wrong,
where, what the choices are, and what to do next.
"""

from collections.abc import Sequence

from attrs import frozen


class DraftwoodError(Exception):
    """Base of every error raised on purpose. The command line turns it into exit code 2."""


@frozen
class Problem:
    """One problem of a configuration.

    Attributes:
        where: "file:line:col", or the name of a mapping if there is no file.
        path: Dotted key, "drafter.block_size"; empty for the document itself.
        message: What is wrong.
        hints: The choices and the next step, one line each.
    """

    where: str
    path: str
    message: str
    hints: tuple[str, ...] = ()

    def __str__(self) -> str:
        head = ": ".join(part for part in (self.where, self.path, self.message) if part)
        return "\n".join([head, *(f"  {hint}" for hint in self.hints)])


class ConfigError(DraftwoodError):
    """A pipeline or training file is wrong. Carries every problem, not the first one only."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class CompositionError(ConfigError):
    """The parts of a pipeline do not work together. Raised before any weights load."""


class PluginError(DraftwoodError):
    """A plugin could not be registered, loaded or built, or failed while decoding.

    The message names the plugin and its distribution; `__cause__` is what the plugin raised.
    """


class CheckpointError(DraftwoodError):
    """A checkpoint's files are missing or malformed, or lack something that draftwood needs."""


class PairingError(CheckpointError):
    """A drafter and a target do not fit: layers, widths, vocabulary or tokenizer."""


class UnsupportedTarget(DraftwoodError):
    """The model cannot be a target: its state cannot be rolled back to an accepted prefix."""


class RequestError(DraftwoodError):
    """One request is wrong (empty prompt, too long, bad option); the pipeline stays usable."""


class NonFiniteLogits(DraftwoodError):
    """A row of target logits is NaN or has no finite entry. It never becomes a token."""

    def __init__(self, node: int, position: int) -> None:
        self.node, self.position = node, position
        super().__init__(
            f"the target's logits at tree node {node} (position {position}) are NaN or have no "
            f"finite entry; no token can be drawn from them"
        )


class TreeError(DraftwoodError):
    """A tree breaks an invariant, or a drawn tree was cut by its scores."""


class TestingError(DraftwoodError):
    """The testing kit was used wrongly: a random key used twice, an unbounded enumeration."""

    __test__ = False  # pytest would collect it, as its name begins with "Test"
