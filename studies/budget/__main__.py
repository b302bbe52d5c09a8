"""`python -m studies.budget`."""

from studies.budget.command import command
from studies.command_line import main

if __name__ == "__main__":
    main(command, "python -m studies.budget")
