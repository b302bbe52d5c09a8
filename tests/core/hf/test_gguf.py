"""Targets and tokenizers from GGUF files: the same model, whatever it is stored as."""

import shutil

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from draftwood.core import build
from draftwood.core.errors import CheckpointError
from draftwood.core.hf import gguf as reading
from draftwood.core.hf import load_target, load_tokenizer, wrap_model

WORDS = 288
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers": "blk",
}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=WORDS,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=128,
        intermediate_size=96,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    return Qwen3ForCausalLM(config).eval()


def letters() -> list[str]:
    """A byte-level vocabulary: the 256 bytes as such vocabularies spell them, one merge of two, and
    made-up words."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    spelled = [letter for _, letter in sorted(bytes_to_unicode().items())]
    extra = [f"<extra{i}>" for i in range(WORDS - 258)]
    return [*spelled, "ab", *extra, "<|endoftext|>"]


@pytest.fixture(scope="module")
def file(model, tmp_path_factory):
    """The model with its matrices in blocks of eight bits, as GGUF files store them, and those
    matrices as a reader must give them back."""
    gguf = pytest.importorskip("gguf", reason="reading GGUF files needs gguf")
    path = tmp_path_factory.mktemp("stored") / "tiny-q8_0.gguf"
    writer, config = gguf.GGUFWriter(path, "qwen3"), model.config
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(WORDS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(letters())
    writer.add_token_types([1] * 257 + [3] * (WORDS - 257))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(WORDS - 1)
    kind, meant = gguf.GGMLQuantizationType.Q8_0, {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue  # tied
        array, stored = tensor.numpy(), name
        for theirs, ours in NAMES.items():
            stored = stored.replace(theirs, ours)
        if array.ndim == 2:
            blocks = gguf.quants.quantize(array, kind)
            writer.add_tensor(stored, blocks, raw_dtype=kind)
            meant[name] = torch.from_numpy(gguf.quants.dequantize(blocks, kind).copy())
        else:
            writer.add_tensor(stored, array.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, meant


@pytest.mark.parametrize("named", ["by its path", "in its folder"])
def test_a_gguf_file_gives_the_weights_of_its_blocks(named, file, model):
    path, meant = file
    if named == "by its path":
        target = load_target(path, device="cpu")
    else:
        target = load_target(path.parent, gguf_file=path.name, device="cpu")
    assert target.dtype == torch.float32
    assert type(target.model) is type(model)
    loaded, meant = target.model.state_dict(), model.state_dict() | meant
    meant["lm_head.weight"] = meant["model.embed_tokens.weight"]
    for name, expected in meant.items():
        torch.testing.assert_close(loaded[name], expected, atol=1e-6, rtol=1e-6)
    exact = wrap_model(model).open().prefill([1, 2, 3]).logits
    found = target.open().prefill([1, 2, 3]).logits
    assert 0 < (found - exact).abs().max() < 0.1 * exact.abs().max()  # eight bits are not exact


def test_weights_are_unpacked_to_the_given_dtype(file):
    assert load_target(file[0], device="cpu", dtype="bfloat16").dtype == torch.bfloat16


def test_the_tokenizer_is_read_from_the_file(file):
    tokenizer = load_tokenizer(file[0])
    assert tokenizer("cab")["input_ids"] == [letters().index("c"), letters().index("ab")]
    assert tokenizer.decode(tokenizer("a text")["input_ids"]) == "a text"


@pytest.mark.parametrize("target", ["model: {path}", "model: {folder}, gguf_file: {name}"])
def test_a_pipeline_loads_the_gguf_file_that_it_names(target, file, tmp_path):
    path = file[0]
    names = {"path": path, "folder": path.parent, "name": path.name}
    document = tmp_path / "ngram.yaml"
    document.write_text(f"extends: ngram\ntarget: {{{target.format(**names)}}}\n")
    pipeline = build.load_pipeline(document)
    plain = build.load_pipeline(document, ["drafter=null", "tree=null", "controller=null"])
    options = {"max_new_tokens": 12, "eos_token_id": ()}
    texts = [one.generate("abcabcabc", **options) for one in (pipeline, plain)]
    assert texts[0].tokens == texts[1].tokens
    assert len(texts[0].tokens) == 12


def test_a_relative_path_starts_at_the_documents_folder(file, tmp_path):
    shutil.copy(file[0], tmp_path / "tiny.gguf")
    document = tmp_path / "plain.yaml"
    document.write_text("extends: plain\ntarget: {model: ./tiny.gguf}\n")
    assert build.load_pipeline(document).target.vocab_size == WORDS


def test_a_file_of_that_name_in_the_current_folder_is_not_read(file, tmp_path, monkeypatch):
    (tmp_path / file[0].name).write_bytes(b"something else")
    monkeypatch.chdir(tmp_path)
    target = load_target(file[0].parent, gguf_file=file[0].name, device="cpu")
    assert target.vocab_size == WORDS


def test_missing_packages_are_named_with_the_extra_that_installs_them(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "find_spec", lambda name: None)
    message = r"needs gguf and accelerate(.|\n)*draftwood\[gguf\]"
    for load in (load_target, load_tokenizer):
        with pytest.raises(CheckpointError, match=message):
            load(tmp_path / "model.gguf")


def test_a_missing_file_is_named_beside_those_that_exist(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "find_spec", lambda name: True)
    (tmp_path / "other.gguf").touch()
    with pytest.raises(CheckpointError, match=r"model\.gguf does not exist(.|\n)*other\.gguf"):
        load_target(tmp_path, gguf_file="model.gguf")
    with pytest.raises(CheckpointError, match=r"name it in target\.gguf_file"):
        load_target(tmp_path, device="cpu")


def test_a_broken_file_is_a_checkpoint_error(tmp_path):
    pytest.importorskip("gguf", reason="reading GGUF files needs gguf")
    (tmp_path / "model.gguf").write_bytes(b"GGUF, but not for long")
    with pytest.raises(CheckpointError, match=r"model\.gguf"):
        load_target(tmp_path / "model.gguf", device="cpu")


def test_only_gguf_files_are_unpacked():
    """transformers keeps the blocks of some architectures where it finds kernels that read them."""
    assert reading.unpacked({}) == {}
    wish = reading.unpacked({"gguf_file": "model.gguf"})
    assert wish["gguf_file"] == "model.gguf"
    assert wish["quantization_config"].dequantize
