"""The DFlash network against published-format checkpoints and their recorded outputs."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwood.core.errors import CheckpointError
from draftwood.plugins.drafters.dflash.config import DFlashConfig
from draftwood.plugins.drafters.dflash.model import DFlashModel

FIXTURES = Path(__file__).parents[3] / "fixtures"
SETS = {
    "zlab/dflash": "zlab/dflash",
    "zlab/dflash2": "zlab/dflash2",
    "speculators/dflash": "zlab/dflash",
    "heads/jetspec": "heads/jetspec",
}


@pytest.fixture(scope="module")
def target() -> dict[str, torch.Tensor]:
    return load_file(FIXTURES / "zlab/target/model.safetensors")


def first_block(model, target, expected, prompts, k):
    """The hidden states of prompt k's first block, and its anchor."""
    features = expected[f"context_features_{k}"][0]
    n, anchor = features.shape[0], prompts[k]["output"][0]
    cached = model.context_kv(model.context(features), torch.arange(n))
    ids = torch.tensor([anchor] + [model.config.mask_token_id] * (model.config.block_size - 1))
    embeds = target["model.embed_tokens.weight"][ids]
    positions = torch.arange(n, n + model.config.block_size)
    return model.block(embeds, positions, cached)[1:], anchor, features, embeds


@pytest.mark.covers("block-start")
@pytest.mark.parametrize("k", range(4))
@pytest.mark.parametrize("layout", SETS)
def test_block_logits_equal_recorded_logits(layout, k, target):
    model = DFlashModel.from_folder(FIXTURES / layout)
    expected = load_file(FIXTURES / SETS[layout] / "expected.safetensors")
    prompts = json.loads((FIXTURES / SETS[layout] / "expected.json").read_text())
    hidden, _, _, _ = first_block(model, target, expected, prompts, k)
    logits = model.logits(hidden, target["lm_head.weight"])
    torch.testing.assert_close(logits, expected[f"block_logits_{k}"][0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("k", range(4))
def test_jetspec_read_without_its_causal_flag_gives_other_logits(k, target, tmp_path):
    """Negative control: the recorded logits are those of a causal block."""
    model = DFlashModel.from_folder(edited("heads/jetspec", tmp_path, causal_head=None))
    expected = load_file(FIXTURES / "heads/jetspec/expected.safetensors")
    prompts = json.loads((FIXTURES / "heads/jetspec/expected.json").read_text())
    hidden, _, _, _ = first_block(model, target, expected, prompts, k)
    logits = model.logits(hidden, target["lm_head.weight"])
    assert (logits - expected[f"block_logits_{k}"][0]).abs().max() > 1.0


@pytest.mark.parametrize("k", range(4))
def test_jetspec_s_first_drafts_are_the_recorded_ones(k, target):
    model = DFlashModel.from_folder(FIXTURES / "heads/jetspec")
    expected = load_file(FIXTURES / "heads/jetspec/expected.safetensors")
    prompts = json.loads((FIXTURES / "heads/jetspec/expected.json").read_text())
    hidden, anchor, _, _ = first_block(model, target, expected, prompts, k)
    assert anchor == prompts[k]["anchor"]
    chain = model.logits(hidden, target["lm_head.weight"]).argmax(-1)
    assert chain.tolist() == prompts[k]["chain"]


@pytest.mark.parametrize("k", range(4))
def test_selector_gives_the_recorded_candidates_and_path(k, target):
    folder = FIXTURES / "zlab/dflash2"
    model = DFlashModel.from_folder(folder)
    expected = load_file(folder / "expected.safetensors")
    prompts = json.loads((folder / "expected.json").read_text())
    hidden, anchor, _, _ = first_block(model, target, expected, prompts, k)
    logits = model.logits(hidden, target["lm_head.weight"])
    candidates, first, pair = model.selector.scores(logits, hidden, anchor)
    assert (candidates.sort(-1)[0] == expected[f"candidates_{k}"][0].sort(-1)[0]).all()
    at = int(first.argmax())
    path = [int(candidates[0, at])]
    for scores, row in zip(pair, candidates[1:], strict=True):
        at = int(scores[at].argmax())
        path.append(int(row[at]))
    assert path == expected[f"selected_path_{k}"][0].tolist()


@pytest.mark.parametrize("layout", ["zlab/dflash", "zlab/dflash2"])
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"is_causal": True},
        {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 6},
        {
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 4,
            "is_causal": False,
        },
    ],
    ids=["full", "causal", "sliding", "sliding in both directions"],
)
def test_packed_blocks_equal_single_blocks(layout, change, target, tmp_path):
    """Training and inference compute the same states, for every mask of a config."""
    folder = edited(layout, tmp_path, **change)
    model = DFlashModel.from_folder(folder)
    features = torch.randn(2, 12, 192, generator=torch.Generator().manual_seed(1))
    anchors = torch.tensor([[0, 3, 12], [5, 5, 11]])
    rows = target["model.embed_tokens.weight"]
    embeds = rows[torch.randint(0, 96, (2, 3, 8), generator=torch.Generator().manual_seed(2))]
    packed = model.blocks(features, embeds, anchors)
    for s in range(2):
        for a, at in enumerate(anchors[s].tolist()):
            cached = model.context_kv(model.context(features[s, :at]), torch.arange(at))
            alone = model.block(embeds[s, a], torch.arange(at, at + 8), cached)
            torch.testing.assert_close(packed[s, a], alone, atol=2e-5, rtol=0)


def edited(layout: str, tmp_path: Path, **change: object) -> Path:
    """A copy of a fixture with keys of its config replaced; None removes a key."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(FIXTURES / layout, folder)
    data = json.loads((folder / "config.json").read_text())
    for key, value in change.items():
        data.pop(key, None)
        data["dflash_config"].pop(key, None)
        if value is not None:
            data[key] = value
    (folder / "config.json").write_text(json.dumps(data))
    return folder


def test_soft_cap_and_multiplier_apply_and_keys_are_read_at_the_top_level(target, tmp_path):
    hidden = torch.randn(3, 64, generator=torch.Generator().manual_seed(3))
    head = target["lm_head.weight"]
    plain = DFlashModel.from_folder(FIXTURES / "zlab/dflash").logits(hidden, head)
    folder = edited(
        "zlab/dflash",
        tmp_path,
        output_multiplier=0.5,
        final_logit_softcapping=2.0,
        target_layer_ids=[1, 2, 4],
        mask_token_id=95,
        rope_parameters=None,
        rope_theta=10000,
    )
    model = DFlashModel.from_folder(folder)
    torch.testing.assert_close(model.logits(hidden, head), 2.0 * torch.tanh(plain * 0.5 / 2.0))


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"target_layer_ids": None}, "target_layer_ids"),
        ({"target_layer_ids": [1, 2, 6]}, "layers 0 to 5"),
        ({"block_size": None}, "block_size"),
        ({"mask_token_id": None}, "mask_token_id"),
        ({"rope_parameters": None}, "rope_theta"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}, "yarn"),
        ({"layer_types": ["sliding_attention"] * 2}, "sliding_window"),
    ],
)
def test_config_errors_name_file_and_key(change, key, tmp_path):
    folder = edited("zlab/dflash", tmp_path, **change)
    with pytest.raises(CheckpointError, match=key) as caught:
        DFlashConfig.from_file(folder)
    assert str(folder / "config.json") in str(caught.value)


def test_zlab_and_speculators_layouts_give_the_same_config():
    ours = DFlashConfig.from_file(FIXTURES / "zlab/dflash")
    theirs = DFlashConfig.from_file(FIXTURES / "speculators/dflash")
    assert theirs.target_layer_ids == ours.target_layer_ids == (1, 2, 4)
    assert (theirs.block_size, theirs.mask_token_id) == (ours.block_size, ours.mask_token_id)


def test_missing_and_unexpected_weights_are_named(tmp_path):
    folder = edited("zlab/dflash", tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights["layers.0.extra"] = weights.pop("layers.1.mlp.up_proj.weight")
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        DFlashModel.from_folder(folder)
    assert "missing: layers.1.mlp.up_proj.weight" in str(caught.value)
    assert "unexpected: layers.0.extra" in str(caught.value)


def test_sharded_weights_load_and_pickles_are_refused(tmp_path):
    folder = edited("zlab/dflash", tmp_path)
    weights = load_file(folder / "model.safetensors")
    names = sorted(weights)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    (folder / "model.safetensors").unlink()
    for shard, keys in shards.items():
        save_file({key: weights[key] for key in keys}, folder / shard)
    index = {"weight_map": {key: shard for shard, keys in shards.items() for key in keys}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert set(DFlashModel.from_folder(folder).published_state()) == set(weights)
    (folder / "model.safetensors.index.json").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="allow_pickle"):
        DFlashModel.from_folder(folder)
    assert set(DFlashModel.from_folder(folder, allow_pickle=True).published_state()) == set(weights)


@pytest.mark.covers("draft-vocabulary")
def test_reduced_vocabularies_need_their_own_head_and_offsets(tmp_path):
    """d2t holds offsets: target id = draft id + d2t[draft id]."""
    folder = edited("zlab/dflash", tmp_path, draft_vocab_size=32)
    weights = load_file(folder / "model.safetensors")
    save_file(
        weights
        | {"lm_head.weight": torch.randn(32, 64), "d2t": torch.arange(32) * 2}
        | {"t2d": torch.zeros(96, dtype=torch.bool)},
        folder / "model.safetensors",
    )
    model = DFlashModel.from_folder(folder)
    assert model.lm_head is not None
    assert model.draft_to_target().tolist() == [3 * i for i in range(32)]
    assert model.logits(torch.randn(4, 64), torch.randn(96, 64)).shape == (4, 32)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="d2t"):
        DFlashModel.from_folder(folder)
