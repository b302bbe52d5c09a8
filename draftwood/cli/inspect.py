"""`draftwood inspect`: what a checkpoint is, and whether it can be used."""

import click

from draftwood.cli.options import json_option, print_json, table

JSON = {
    "format": "zlab, speculators, eagle (EAGLE-3's original layout) or transformers",
    "algorithm": "dflash, dflash2, eagle3 or causal_lm; else the checkpoint's own name for it",
    "pairs_with": "{model, layers, hidden_size} of the target; null where it does not say",
    "taps": "0-based target layers that are read; null if it does not say",
    "block": "slots of one pass; null for one token a pass",
    "vocabulary": "{size, draft}: the target's and the drafter's own; null if unknown",
    "problems": "why it cannot be used; empty if it can",
}


@click.command("inspect")
@click.argument("checkpoint")
@json_option
def command(checkpoint: str, as_json: bool) -> int:
    """Say what a drafter checkpoint is, and whether it can be used.

    CHECKPOINT is a folder, `builtin`, or a hub name (which is downloaded). Reads config.json and
    the headers of the weights, which must fit it and the size of their files. Exits with 1 if
    there are problems.

    \b
      draftwood inspect builtin
      draftwood inspect path/to/drafter --json
    """
    from draftwood.core.checkpoints import fetch
    from draftwood.plugins.drafters.formats.describe import describe

    found = describe(fetch(checkpoint))
    if as_json:
        print_json(found.as_dict())
        return 1 if found.problems else 0
    pairing, vocabulary = found.pairs_with, found.vocabulary
    sizes = (("layers", pairing.layers), ("hidden size", pairing.hidden_size))
    target = [f"{name} {size}" for name, size in sizes if size is not None]
    rows = [
        ("algorithm", found.algorithm),
        ("pairs with", ", ".join([*([pairing.model] if pairing.model else []), *target]) or "-"),
        ("taps", "-" if found.taps is None else ", ".join(map(str, found.taps)) or "none"),
        ("block", str(found.block or "-")),
        ("vocabulary", f"{vocabulary.draft} of {vocabulary.size}" if vocabulary else "-"),
    ]
    click.echo(table(rows, ("format", found.format)))
    for problem in found.problems:
        click.echo(f"problem: {problem}")
    return 1 if found.problems else 0
