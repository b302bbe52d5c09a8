"""Targets from folders, names and memory: what loads, and why something does not."""

import pytest
import torch

from draftwood.core.errors import CheckpointError, ConfigError, PairingError
from draftwood.core.hf import load_target, load_tokenizer, wrap_model


class Tokenizer:
    def __init__(self, tokens, largest=None):
        self.tokens, self.largest = tokens, largest or tokens - 1

    def __len__(self):
        return self.tokens

    def get_vocab(self):
        return {"a": 0, "b": self.largest}


@pytest.fixture
def folder(tmp_path, tiny_model):
    tiny_model("qwen3", dtype=torch.float32).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_saved_folder_loads_as_the_same_target(folder, attention, tiny_target):
    target = load_target(folder, device="cpu", dtype="float64", attention=attention)
    assert target.name == str(folder)
    assert target.dtype == torch.float64
    assert target.scorer.config._attn_implementation == attention
    expected = tiny_target("qwen3", attention, torch.float32).open().prefill([1, 2]).logits
    assert (target.open().prefill([1, 2]).logits - expected).abs().max() < 1e-4


def test_a_missing_gpu_is_refused_before_anything_loads(tmp_path):
    for name in ("cuda:99", f"cuda:{torch.cuda.device_count()}"):
        with pytest.raises(ConfigError, match=r"runtime\.device: 'cuda:\d+' does not exist here"):
            load_target(tmp_path / "missing", device=name)


def test_the_checkpoints_own_dtype_is_the_default(folder):
    assert load_target(folder, device="cpu").dtype == torch.float32


def test_threads_are_set_only_where_a_number_is_given(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    load_target(folder, device="cpu")
    assert asked == []
    load_target(folder, device="cpu", threads=3)
    assert asked == [3]


def test_a_missing_folder_is_a_checkpoint_error(tmp_path):
    with pytest.raises(CheckpointError, match=r"cannot be loaded.*"):
        load_target(tmp_path / "missing", device="cpu")


def test_an_unknown_dtype_is_refused_with_the_choices(folder):
    with pytest.raises(CheckpointError, match="choices: auto, float32"):
        load_target(folder, dtype="float31")


def test_pickled_weights_load_only_where_they_are_allowed(folder, tiny_model):
    (folder / "model.safetensors").unlink()
    weights = tiny_model("qwen3", dtype=torch.float32).state_dict()
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="allow_pickle"):
        load_target(folder, device="cpu")
    assert load_target(folder, device="cpu", allow_pickle=True).vocab_size == 61


def test_a_checkpoint_without_a_tokenizer_gives_none(folder):
    assert load_tokenizer(folder) is None
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="tokenizer"):
        load_tokenizer(folder)


@pytest.mark.covers("vocabulary-size")
def test_a_padded_vocabulary_is_allowed_and_never_emitted(tiny_model):
    target = wrap_model(tiny_model("llama"), Tokenizer(50))
    assert target.open().prefill([1]).logits[0, 50:].max() == -torch.inf
    whole = wrap_model(tiny_model("llama"), Tokenizer(61))
    assert whole.open().prefill([1]).logits.isfinite().all()
    sparse = wrap_model(tiny_model("llama"), Tokenizer(50, largest=60))  # ids with gaps
    assert sparse.open().prefill([1]).logits.isfinite().all()


@pytest.mark.covers("vocabulary-size")
def test_a_tokenizer_with_more_tokens_than_logits_is_refused(tiny_model):
    with pytest.raises(PairingError, match=r"62 tokens.*only 61"):
        wrap_model(tiny_model("llama"), Tokenizer(62))


def test_weights_can_be_shared_with_a_drafter(tiny_model):
    model = tiny_model("gemma3")
    target = wrap_model(model)
    assert target.embedding_weight() is model.model.embed_tokens.weight
    assert target.head_weight() is model.lm_head.weight
