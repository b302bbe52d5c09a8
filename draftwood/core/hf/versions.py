"""What differs between transformers releases and models, detected by feature, not by version."""

import inspect
from typing import Any

import transformers

VERSION: str = transformers.__version__


def accepts(model: Any, keyword: str) -> bool:
    """Whether the model's forward names this keyword.

    `**kwargs` does not count: a model that takes a keyword this way may not act on it.
    """
    return keyword in inspect.signature(model.forward).parameters


def cache_keyword(model: Any) -> str:
    """The keyword of the model's forward for its cache: `cache` since 5.24, `past_key_values`
    before and in code that ships with a checkpoint."""
    return "cache" if accepts(model, "cache") else "past_key_values"


def text_config(model: Any) -> Any:
    """The configuration of the part that decodes text, of composite models too."""
    return model.config.get_text_config(decoder=True)
