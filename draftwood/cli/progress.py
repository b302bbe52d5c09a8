"""Progress of a long command, on standard error."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from draftwood.cli.options import progress_bar


@contextmanager
def counting(total: int, every: int = 10) -> Iterator[Callable[[str], None]]:
    """A function to call with a description whenever one of `total` texts is done.

    A bar on a terminal; elsewhere a line for one text in `every`, and for the last.
    """
    done = 0
    with progress_bar() as bar:
        task = bar.add_task("starting", total=total)

        def step(description: str) -> None:
            nonlocal done
            done += 1
            bar.update(task, description=description, advance=1)
            if not bar.console.is_terminal and (done % every == 0 or done == total):
                click.echo(f"{done} of {total} texts: {description}", err=True)

        yield step
