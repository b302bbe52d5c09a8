"""Hugging Face models as targets. The only place, beside training, that imports transformers."""

from draftwood.core.hf.target import HFSession, HFTarget

__all__ = ["HFSession", "HFTarget"]
