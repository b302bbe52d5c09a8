"""Training of block drafters on a random target: every stage, in seconds."""

import json

import numpy as np
import pytest
import torch
from training_file import BLOCK, LENGTH, training_file
from transformers import Qwen3ForCausalLM

from draftwood.core.errors import ConfigError, DraftwoodError, PairingError
from draftwood.plugins.drafters.dflash.model import DFlashModel
from draftwood.training import train
from draftwood.training.batched import BatchCache, grouped_attention
from draftwood.training.config import load_training
from draftwood.training.evaluation import _replay
from draftwood.training.features import Features, extract
from draftwood.training.objectives import gamma_for
from draftwood.training.pace import Clock, rate
from draftwood.training.packing import draw
from draftwood.training.sampling import Samples, text_ends, write


@pytest.fixture
def target(target_folder):
    return Qwen3ForCausalLM.from_pretrained(target_folder).eval()


def test_a_run_exports_what_dflash_loads(tmp_path, target_folder):
    folder = train(training_file(tmp_path, target_folder))
    model = DFlashModel.from_folder(folder)
    assert model.config.target_layer_ids == (0, 2)
    assert model.config.num_target_layers == 3
    assert (model.config.block_size, model.config.mask_token_id) == (BLOCK, 60)
    assert model.dtype == torch.bfloat16
    report = json.loads((tmp_path / "work/drafter-report.json").read_text())
    assert report["steps"] == 6
    assert {entry["temperature"] for entry in report["acceptance"]} == {0.0, 1.0}
    assert all(entry["tau"] >= 1 for entry in report["acceptance"])


def test_a_resumed_run_ends_where_an_unbroken_one_does(tmp_path, target_folder):
    whole = training_file(tmp_path / "whole", target_folder)
    parts = training_file(tmp_path / "parts", target_folder)
    steady = "train.cool_down=0.01"  # the rate depends on the fraction of the budget
    train(whole, set_options=[steady, "train.warm_up=0.001"])
    for steps in (3, 6):
        train(parts, set_options=[steady, "train.warm_up=0.001", f"train.steps={steps}"])
    ends = [
        torch.load(tmp_path / name / "work/drafter.pt", weights_only=True)
        for name in ("whole", "parts")
    ]
    assert [end["step"] for end in ends] == [6, 6]
    for name, tensor in ends[0]["model"].items():
        torch.testing.assert_close(tensor, ends[1]["model"][name], atol=0, rtol=0)


def test_results_of_other_settings_are_refused(tmp_path, target_folder):
    path = training_file(tmp_path, target_folder)
    train(path, set_options=["train.steps=1"])
    with pytest.raises(DraftwoodError, match="temperatures"):
        train(path, set_options=["train.steps=1", "sample.temperatures=[0.5]"])


def blocks_of(model, features, embeds, anchors):
    with torch.no_grad():
        return model.blocks(features, embeds, anchors)


def test_a_block_does_not_see_the_target_at_or_after_its_anchor(tmp_path, target_folder):
    """A drafter trained on states that decoding does not have yet would look perfect."""
    model = DFlashModel.from_folder(train(training_file(tmp_path, target_folder))).float()
    torch.manual_seed(1)
    torch.nn.init.normal_(model.stack[0].self_attn.o_proj.weight)
    features, embeds = torch.randn(1, LENGTH, 64), torch.randn(1, 3, BLOCK, 32)
    anchors = torch.tensor([[0, 7, 20]])
    plain = blocks_of(model, features, embeds, anchors)
    for a, at in enumerate(anchors[0].tolist()):
        later = features.clone()
        later[:, at:] += 10 * torch.randn_like(later[:, at:])
        assert torch.equal(blocks_of(model, later, embeds, anchors)[0, a], plain[0, a])
        if at:
            earlier = features.clone()
            earlier[:, at - 1] += 10
            seen = blocks_of(model, earlier, embeds, anchors)[0, a]
            assert not torch.allclose(seen, plain[0, a], atol=1e-3)
    other = embeds.clone()
    other[:, 1] += 1
    moved = blocks_of(model, features, other, anchors)
    assert torch.equal(moved[0, [0, 2]], plain[0, [0, 2]])


def test_greedy_writing_equals_a_forward_over_the_whole_text(target):
    prompts = torch.randint(1, 60, (4, 5), generator=torch.Generator().manual_seed(3))
    tokens = write(target, prompts, torch.zeros(4), LENGTH, seed=0)
    with torch.no_grad():
        best = target(tokens).logits[:, 4:-1].argmax(-1)
    assert torch.equal(tokens[:, 5:], best)
    assert target.config._attn_implementation == "sdpa"


def test_writing_samples_from_the_target(target):
    """Frequencies of the first token at two temperatures, and greedy rows beside them."""
    rows = 4000
    prompts = torch.full((rows, 3), 7)
    heat = torch.tensor([0.0, 0.5, 1.0, 1.0]).repeat(rows // 4)
    tokens = write(target, prompts, heat, 4, seed=5)[:, 3]
    with torch.no_grad():
        logits = target(prompts[:1]).logits[0, -1]
    assert (tokens[heat == 0] == logits.argmax()).all()
    for temperature in (0.5, 1.0):
        probs = (logits / temperature).softmax(-1)
        seen = torch.bincount(tokens[heat == temperature], minlength=61).float()
        seen /= seen.sum()
        assert (seen - probs).abs().sum() / 2 < 0.1


def test_grouped_attention_keeps_sliding_windows(target_folder):
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(target_folder)
    config.use_sliding_window, config.sliding_window = True, 4
    config.layer_types = ["full_attention", "sliding_attention", "sliding_attention"]
    torch.manual_seed(2)
    model = Qwen3ForCausalLM(config).eval()
    ids = torch.randint(1, 60, (2, 12), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        plain = model(ids).logits
        with grouped_attention(model):
            cache = BatchCache(model, 12)
            parts = [model(ids[:, :8], **cache.argument()).logits]
            for at in range(8, 12):
                positions = torch.tensor([[at]])
                step = model(ids[:, at : at + 1], position_ids=positions, **cache.argument())
                parts.append(step.logits)
    torch.testing.assert_close(torch.cat(parts, 1), plain, atol=1e-4, rtol=1e-4)


def samples_of(tokens: torch.Tensor, start: int = 4) -> Samples:
    rows = len(tokens)
    host = tokens.numpy().astype(np.int32)
    return Samples(host, np.full(rows, start), np.full(rows, LENGTH), np.zeros(rows, np.float32))


def test_features_are_hidden_states_one_further(target, tmp_path):
    """After layer l is hidden_states[l + 1]; after the last one, the final-normed state."""
    ids = torch.randint(1, 60, (3, LENGTH), generator=torch.Generator().manual_seed(4))
    features = extract(
        target,
        samples_of(ids),
        (0, 2),
        tmp_path / "features.bin",
        dtype=torch.float16,
        autocast=False,
        clock=Clock(),
        title="",
    )
    with torch.no_grad():
        states = target(ids, output_hidden_states=True).hidden_states
    expected = torch.cat((states[1], states[3]), -1)
    torch.testing.assert_close(features[:].float(), expected, atol=1e-2, rtol=1e-2)


def test_batches_are_functions_of_seed_and_step(tmp_path):
    samples = samples_of(torch.randint(1, 60, (5, LENGTH)))
    samples.ends[:] = 15
    features = Features(tmp_path / "f.bin", (5, LENGTH, 8), torch.bfloat16)
    keys = {"batch": 3, "anchors": 40, "block": BLOCK, "mask": 60}
    first, again = (draw(samples, features, (0, 7), **keys) for _ in range(2))
    assert torch.equal(first.tokens, again.tokens)
    assert torch.equal(first.anchors, again.anchors)
    assert not torch.equal(first.anchors, draw(samples, features, (0, 8), **keys).anchors)
    assert first.anchors.min() == 4  # the first generated token
    assert first.anchors.max() == 13  # the last one with a successor
    assert (first.tokens[..., 1:] == 60).all()
    assert first.valid[first.anchors == 13].sum(-1).unique().tolist() == [1]


def test_replay_walks_text_as_decoding_would():
    """Rounds start where the last one's bonus token ended, not at every anchor."""
    hits = np.array([[1, 1, 0], [0, 0, 0], [0, 0, 0], [1, 0, 1], [1, 1, 1], [0, 1, 1]], bool)
    found = _replay(0.0, [hits])
    assert found.rounds == 3  # anchors 0, 3 and 5
    assert found.tau == pytest.approx((3 + 2 + 1) / 3)
    assert found.conditional == pytest.approx((2 / 3, 1 / 2, 0.0))
    assert found.marginal == pytest.approx((0.5, 0.5, 0.5))


def test_texts_end_at_the_first_generated_end_of_text():
    tokens = np.array([[0, 5, 6, 0, 7], [5, 5, 5, 5, 5]])
    assert text_ends(tokens, np.array([1, 1]), frozenset({0})).tolist() == [4, 5]


def test_the_rate_rises_stays_and_falls():
    values = [rate(x, 0.1, 0.4) for x in (0.0, 0.05, 0.3, 0.59, 0.8, 1.0)]
    assert values[0] < values[1] < values[2] == values[3] == 1.0
    assert values[4] == pytest.approx(0.5)
    assert values[5] == 0.0


def test_decay_is_the_papers_where_the_paper_has_one():
    assert [gamma_for(size) for size in (8, 10, 16)] == [4.0, 5.0, 7.0]
    assert 4.0 < gamma_for(12) < 7.0


def test_every_problem_of_a_training_file_is_located(tmp_path, target_folder):
    path = training_file(tmp_path, target_folder, "pace: {treads: 1}\nfeature_dtype: float8")
    with pytest.raises(ConfigError) as caught:
        load_training(path)
    text = str(caught.value)
    assert f"{path}:10:8: pace.treads" in text
    assert "did you mean 'threads'" in text
    assert "feature_dtype" in text


@pytest.mark.parametrize(
    ("setting", "error", "message"),
    [
        ("drafter.taps=[0,3]", PairingError, "layers 0 to 2"),
        ("drafter.mask_token=61", PairingError, "mask_token"),
        ("train.objective=nil", ConfigError, "nll_weighted"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_sampled(
    setting, error, message, tmp_path, target_folder
):
    with pytest.raises(error, match=message):
        train(training_file(tmp_path, target_folder), set_options=[setting])
    assert not (tmp_path / "work").exists()
