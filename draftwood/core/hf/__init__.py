"""Hugging Face models as targets. The only place, beside training, that imports transformers."""

from draftwood.core.hf.loading import load_target, load_tokenizer, wrap_model
from draftwood.core.hf.processors import adapt_stopping, build_processors
from draftwood.core.hf.session import HFSession
from draftwood.core.hf.target import HFTarget

__all__ = [
    "HFSession",
    "HFTarget",
    "adapt_stopping",
    "build_processors",
    "load_target",
    "load_tokenizer",
    "wrap_model",
]
