"""Registers the bundled drafters."""

from draftwood.core.checkpoints import config_file
from draftwood.core.hookspecs import hookimpl
from draftwood.core.plugin import DrafterTraits, Plugin
from draftwood.plugins.drafters.options import (
    DFlashOptions,
    DraftModelOptions,
    Eagle3Options,
    NgramOptions,
)


def _dflash_traits(options: DFlashOptions) -> DrafterTraits:
    """From the checkpoint's config.json; a hub checkpoint not yet here says little."""
    from draftwood.plugins.drafters.dflash.config import DFlashConfig

    path = config_file(options.checkpoint, options.revision)
    if path is None:
        return DrafterTraits(law="factorized", max_depth=1, taps=None)
    config = DFlashConfig.from_file(path)
    return DrafterTraits(
        law="markov" if config.selector_rank else "factorized",
        max_depth=config.block_size - 1,
        taps=config.target_layer_ids,
        target_hidden_size=config.hidden_size,
        target_layers=config.num_target_layers,
        vocab_size=config.vocab_size,
    )


def _eagle3_traits(options: Eagle3Options) -> DrafterTraits:
    """From the checkpoint's config.json; a hub checkpoint not yet here says little."""
    from draftwood.plugins.drafters.eagle3.config import Eagle3Config

    path = config_file(options.checkpoint, options.revision)
    config = None if path is None else Eagle3Config.from_file(path)
    known = {}
    if config is not None:
        known = {
            "target_hidden_size": config.target_hidden_size,
            "vocab_size": config.vocab_size,
        }
    return DrafterTraits(
        law="autoregressive",
        max_depth=options.max_depth,
        pass_per_level=True,
        taps=options.taps or (config.target_layer_ids if config else None),
        **known,
    )


@hookimpl
def draftwood_register_drafters() -> list[Plugin]:
    return [
        Plugin(
            name="dflash",
            summary="a block of next-token laws from one pass (DFlash and DFlash 2 checkpoints)",
            options=DFlashOptions,
            factory="draftwood.plugins.drafters.dflash.drafter:DFlash",
            traits=_dflash_traits,
        ),
        Plugin(
            name="draft_model",
            summary="a small language model with the target's tokenizer, a pass per level",
            options=DraftModelOptions,
            factory="draftwood.plugins.drafters.draft_model.drafter:DraftModel",
            traits=lambda options: DrafterTraits(
                law="autoregressive", max_depth=options.max_depth, pass_per_level=True
            ),
        ),
        Plugin(
            name="eagle3",
            summary="token after token from the target's features, a pass per level (EAGLE-3)",
            options=Eagle3Options,
            factory="draftwood.plugins.drafters.eagle3.drafter:Eagle3",
            traits=_eagle3_traits,
        ),
        Plugin(
            name="ngram",
            summary="what followed the same tokens earlier in prompt and output; no weights",
            options=NgramOptions,
            factory="draftwood.plugins.drafters.ngram:Ngram",
            traits=lambda options: DrafterTraits(law="points", max_depth=options.max_depth),
        ),
    ]
