"""`python -m draftwood`."""

from draftwood.cli import main

main()
