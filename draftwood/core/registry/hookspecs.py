"""The hooks that a plugin may implement. Registration only: nothing here runs inside a round,
except `draftwood_round_finished`, which runs after a round's text was streamed."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

from draftwood.core.registry.plugin import Plugin

if TYPE_CHECKING:
    import click

    from draftwood.core.values import RoundStats

PROJECT = "draftwood"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def draftwood_register_drafters() -> Iterable[Plugin] | None:
    """Drafters that this distribution adds.

    Called once per process by the loader, the first time a pipeline, a listing or a schema is
    asked for. Import neither torch nor transformers here: the record names its factory by path.
    Returns `Plugin` records, or None for none.

        @hookimpl
        def draftwood_register_drafters():
            yield Plugin("echo", "repeats the anchor", Options, "echo_drafter.drafter:Echo",
                         lambda options: DrafterTraits("lookup", options.repeat))
    """


@hookspec
def draftwood_register_trees() -> Iterable[Plugin] | None:
    """Tree policies that this distribution adds.

    Called as `draftwood_register_drafters` is. Returns `Plugin` records, or None for none.

        @hookimpl
        def draftwood_register_trees():
            yield Plugin("comb", "a spine with one leaf a node", Options, "comb.tree:Comb",
                         lambda options: TreeTraits(Draws.DETERMINISTIC))
    """


@hookspec
def draftwood_register_controllers() -> Iterable[Plugin] | None:
    """Budget controllers that this distribution adds.

    Called as `draftwood_register_drafters` is. Returns `Plugin` records, or None for none.

        @hookimpl
        def draftwood_register_controllers():
            yield Plugin("coin", "half the tree, always", Options, "coin.controller:Coin",
                         lambda options: ControllerTraits(timed=False))
    """


@hookspec
def draftwood_register_verifiers() -> Iterable[Plugin] | None:
    """Verifiers that this distribution adds.

    Called as `draftwood_register_drafters` is. Returns `Plugin` records, or None for none.

        @hookimpl
        def draftwood_register_verifiers():
            yield Plugin("strict", "match, one node at a time", Options, "strict.verifier:Strict",
                         lambda options: VerifierTraits(frozenset({Draws.DETERMINISTIC}), True))
    """


@hookspec
def draftwood_register_commands() -> "Iterable[click.Command] | None":
    """Commands added to `draftwood` on the command line.

    Called by the command line when it lists its commands or meets a name that is not its own;
    a command named like a bundled one is refused and recorded. Returns click commands, or None.

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

    Called by the engine after every round, once its text was streamed; `stats` is frozen and lies
    on the host. Returns nothing. One that raises is disabled for the process, with a warning.

        @hookimpl
        def draftwood_round_finished(stats):
            print(stats.round, stats.budget, stats.accepted)
    """
