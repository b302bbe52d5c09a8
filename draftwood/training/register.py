"""Registers the bundled training algorithms. Imports no torch."""

from collections.abc import Iterable

from draftwood.core.registry.hookspecs import hookimpl
from draftwood.core.registry.plugin import TrainablePlugin
from draftwood.training.config import DBlastTraining, DFlashTraining, Eagle3Training


@hookimpl
def draftwood_register_trainables() -> Iterable[TrainablePlugin]:
    yield TrainablePlugin(
        name="dflash",
        summary="a block drafter, with the selector of DFlash 2 or without",
        options=DFlashTraining,
        factory="draftwood.training.blocks:TrainableBlocks.of",
    )
    yield TrainablePlugin(
        name="dblast",
        summary="a mixture of block drafters (DBlast)",
        options=DBlastTraining,
        factory="draftwood.training.branches:TrainableBranches.start",
    )
    yield TrainablePlugin(
        name="eagle3",
        summary="an EAGLE-3 drafter, by training-time test",
        options=Eagle3Training,
        factory="draftwood.training.eagle.trainable:TrainableEagle3.of",
    )
