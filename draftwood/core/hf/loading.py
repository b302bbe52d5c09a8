"""Targets and tokenizers from a folder, a hub name, or a model that is already in memory."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from draftwood.core.errors import CheckpointError, ConfigError, PairingError, Problem
from draftwood.core.hf import gguf
from draftwood.core.hf.graphs import Mode
from draftwood.core.hf.parallel import decide_together, placement
from draftwood.core.hf.target import HFTarget
from draftwood.core.hf.versions import VERSION


def load_target(
    model: str | Path,
    *,
    revision: str | None = None,
    gguf_file: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    attention: Literal["auto", "sdpa", "eager"] = "auto",
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    threads: int | Literal["auto"] = "auto",
    tokenizer: Any | None = None,
    prefill_chunk: int = 1024,
    parallel: Literal["none", "tensor", "layers"] = "none",
    graphs: Mode = "off",
) -> HFTarget:
    """Load a causal LM as a target.

    model: a folder, a hub name or a GGUF file. gguf_file: the name of one in the folder or
    repository; its weights are unpacked, to float32 if the dtype is "auto". device: "auto" takes a
    GPU if there is one. dtype: a torch dtype's name, or "auto" for the checkpoint's own. attention:
    "auto" is sdpa where the model has it, else eager. threads: CPU threads of the whole process;
    "auto" leaves them. tokenizer: the one whose vocabulary bounds what may be emitted. parallel:
    one device, each layer split over the processes of torchrun, or layers spread over the GPUs of
    this process (see `draftwood.core.hf.parallel`); the last two choose devices themselves.
    graphs: whether forwards are captured (see `draftwood.core.hf.graphs`).

    Raises CheckpointError if nothing can be loaded, naming why (safetensors are required unless
    allow_pickle, code in the checkpoint runs only with trust_remote_code), and UnsupportedTarget
    for an architecture that cannot be a target.
    """
    place = pick_device(device)
    if threads != "auto":
        torch.set_num_threads(threads)
    options: dict[str, Any] = {
        "revision": revision or "main",
        "dtype": _dtype(dtype),
        "trust_remote_code": trust_remote_code,
    }
    if attention != "auto":
        options["attn_implementation"] = attention
    source, stored = gguf.located(model, gguf_file)
    if stored:
        options |= gguf.unpacked(stored)
    elif not allow_pickle:
        options["use_safetensors"] = True
    try:
        with _without_bars():
            code = {"revision": options["revision"], "trust_remote_code": trust_remote_code}
            placed = placement(parallel, source, **code, **stored)
            options |= placed
            loaded = AutoModelForCausalLM.from_pretrained(source, **options)
    except _UNREADABLE as error:
        raise CheckpointError(
            f"the target {str(model)!r} cannot be loaded with transformers {VERSION}: {error}\n"
            "  weights must be safetensors (allow_pickle: true accepts others); code inside a "
            f"checkpoint runs only with trust_remote_code: true{gguf.hint(model)}"
        ) from error
    loaded = (loaded if placed else loaded.to(place)).eval()
    return wrap_model(
        loaded, tokenizer, name=str(model), prefill_chunk=prefill_chunk, graphs=graphs
    )


def wrap_model(
    model: Any,
    tokenizer: Any | None = None,
    *,
    name: str | None = None,
    prefill_chunk: int = 1024,
    graphs: Mode = "off",
) -> HFTarget:
    """A model in memory as a target. tokenizer: logits rows that it has no token for are padding
    and are never emitted; one with more tokens than rows raises PairingError. The processes that
    share a model split by tensors decide together from here on."""
    decide_together(model)
    target = HFTarget(model, name=name, prefill_chunk=prefill_chunk, graphs=graphs)
    if tokenizer is not None:
        limit = vocabulary_size(tokenizer)
        if limit > target.vocab_size:
            raise PairingError(
                f"the tokenizer has {limit} tokens, but {target.name} scores only "
                f"{target.vocab_size}: they do not belong together"
            )
        target.limit_vocabulary(limit)
        target.tokenizer = tokenizer
    return target


_UNREADABLE = (OSError, ValueError, KeyError, ImportError, struct.error)
"""What transformers raises for files that are not there, broken, or of another kind."""

_TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model", "*.tiktoken")


def load_tokenizer(
    model: str | Path,
    *,
    revision: str | None = None,
    gguf_file: str | None = None,
    trust_remote_code: bool = False,
) -> Any | None:
    """The tokenizer beside a checkpoint, or in a GGUF file; None if its folder has none.
    CheckpointError if it cannot be loaded."""
    source, stored = gguf.located(model, gguf_file)
    folder = Path(source)
    # transformers makes up an empty tokenizer for a folder that holds only a model.
    if not stored and folder.is_dir() and not any(any(folder.glob(n)) for n in _TOKENIZER_FILES):
        return None
    try:
        return AutoTokenizer.from_pretrained(
            source, revision=revision or "main", trust_remote_code=trust_remote_code, **stored
        )
    except _UNREADABLE as error:
        raise CheckpointError(
            f"the tokenizer of {str(model)!r} cannot be loaded: {error}"
        ) from error


def vocabulary_size(tokenizer: Any) -> int:
    """One more than the largest token id that the tokenizer knows."""
    vocabulary = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else {}
    return max(len(tokenizer), 1 + max(vocabulary.values(), default=-1))


@contextmanager
def _without_bars() -> Iterator[None]:
    """Inside, transformers draws no progress bars: standard error is the caller's. Its setting is
    put back."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def pick_device(name: str) -> torch.device:
    """ "auto": the accelerator if there is one, else the CPU. ConfigError for a GPU that is not."""
    if name != "auto":
        place = torch.device(name)
        count = torch.cuda.device_count()
        if place.type == "cuda" and (place.index or 0) >= count:
            message = f"{name!r} is not here: torch sees {count} GPUs"
            choices = ", ".join(["auto", "cpu", *(f"cuda:{i}" for i in range(count))])
            hint = f"choices: {choices}"
            raise ConfigError([Problem("", "runtime.device", message, (hint,))])
        return place
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _dtype(name: str) -> Any:
    if name == "auto":
        return name
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise CheckpointError(f"{name!r} is no dtype; choices: auto, float32, bfloat16, float16")
    return dtype
