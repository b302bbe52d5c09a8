"""Registers the drafter `bigram`. Imports no torch: the record names its class by path."""

from attrs import field, frozen
from attrs.validators import ge

from draftwood import DrafterTraits, Plugin, hookimpl


@frozen
class BigramOptions:
    """depth: most tokens proposed a round."""

    depth: int = field(default=8, validator=ge(1))


@hookimpl
def draftwood_register_drafters():
    yield Plugin(
        name="bigram",
        summary="each token followed by what followed it last",
        options=BigramOptions,
        factory="draftwood_example_plugin.drafter:Bigram",
        traits=lambda options: DrafterTraits(form="lookup", max_depth=options.depth),
    )
