"""The causal LM inside what people wrap around one: torch.compile, PEFT."""

import logging
from typing import Any

from draftwood.core.errors import UnsupportedTarget

log = logging.getLogger("draftwood")


def unwrap(model: Any) -> Any:
    """The Hugging Face model whose forwards are to be scored.

    `torch.compile(model)` gives its original: a compiled forward is compiled again for each number
    of rows and each context. A PEFT model gives its base model, in whose layers the adapters lie,
    so that an adapter that is switched between requests counts from the next request on.

    Raises:
        UnsupportedTarget: a soft prompt (prompt or prefix tuning) or a model without a head.
    """
    original = getattr(model, "_orig_mod", None)
    if original is not None:
        log.info(
            "%s runs uncompiled: torch.compile's wrapper is taken off", type(original).__name__
        )
        return unwrap(original)
    if hasattr(model, "peft_config") and hasattr(model, "get_base_model"):
        config = model.peft_config[model.active_adapter]
        if getattr(config, "is_prompt_learning", False):
            raise UnsupportedTarget(
                f"{type(model).__name__} puts the virtual tokens of {config.peft_type.value} "
                "before every text, which only its own forward adds; use an adapter inside the "
                "layers (LoRA and the like), or a model without it"
            )
        return unwrap(model.get_base_model())
    name = type(model).__name__
    if not hasattr(model, "get_output_embeddings") or model.get_output_embeddings() is None:
        raise UnsupportedTarget(
            f"{name} has no language-model head, so it gives no logits; load the checkpoint with "
            "AutoModelForCausalLM"
        )
    return model
