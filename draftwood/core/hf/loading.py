"""Targets and tokenizers from a folder, a hub name, or a model that is already in memory."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from draftwood.core.errors import CheckpointError, ConfigError, PairingError, Problem
from draftwood.core.hf import gguf
from draftwood.core.hf.graphs import Mode
from draftwood.core.hf.loaded_weights import refuse_damaged, refuse_not_finite, refuse_too_few
from draftwood.core.hf.parallel import decide_together, placement
from draftwood.core.hf.quantised import refuse_quantised_activations
from draftwood.core.hf.target import HFTarget
from draftwood.core.hf.versions import VERSION
from draftwood.core.hub import cached_only


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

    Args:
        model: a folder, a hub name or a GGUF file.
        gguf_file: the name of a GGUF file in the folder or repository; its weights are unpacked,
            to float32 if the dtype is "auto".
        device: "auto" takes a GPU if there is one.
        dtype: a torch dtype's name, or "auto" for the checkpoint's own.
        attention: "auto" is sdpa where the model has it, else eager.
        threads: CPU threads of the whole process; "auto" leaves them.
        tokenizer: the one whose vocabulary bounds what may be emitted.
        parallel: one device; each layer split over the processes of torchrun ("tensor"); or
            layers spread over the GPUs of this process ("layers"). The last two choose devices
            themselves, see `draftwood.core.hf.parallel`.
        graphs: whether forwards are captured, see `draftwood.core.hf.graphs`.

    Raises:
        CheckpointError: the weights cannot be loaded, are damaged or are not those of the
            architecture. Weights must be safetensors unless allow_pickle; code in the checkpoint
            runs only with trust_remote_code.
        UnsupportedTarget: the architecture cannot be a target.
    """
    chosen_device = pick_device(device)
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
    if not Path(source).is_dir():
        file = stored.get("gguf_file", "config.json")
        options["local_files_only"] = cached_only(source, revision, file=file)
    if stored:
        options |= gguf.unpacked(stored)
    elif not allow_pickle:
        options["use_safetensors"] = True
    try:
        with _without_bars():
            names = ("revision", "trust_remote_code", "local_files_only")
            code = {name: options[name] for name in names if name in options}
            placed = placement(parallel, source, **code, **stored)
            options |= placed
            if Path(source).is_dir() and not stored and not trust_remote_code:
                refuse_too_few(Path(source), AutoConfig.from_pretrained(source), str(model))
            loaded, info = AutoModelForCausalLM.from_pretrained(
                source, output_loading_info=True, ignore_mismatched_sizes=True, **options
            )
    except _UNREADABLE as error:
        raise CheckpointError(
            f"the target {str(model)!r} cannot be loaded with transformers {VERSION}: {error}\n"
            "  weights must be safetensors (allow_pickle: true accepts others); code inside a "
            f"checkpoint runs only with trust_remote_code: true{gguf.hint(model)}"
        ) from error
    refuse_damaged(loaded, info, str(model))
    refuse_quantised_activations(loaded)  # before it is moved, which some of these cannot be
    refuse_not_finite(loaded, str(model))
    loaded = (loaded if placed else loaded.to(chosen_device)).eval()
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
    """Make a target of a model in memory.

    The processes that share a model split by tensors decide together from here on.

    Args:
        tokenizer: logits of ids that it has no token for are padding and are never emitted.

    Raises:
        PairingError: the tokenizer has more tokens than the model has logits.
        UnsupportedTarget: the model cannot be a target.
    """
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


_UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    ImportError,
    RuntimeError,
    EOFError,
    struct.error,
    SafetensorError,
)
"""What transformers raises for files that are missing, broken, or of another kind."""

_TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model", "*.tiktoken")


def load_tokenizer(
    model: str | Path,
    *,
    revision: str | None = None,
    gguf_file: str | None = None,
    trust_remote_code: bool = False,
) -> Any | None:
    """Load the tokenizer beside a checkpoint or in a GGUF file.

    Returns:
        None if the checkpoint's folder has no tokenizer.

    Raises:
        CheckpointError: it cannot be loaded.
    """
    source, stored = gguf.located(model, gguf_file)
    folder = Path(source)
    # transformers returns an empty tokenizer for a folder that holds only a model.
    if not stored and folder.is_dir() and not any(any(folder.glob(n)) for n in _TOKENIZER_FILES):
        return None
    if not folder.is_dir():
        file = stored.get("gguf_file", "config.json")
        stored["local_files_only"] = cached_only(source, revision, file=file)
    try:
        return AutoTokenizer.from_pretrained(
            source, revision=revision or "main", trust_remote_code=trust_remote_code, **stored
        )
    except Exception as error:  # the tokenizers library raises plain Exceptions
        raise CheckpointError(
            f"the tokenizer of {str(model)!r} cannot be loaded: {error}"
        ) from error


def vocabulary_size(tokenizer: Any) -> int:
    """One more than the largest token id that the tokenizer knows."""
    vocabulary = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else {}
    return max(len(tokenizer), 1 + max(vocabulary.values(), default=-1))


@contextmanager
def _without_bars() -> Iterator[None]:
    """Switch off transformers' progress bars inside: standard error is the caller's."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def pick_device(name: str) -> torch.device:
    """The device of this name; "auto" is a GPU if there is one, else the CPU.

    Raises:
        ConfigError: there is no such GPU.
    """
    if name != "auto":
        device = torch.device(name)
        count = torch.cuda.device_count()
        if device.type == "cuda" and (device.index or 0) >= count:
            message = f"{name!r} does not exist here: torch sees {count} GPUs"
            choices = ", ".join(["auto", "cpu", *(f"cuda:{i}" for i in range(count))])
            hint = f"choices: {choices}"
            raise ConfigError([Problem("", "runtime.device", message, (hint,))])
        return device
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _dtype(name: str) -> Any:
    if name == "auto":
        return name
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise CheckpointError(f"{name!r} is not a dtype; choices: auto, float32, bfloat16, float16")
    return dtype
