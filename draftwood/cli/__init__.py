"""The `draftwood` command."""


def main() -> None:
    """Run the command line."""
    raise SystemExit("not yet")
