"""How far a long command is, on standard error."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click


@contextmanager
def counting(total: int, every: int = 10) -> Iterator[Callable[[str], None]]:
    """A function to call when one of `total` texts is done, with what it was.

    A bar on a terminal; elsewhere a line for one text in `every`, and for the last.
    """
    from rich.console import Console
    from rich.progress import Progress

    console, done = Console(stderr=True), 0
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=total)

        def step(description: str) -> None:
            nonlocal done
            done += 1
            bar.update(task, description=description, advance=1)
            if not console.is_terminal and (done % every == 0 or done == total):
                click.echo(f"{done} of {total} texts: {description}", err=True)

        yield step
