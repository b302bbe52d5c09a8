"""Registers the bundled drafters. Imports no torch."""

from draftwood.core.checkpoints import config_file
from draftwood.core.registry.hookspecs import hookimpl
from draftwood.core.registry.plugin import DrafterTraits, Plugin, ProposalForm
from draftwood.plugins.drafters.dblast.config import DBlastConfig
from draftwood.plugins.drafters.dflash.config import DFlashConfig
from draftwood.plugins.drafters.eagle3.config import Eagle3Config
from draftwood.plugins.drafters.options import (
    DBlastOptions,
    DFlashOptions,
    DraftModelOptions,
    Eagle3Options,
    NgramOptions,
    UnionOptions,
)


def _dflash_traits(options: DFlashOptions) -> DrafterTraits:
    """From config.json; a hub checkpoint that is not cached yet gives the form alone."""
    path = config_file(options.checkpoint, options.revision)
    if path is None:
        return DrafterTraits(form="factorized", max_depth=1, taps=None)
    config = DFlashConfig.from_file(path)
    return _block_traits(config, "markov" if config.selector_rank else "factorized")


def _dblast_traits(options: DBlastOptions) -> DrafterTraits:
    """From config.json; a hub checkpoint that is not cached yet gives the form alone."""
    path = config_file(options.checkpoint, options.revision, part="dblast")
    if path is None:
        return DrafterTraits(form="mixture", max_depth=1, taps=None)
    return _block_traits(DBlastConfig.from_file(path), "mixture")


def _block_traits(config: DFlashConfig, form: ProposalForm) -> DrafterTraits:
    return DrafterTraits(
        form=form,
        max_depth=config.block_size - 1,
        taps=config.target_layer_ids,
        target_hidden_size=config.hidden_size,
        target_layers=config.num_target_layers,
        vocab_size=config.vocab_size or None,
    )


def _eagle3_traits(options: Eagle3Options) -> DrafterTraits:
    """From config.json; a hub checkpoint that is not cached yet gives options alone."""
    path = config_file(options.checkpoint, options.revision, part="eagle3")
    config = None if path is None else Eagle3Config.from_file(path)
    return DrafterTraits(
        form="autoregressive",
        max_depth=options.max_depth,
        pass_per_level=True,
        taps=options.taps or (config.target_layer_ids if config else None),
        target_hidden_size=config.target_hidden_size if config else None,
        vocab_size=config.vocab_size if config else None,
    )


def _ngram_traits(options: NgramOptions) -> DrafterTraits:
    return DrafterTraits(form="lookup", max_depth=options.max_depth)


def _draft_model_traits(options: DraftModelOptions) -> DrafterTraits:
    return DrafterTraits(form="autoregressive", max_depth=options.max_depth, pass_per_level=True)


def _union_traits(options: UnionOptions) -> DrafterTraits:
    """A union's distributions depend on the whole path; its target must fit every source."""
    sources = options.sources
    parts = [sources.entries[name].traits(given) for name, given in sources.items()]

    def first(key: str) -> int | None:
        values = (getattr(part, key) for part in parts)
        return next((value for value in values if value is not None), None)

    taps = [part.taps for part in parts]
    return DrafterTraits(
        form="autoregressive",
        max_depth=max(part.max_depth for part in parts),
        pass_per_level=any(part.pass_per_level for part in parts),
        taps=None if None in taps else tuple(tap for some in taps for tap in some or ()),
        target_hidden_size=first("target_hidden_size"),
        target_layers=first("target_layers"),
        vocab_size=first("vocab_size"),
    )


@hookimpl
def draftwood_register_drafters() -> list[Plugin]:
    return [
        Plugin(
            name="dblast",
            summary="a mixture of K blocks from one forward pass (DBlast; DFlash with K = 1)",
            options=DBlastOptions,
            factory="draftwood.plugins.drafters.dblast.drafter:DBlast",
            traits=_dblast_traits,
        ),
        Plugin(
            name="dflash",
            summary="a block of next-token distributions from one forward pass (DFlash, DFlash 2)",
            options=DFlashOptions,
            factory="draftwood.plugins.drafters.dflash.drafter:DFlash",
            traits=_dflash_traits,
        ),
        Plugin(
            name="draft_model",
            summary="a small language model with the target's tokenizer, a forward pass per level",
            options=DraftModelOptions,
            factory="draftwood.plugins.drafters.draft_model.drafter:DraftModel",
            traits=_draft_model_traits,
        ),
        Plugin(
            name="eagle3",
            summary="token by token from the target's features, a forward pass per level (EAGLE-3)",
            options=Eagle3Options,
            factory="draftwood.plugins.drafters.eagle3.drafter:Eagle3",
            traits=_eagle3_traits,
        ),
        Plugin(
            name="ngram",
            summary="continuations of the same tokens earlier in prompt and output; no weights",
            options=NgramOptions,
            factory="draftwood.plugins.drafters.ngram.drafter:Ngram",
            traits=_ngram_traits,
        ),
        Plugin(
            name="union",
            summary="several drafters' proposals in one tree, weighed by their past acceptance",
            options=UnionOptions,
            factory="draftwood.plugins.drafters.union.drafter:Union",
            traits=_union_traits,
        ),
    ]
