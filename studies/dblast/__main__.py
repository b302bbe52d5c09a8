"""`python -m studies.dblast`."""

import click

from studies.command_line import main
from studies.dblast import ablate, tune_zt


@click.group("dblast")
def group() -> None:
    """Study DBlast's mixture of branches."""


group.add_command(ablate.command)
group.add_command(tune_zt.command)

if __name__ == "__main__":
    main(group, "python -m studies.dblast")
