"""The records that registration hooks return. Imports no torch.

A record names its factory by import path, so that listing, checking and describing plugins never
imports what only decoding needs. Traits are what the composition check knows before any weights
load: a function of the options, which may read a config.json but no weights.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import wraps
from typing import Any, Literal, TypeVar, get_args

from attrs import Attribute, field, frozen

from draftwood.core.draws import Draws
from draftwood.core.renames import PROPOSAL_FORMS, TRAIT_KEYWORDS

API_VERSION = 1

C = TypeVar("C", bound=type)


class Kind(StrEnum):
    """The four kinds of plugin; the value is the key in a pipeline's YAML."""

    DRAFTER = "drafter"
    TREE = "tree"
    CONTROLLER = "controller"
    VERIFIER = "verifier"


ProposalForm = Literal["lookup", "factorized", "mixture", "markov", "autoregressive"]
"""What a proposal's distributions depend on; "lookup" gives certain tokens and no distribution."""


def _with_renames(cls: C) -> C:
    """Make a class of traits name the new keyword when it is called with an old one."""
    init = cls.__init__  # type: ignore[misc]
    renames = TRAIT_KEYWORDS.get(cls.__name__, {})

    @wraps(init)
    def checked(self: Any, *args: Any, **keywords: Any) -> None:
        for old in renames.keys() & keywords.keys():
            raise TypeError(f"{cls.__name__}: {old!r} is now called {renames[old]!r}")
        init(self, *args, **keywords)

    cls.__init__ = checked  # type: ignore[misc]
    return cls


def _known_form(_: Any, attribute: "Attribute[Any]", value: str | frozenset[str] | None) -> None:
    choices = get_args(ProposalForm)
    for form in [value] if isinstance(value, str) else value or ():
        if form in PROPOSAL_FORMS:
            raise ValueError(f"{attribute.name}: {form!r} is now called {PROPOSAL_FORMS[form]!r}")
        if form not in choices:
            raise ValueError(f"{attribute.name}: {form!r}; choices: {', '.join(choices)}")


@_with_renames
@frozen
class DrafterTraits:
    """What a drafter's options fix.

    Attributes:
        form: Of its proposals.
        max_depth: Deepest draft node that it proposes.
        pass_per_level: Whether each level of a tree costs a forward pass of the drafter.
        taps: 0-based target layers whose output it reads; None if not known before it loads.
        target_hidden_size: Hidden size of the targets that it fits; None for any.
        target_layers: Number of layers of the targets that it fits; None for any.
        vocab_size: Vocabulary size of the targets that it fits; None for any.
    """

    form: ProposalForm = field(validator=_known_form)
    max_depth: int
    pass_per_level: bool = False
    taps: tuple[int, ...] | None = ()
    target_hidden_size: int | None = None
    target_layers: int | None = None
    vocab_size: int | None = None


@_with_renames
@frozen
class TreeTraits:
    """What a tree policy's options fix.

    Attributes:
        draws: How nodes are chosen.
        forms: The forms of proposal that it grows from; None for any.
    """

    draws: Draws
    forms: frozenset[str] | None = field(default=None, validator=_known_form)


@frozen
class ControllerTraits:
    """What a budget controller's options fix.

    Attributes:
        timed: Whether budgets depend on measured times, so that a seed does not fix them.
    """

    timed: bool = False


def _draws(value: Iterable[Draws] | Draws) -> frozenset[Draws]:
    """A set of draws; one alone need not be in a set. Draws are texts, which are iterable, too."""
    return frozenset([value] if isinstance(value, Draws) else value)


@_with_renames
@frozen
class VerifierTraits:
    """What a verifier's options fix.

    Attributes:
        draws: The trees that it verifies exactly.
        seed_parity: Whether one seed gives plain decoding's tokens, whatever the tree.
        devices: Device types that it runs on; None for any.
        unsupported_device_hint: What to do on other devices, for the error.
        resolve_for_device: Device type -> name of the rule that judges there; None if one rule
            judges everywhere.
        kernels: The kernels that `runtime.kernels: auto` chooses with this verifier; None if the
            device decides.
    """

    draws: frozenset[Draws] = field(converter=_draws)
    seed_parity: bool = False
    devices: frozenset[str] | None = None
    unsupported_device_hint: str | None = None
    resolve_for_device: Callable[[str], str] | None = field(default=None, eq=False, repr=False)
    kernels: Literal["triton", "torch"] | None = None


Traits = DrafterTraits | TreeTraits | ControllerTraits | VerifierTraits
TRAITS: dict[Kind, type] = {
    Kind.DRAFTER: DrafterTraits,
    Kind.TREE: TreeTraits,
    Kind.CONTROLLER: ControllerTraits,
    Kind.VERIFIER: VerifierTraits,
}


@frozen
class Plugin:
    """A drafter, tree policy, budget controller or verifier; one record per plugin.

    Attributes:
        name: What YAML's `use:` says.
        summary: One line for `draftwood plugins list`.
        options: Frozen attrs class of its YAML options.
        factory: "package.module:Class", called with the options when a pipeline is built.
        traits: Options -> traits.
        api: Version of this contract that the plugin was written for.

    Example:
        from attrs import frozen
        from draftwood import DrafterTraits, Plugin, hookimpl

        @frozen
        class Options:
            repeat: int = 4

        @hookimpl
        def draftwood_register_drafters():
            yield Plugin("echo", "repeats the anchor", Options, "echo_drafter.drafter:Echo",
                         lambda options: DrafterTraits("lookup", options.repeat))
    """

    name: str
    summary: str
    options: type
    factory: str
    traits: Callable[[Any], Traits] = field(eq=False, repr=False)
    api: int = API_VERSION


@frozen
class TrainablePlugin:
    """A drafter that `draftwood train` can train; one record per algorithm.

    Attributes:
        name: What a training file's `drafter.algorithm` says.
        summary: One line for `draftwood plugins list`.
        options: Frozen attrs class of the whole training file, a subclass of `TrainingConfig`.
        factory: "package.module:function", called with (training file's options, target,
            tokenizer); returns a `draftwood.training.trainable.Trainable`.
        api: Version of this contract that the plugin was written for.
    """

    name: str
    summary: str
    options: type
    factory: str
    api: int = API_VERSION
