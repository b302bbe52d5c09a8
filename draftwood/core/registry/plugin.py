"""What a plugin is: one frozen record a registration hook returns. Imports no torch.

The record names its factory by import path, so that listing, checking and describing plugins
never imports what only decoding needs. Traits are what a composition check may know before any
weights load: they are computed from the options, and may read a config.json, never weights.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Literal

from attrs import field, frozen

from draftwood.core.draws import Draws

API_VERSION = 1


class Kind(StrEnum):
    """The four kinds of plugin; the value is the key in a pipeline's YAML."""

    DRAFTER = "drafter"
    TREE = "tree"
    CONTROLLER = "controller"
    VERIFIER = "verifier"


ProposalForm = Literal["lookup", "factorized", "mixture", "markov", "autoregressive"]
"""The form of a proposal; "lookup" gives certain tokens and no distribution (prompt lookup)."""


@frozen
class DrafterTraits:
    """What is known of a drafter from its options.

    form: of its proposals. max_depth: deepest draft node it can propose.
    pass_per_level: whether each level of a tree costs a forward pass of the drafter.
    taps: 0-based target layers whose output it reads; None while unknown (not yet configured).
    target_hidden_size, target_layers, vocab_size: what it expects of the target; None: anything.
    """

    form: ProposalForm
    max_depth: int
    pass_per_level: bool = False
    taps: tuple[int, ...] | None = ()
    target_hidden_size: int | None = None
    target_layers: int | None = None
    vocab_size: int | None = None


@frozen
class TreeTraits:
    """draws: how nodes are chosen. forms: the forms of proposal it can grow; None: any."""

    draws: Draws
    forms: frozenset[str] | None = None


@frozen
class ControllerTraits:
    """timed: its decisions depend on a clock, so a seed alone does not fix the budgets."""

    timed: bool = False


@frozen
class VerifierTraits:
    """draws: the trees it verifies exactly. seed_parity: the same seed gives plain decoding's
    tokens whatever the tree. devices: device types it runs on; None: any. unsupported_device_hint:
    what to do on others, for the error. resolve_for_device: device type -> what decides there, of
    one that resolve_for_device by device."""

    draws: frozenset[Draws]
    seed_parity: bool = False
    devices: frozenset[str] | None = None
    unsupported_device_hint: str | None = None
    resolve_for_device: Callable[[str], str] | None = field(default=None, eq=False, repr=False)


Traits = DrafterTraits | TreeTraits | ControllerTraits | VerifierTraits


@frozen
class Plugin:
    """What a registration hook returns, one record per plugin.

    name: how YAML's `use:` names it. summary: one line for `plugins list`.
    options: frozen attrs class of its YAML options. factory: "package.module:Class", called with
    the options as its only argument when a pipeline is built. traits: options -> Traits.
    api: version of this contract the plugin was written for.

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
