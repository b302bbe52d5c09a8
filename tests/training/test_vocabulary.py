"""Reduced draft vocabularies, scaled features, and targets that scale embeddings and norms."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from training_file import written
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from draftwood.core.errors import PairingError
from draftwood.core.generation import Pipeline
from draftwood.core.hf.loading import load_target
from draftwood.plugins.drafters.dflash.drafter import DFlash
from draftwood.plugins.drafters.dflash.model import DFlashModel
from draftwood.plugins.drafters.options import DFlashOptions
from draftwood.training import train
from draftwood.training.blocks import TrainableBlocks
from draftwood.training.config import load_training
from draftwood.training.features import Features
from draftwood.training.inherited import embedding_scale, final_norm
from draftwood.training.run import _data
from draftwood.training.sampling import Prompts, Samples, write
from draftwood.training.vocabulary import as_drafts, coverage, most_frequent, offsets

LENGTH, BLOCK, WIDTH, WORDS, KNOWN = 24, 5, 32, 61, 12


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory) -> Path:
    """A Gemma 3: scaled embeddings, norms of one plus a weight, sliding and full layers with rotary
    embeddings of their own."""
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=8,
        intermediate_size=48,
        max_position_embeddings=64,
        sliding_window=6,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        eos_token_id=0,
        bos_token_id=1,
        pad_token_id=0,
        initializer_range=0.3,
    )
    model = Gemma3ForCausalLM(config)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    folder = tmp_path_factory.mktemp("gemma")
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def target(target_folder):
    return load_target(target_folder, device="cpu", dtype="float32")


def training_file(folder: Path, target_folder: Path) -> Path:
    return written(
        folder / "drafter.yaml",
        target_folder,
        LENGTH,
        f"""
drafter: {{taps: [0, 2], block_size: {BLOCK}, mask_token: 60, heads: 2, kv_heads: 1,
          head_dim: 16, intermediate: 48, vocabulary: {KNOWN}}}
train: {{steps: 8, batch: 4, anchors: 6, autocast: false, scale_features: true,
        cool_down: 0.01, warm_up: 0.001}}
""",
        sequences=16,
        batch=8,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory, target_folder) -> Path:
    path = training_file(tmp_path_factory.mktemp("run"), target_folder)
    train(path)
    return path


@pytest.fixture
def trainable(run, target) -> tuple[TrainableBlocks, "object"]:
    """A fresh one, prepared with the data of the run."""
    config = load_training(run)
    made = TrainableBlocks.of(config, target, None)
    data = _data(config, target, None, made)
    made.prepare(data)
    return made, data


def test_the_tokens_are_those_that_the_target_wrote_most_then_those_of_prompts():
    tokens = np.array([[9, 9, 9, 2, 2, 5, 7], [9, 9, 8, 2, 5, 4, 4]], np.int32)
    samples = Samples(tokens, np.array([3, 3]), np.array([7, 6]), np.zeros(2, np.float32))
    # Written: 2 three times, 5 twice, 7 and 4 once (the last 4 is past the end).
    none, prompts = np.zeros(12), np.bincount([9] * 60 + [8] * 30 + [2] * 10, minlength=12)
    assert most_frequent(samples, none, 2).tolist() == [2, 5]
    assert most_frequent(samples, none, 5).tolist() == [0, 2, 4, 5, 7]
    assert most_frequent(samples, prompts, 3).tolist() == [2, 8, 9]
    assert most_frequent(samples, prompts, 4).tolist() == [2, 5, 8, 9]
    assert coverage(samples, torch.tensor([2, 5]), 12) == pytest.approx(5 / 7)


@pytest.mark.parametrize("suffix", [".npy", ".jsonl"])
def test_prompts_count_their_tokens_whatever_they_are_kept_in(suffix, tmp_path):
    path = tmp_path / f"prompts{suffix}"
    if suffix == ".npy":
        np.save(path, np.array([3, 1, 3, 0], np.uint16))
    else:
        path.write_text('{"text": "dbd"}\n{"text": "a"}\n')
    prompts = Prompts(path, lambda text: {"input_ids": [ord(letter) - ord("a") for letter in text]})
    assert prompts.counts(5).tolist() == [1, 1, 0, 2, 0]


def test_a_block_counts_up_to_the_first_token_that_cannot_be_said():
    ids = torch.tensor([3, 5, 8])
    labels = torch.tensor([[5, 8, 3], [5, 4, 3], [4, 5, 8], [8, 8, 8]])
    valid = torch.tensor([[True] * 3] * 3 + [[True, False, False]])
    found, counts = as_drafts(labels, valid, ids, 10)
    assert counts.tolist() == [
        [True, True, True],
        [True, False, False],
        [False, False, False],
        [True, False, False],
    ]
    assert torch.equal(ids[found][counts], labels[counts])


def test_offsets_are_what_checkpoints_store():
    ids = torch.tensor([0, 1, 5, 9])
    assert offsets(ids).tolist() == [0, 0, 3, 6]


def test_a_run_exports_a_head_of_the_targets_rows_and_says_which(run, target):
    weights = load_file(run.parent / "out" / "model.safetensors")
    config = json.loads((run.parent / "out" / "config.json").read_text())
    assert (config["vocab_size"], config["draft_vocab_size"]) == (WORDS, KNOWN)
    assert weights["d2t"].dtype == torch.int64
    model = DFlashModel.from_folder(run.parent / "out")
    ids = model.draft_to_target()
    samples = Samples.load(run.parent / "work" / "samples-train.npz")
    prompts = Prompts(run.parent / "prompts.npy", None).counts(WORDS)
    assert torch.equal(ids, most_frequent(samples, prompts, KNOWN))
    expected = target.head_weight()[ids].bfloat16()
    assert torch.equal(model.lm_head.weight, expected)


def test_a_pipeline_with_it_says_what_the_target_says(run, target):
    """In float32 and greedily, token by token; some drafts accepted, some not."""
    from draftwood.core.build import build_component
    from draftwood.core.registry.plugin import Kind

    drafter = DFlash(DFlashOptions(checkpoint=run.parent / "out"))
    pipeline = Pipeline(
        target,
        drafter=drafter,
        tree=build_component(Kind.TREE, "best_first", max_nodes=12),
        controller=build_component(Kind.CONTROLLER, "fixed", nodes=12),
        verifier=build_component(Kind.VERIFIER, "match"),
    )
    plain = Pipeline(target, verifier=build_component(Kind.VERIFIER, "match"))
    accepted = 0
    for start in range(2, 8):
        options = {"max_new_tokens": 24, "eos_token_id": ()}
        found = pipeline.generate([start, 7, start], **options)
        assert found.tokens == plain.generate([start, 7, start], **options).tokens
        accepted += 24 - found.stats.rounds
    assert accepted > 0


def test_tokens_that_cannot_be_said_move_nothing(trainable):
    """Neither their identity nor what follows them reaches the loss."""
    made, data = trainable
    batch = list(made.batch(data, (0, 3)))
    labels, valid = batch[3], batch[4]
    assert 0 < valid.float().mean() < 1
    assert (labels < KNOWN).all()
    other = torch.where(valid, labels, torch.randint_like(labels, KNOWN))
    assert torch.equal(made.loss(*batch), made.loss(*batch[:3], other, *batch[4:]))
    moved = torch.where(valid, (labels + 1) % KNOWN, labels)
    assert not torch.equal(made.loss(*batch), made.loss(*batch[:3], moved, *batch[4:]))


def test_the_labels_are_the_text(trainable):
    made, data = trainable
    _, _, anchors, labels, valid, *_ = made.batch(data, (0, 3))
    ids = made.model.draft_to_target()
    rows = np.random.default_rng((0, 3)).integers(0, len(data.samples), len(anchors))
    for row, text in enumerate(rows):
        for block, anchor in enumerate(anchors[row].tolist()):
            count = int(valid[row, block].sum())
            said = ids[labels[row, block, :count]].tolist()
            assert said == data.samples.tokens[text, anchor + 1 : anchor + 1 + count].tolist()


def test_training_learns_with_a_reduced_vocabulary(trainable):
    made, data = trainable
    batch = made.batch(data, (0, 3))
    optimiser = torch.optim.Adam(made.model.parameters(), 3e-3)
    losses = []
    for _ in range(60):
        loss = made.loss(*batch)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_the_exported_drafter_reads_features_as_they_are(trainable):
    """Trained on scaled features, exported with the scale in its first matrix."""
    made, data = trainable
    torch.nn.init.normal_(made.model.stack[0].self_attn.o_proj.weight)
    embeds, features, anchors, *_ = made.batch(data, (0, 3))
    finished = made.finished()
    with torch.no_grad():
        learnt = made.model.blocks(features.float() / made.sizes, embeds, anchors)
        found = finished.blocks(features.float(), embeds, anchors)
        unscaled = made.model.blocks(features.float(), embeds, anchors)
    torch.testing.assert_close(found, learnt, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(unscaled, learnt, atol=1e-2)


def test_the_head_begins_with_states_of_the_size_that_it_was_made_for(trainable, target):
    """The last layer is tapped, so the size of the target's final states is known."""
    made, data = trainable
    final = data.features[:].float()[..., WIDTH:]
    expected = final.square().mean((0, 1)).sqrt()
    torch.testing.assert_close(made.model.norm.weight.detach(), expected, atol=1e-3, rtol=1e-3)


def test_sizes_are_root_mean_squares(tmp_path):
    features = Features(tmp_path / "f.bin", (5, 3, 4), torch.bfloat16)
    values = torch.tensor([1.0, -2.0, 300.0, 0.0]).expand(5, 3, 4)
    features[slice(0, 5)] = values * torch.tensor([1.0, -1.0, 1.0])[:, None]
    torch.testing.assert_close(features.sizes(3), torch.tensor([1.0, 2.0, 300.0, 1e-6]))


def test_a_resumed_run_ends_where_an_unbroken_one_does(run, tmp_path, target_folder):
    path = training_file(tmp_path, target_folder)
    for steps in (4, 8):
        train(path, set_options=[f"train.steps={steps}"])
    parts, whole = (
        torch.load(folder / "work/drafter.pt", weights_only=True)["model"]
        for folder in (tmp_path, run.parent)
    )
    assert parts.keys() == whole.keys()
    assert all(torch.equal(parts[name], whole[name]) for name in whole)


def test_a_vocabulary_larger_than_the_targets_is_refused(tmp_path, target_folder):
    path = training_file(tmp_path, target_folder)
    with pytest.raises(
        PairingError, match=r"drafter\.vocabulary: 62 tokens of a target that has 61"
    ):
        train(path, set_options=["drafter.vocabulary=62"])
    assert not (tmp_path / "work").exists()


def test_embeddings_and_norms_are_taken_over_at_the_size_that_the_target_gives_them(target, run):
    assert embedding_scale(target.model) == pytest.approx(WIDTH**0.5)
    weight = target.model.model.norm.weight
    torch.testing.assert_close(final_norm(target.model), 1 + weight, atol=1e-5, rtol=1e-5)
    config = DFlashModel.from_folder(run.parent / "out").config
    assert config.input_embedding_scale == pytest.approx(WIDTH**0.5)
    assert config.rope_theta == target.scorer.config.rope_parameters["full_attention"]["rope_theta"]


def test_greedy_writing_equals_a_forward_over_the_whole_text(target):
    """Of a target with sliding layers, beyond their window."""
    prompts = torch.randint(1, 60, (4, 5), generator=torch.Generator().manual_seed(3))
    tokens = write(target.model, prompts, torch.zeros(4), LENGTH, seed=0)
    with torch.no_grad():
        best = target.model(tokens).logits[:, 4:-1].argmax(-1)
    assert torch.equal(tokens[:, 5:], best)
