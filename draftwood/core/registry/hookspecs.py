"""The hooks that a distribution may implement.

All but `draftwood_round_finished` are for registration and run once, before anything is decoded.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

from draftwood.core.registry.plugin import Plugin, TrainablePlugin

if TYPE_CHECKING:
    import click

    from draftwood.core.values import RoundStats

PROJECT = "draftwood"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def draftwood_register_drafters() -> Iterable[Plugin] | None:
    """Drafters that this distribution adds.

    Called once per process by the loader, before the first pipeline, listing or schema. Import
    neither torch nor transformers here: the record names its factory by path. Returns `Plugin`
    records, or None for none.

        @hookimpl
        def draftwood_register_drafters():
            yield Plugin("echo", "repeats the anchor", Options, "echo_drafter.drafter:Echo",
                         lambda options: DrafterTraits("lookup", options.repeat))
    """


@hookspec
def draftwood_register_trees() -> Iterable[Plugin] | None:
    """Tree policies that this distribution adds.

    Called like `draftwood_register_drafters`. Returns `Plugin` records, or None for none.

        @hookimpl
        def draftwood_register_trees():
            yield Plugin("comb", "a spine with one leaf a node", Options, "comb.tree:Comb",
                         lambda options: TreeTraits(Draws.DETERMINISTIC))
    """


@hookspec
def draftwood_register_controllers() -> Iterable[Plugin] | None:
    """Budget controllers that this distribution adds.

    Called like `draftwood_register_drafters`. Returns `Plugin` records, or None for none.

        @hookimpl
        def draftwood_register_controllers():
            yield Plugin("coin", "half the tree, always", Options, "coin.controller:Coin",
                         lambda options: ControllerTraits(timed=False))
    """


@hookspec
def draftwood_register_verifiers() -> Iterable[Plugin] | None:
    """Verifiers that this distribution adds.

    Called like `draftwood_register_drafters`. Returns `Plugin` records, or None for none.

        @hookimpl
        def draftwood_register_verifiers():
            yield Plugin("strict", "match, one node at a time", Options, "strict.verifier:Strict",
                         lambda options: VerifierTraits(frozenset({Draws.DETERMINISTIC}), True))
    """


@hookspec
def draftwood_register_trainables() -> Iterable[TrainablePlugin] | None:
    """Drafters that this distribution teaches `draftwood train` to train.

    Called like `draftwood_register_drafters`. Returns `TrainablePlugin` records, or None for none.
    `Options` subclasses `draftwood.training.config.TrainingConfig`; the factory returns a
    `draftwood.training.trainable.Trainable`.

        @hookimpl
        def draftwood_register_trainables():
            yield TrainablePlugin("medusa", "heads on the last layer", Options,
                                  "medusa.training:start")
    """


@hookspec
def draftwood_register_commands() -> "Iterable[click.Command] | None":
    """Commands added to `draftwood` on the command line.

    Called by the command line when it lists its commands or does not know a name. A command
    named like a bundled one is refused and recorded. Returns click commands, or None for none.

        @hookimpl
        def draftwood_register_commands():
            @click.command()
            def hello():
                "Says hello."
                click.echo("hello")
            yield hello
    """


@hookspec
def draftwood_round_finished(stats: "RoundStats") -> None:
    """Observe one finished round.

    Called by the engine after every round, once its text was streamed. `stats` is frozen and lies
    on the host. An observer that raises is disabled for the process, with a warning.

        @hookimpl
        def draftwood_round_finished(stats):
            print(stats.round, stats.budget, stats.accepted)
    """
