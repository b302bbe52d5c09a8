"""What differs between transformers releases and models, found by looking, not by number."""

import inspect
from typing import Any

import transformers

VERSION: str = transformers.__version__


def accepts(model: Any, keyword: str) -> bool:
    """Whether the model's forward names this keyword. `**kwargs` does not count: a model that
    swallows a keyword does not act on it."""
    return keyword in inspect.signature(model.forward).parameters


def cache_keyword(model: Any) -> str:
    """How the model's forward calls its cache: `cache` since 5.24, `past_key_values` before and
    in code that ships with a checkpoint."""
    return "cache" if accepts(model, "cache") else "past_key_values"


def text_config(model: Any) -> Any:
    """The configuration of the part that decodes text, for composite models too."""
    return model.config.get_text_config(decoder=True)
