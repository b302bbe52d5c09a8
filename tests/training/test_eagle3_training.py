"""Training of EAGLE-3 drafters on a random target: what is unrolled in training is what decoding
runs, and nothing is seen that decoding does not have."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from training_file import written
from transformers import Gemma2Config, Gemma2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from draftwood.core.errors import ConfigError, PairingError, UnsupportedTarget
from draftwood.core.hf import load_target
from draftwood.core.interfaces import DraftWork
from draftwood.core.options import Sampling
from draftwood.core.randomness import Seeded
from draftwood.core.values import Limits
from draftwood.plugins.drafters.eagle3.config import Eagle3Config
from draftwood.plugins.drafters.eagle3.drafter import Eagle3
from draftwood.plugins.drafters.eagle3.model import Eagle3Model
from draftwood.plugins.drafters.formats.describe import describe
from draftwood.plugins.drafters.options import Eagle3Options
from draftwood.training import train
from draftwood.training.config import Eagle3Training, UnrollOptions, load_training
from draftwood.training.eagle.export import export
from draftwood.training.eagle.packing import draw, pack
from draftwood.training.eagle.trainable import (
    DEPTH,
    TrainableEagle3,
    check_head,
    drafter_config,
)
from draftwood.training.eagle.unroll import unrolled
from draftwood.training.evaluation import replayed
from draftwood.training.features import Features
from draftwood.training.sampling import Samples
from draftwood.training.trainable import Data

LENGTH, WIDTH, VOCABULARY, DEEPEST = 24, 32, 61, 2
TAPS = (0, 1, 1)


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=DEEPEST + 1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=48,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        eos_token_id=0,
        initializer_range=0.3,
    )
    folder = tmp_path_factory.mktemp("target")
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def target(target_folder):
    return load_target(target_folder, dtype="float32")


def training_file(folder: Path, target_folder: Path, train: str = "") -> Path:
    return written(
        folder / "eagle3.yaml",
        target_folder,
        LENGTH,
        f"""
drafter: {{algorithm: eagle3, taps: [0, 1, 1], heads: 2, kv_heads: 1, head_dim: 16,
          intermediate: 48}}
train: {{steps: 6, batch: 2, anchors: 4, unroll: 3, autocast: false, {train}}}
""",
    )


FLAGS = {
    "plain": {},
    "normed heads and output": {"head_norms": True, "norm_output": True},
    "normed features": {"fc_norm": True, "norm_before_residual": True},
}


def random_model(target, taps: tuple[int, ...] = TAPS, **flags: bool) -> Eagle3Model:
    """Weights large enough that every row's view shows in its state."""
    torch.manual_seed(1)
    config = Eagle3Config(
        hidden_size=WIDTH,
        num_layers=1,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        intermediate_size=48,
        vocab_size=VOCABULARY,
        draft_vocab_size=VOCABULARY,
        target_hidden_size=WIDTH,
        target_layer_ids=taps,
        max_position_embeddings=64,
        layout="speculators",
        **flags,
    )
    model = Eagle3Model(config).requires_grad_(requires_grad=False)
    for parameter in model.parameters():
        parameter.normal_(std=0.3)
    return model


@pytest.fixture(scope="module")
def text() -> torch.Tensor:
    return torch.randint(1, 60, (LENGTH,), generator=torch.Generator().manual_seed(2))


@pytest.mark.covers("training-mismatch")
@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
def test_unrolled_steps_are_what_decoding_runs(flags, target, text, tmp_path):
    """Through the export, the loader and the drafter's own session, anchor by anchor."""
    model, steps = random_model(target, **flags), 5
    export(model, tmp_path, dtype=torch.float32)
    drafter = Eagle3(Eagle3Options(tmp_path)).bind(target)
    features = target.open(TAPS).prefill(text.tolist()).features
    anchors = torch.tensor([[1, 2, 9, LENGTH - steps]])
    embeds = target.embedding_weight()[text][None]
    drafts = unrolled(model, features[None], embeds, anchors, steps)
    for which, anchor in enumerate(anchors[0].tolist()):
        session = drafter.open(target, Sampling(1.0))
        session.commit(text[:anchor].tolist(), features[:anchor])
        work = DraftWork(session, int(text[anchor]), anchor, Limits(8), Seeded(0))
        proposal = drafter.propose([work])[0]
        at = proposal.root()
        for step in range(steps):
            if step:
                token = text[anchor + step][None]
                at = proposal.advance(at, torch.tensor([0]), token)
            expected = at.state.states[0]
            torch.testing.assert_close(drafts[step][0, which], expected, atol=1e-5, rtol=1e-5)
    # Negative control: one row's feature from another position is another draft.
    moved = unrolled(model, features.roll(1, 0)[None], embeds, anchors, steps)
    assert (moved[0] - drafts[0]).abs().max() > 1e-2


@pytest.mark.covers("training-mismatch")
def test_a_draft_sees_the_target_before_its_anchor_only(target, text):
    """A drafter trained on states that decoding does not have yet would look perfect."""
    model, steps = random_model(target), 4
    features = target.open(TAPS).prefill(text.tolist()).features
    embeds = target.embedding_weight()[text]
    anchors = torch.tensor([[1, 7, 15]])

    def run(features, embeds):
        return torch.stack(unrolled(model, features[None], embeds[None], anchors, steps))[:, 0]

    plain = run(features, embeds)
    for which, anchor in enumerate(anchors[0].tolist()):
        later = features.clone()
        later[anchor:] += 10 * torch.randn_like(later[anchor:])
        assert torch.equal(run(later, embeds)[:, which], plain[:, which])
        earlier = features.clone()
        earlier[anchor - 1] += 10
        assert ((run(earlier, embeds) - plain)[:, which].abs().amax(-1) > 1e-3).all()
        for step in range(steps):  # a row reads its own token and those before it
            other = embeds.clone()
            other[anchor + step] += 1
            changed = (run(features, other) != plain)[:, which].any(-1)
            assert changed.tolist() == [at >= step for at in range(steps)]


@pytest.fixture(scope="module")
def data(target, text, tmp_path_factory) -> Data:
    """Three texts with features of layers 0, 1 and the last, which is the final-normed state."""
    folder = tmp_path_factory.mktemp("data")
    tokens = torch.stack([text, text.flip(0), text.roll(5)])
    features = Features(folder / "f.bin", (3, LENGTH, 4 * WIDTH), torch.bfloat16)
    for row, ids in enumerate(tokens):
        tapped = target.open((*TAPS, DEEPEST)).prefill(ids.tolist()).features
        features[row : row + 1] = tapped[None]
    samples = Samples(
        tokens.numpy().astype(np.int32),
        np.array([4, 5, 6]),
        np.array([LENGTH, 15, LENGTH]),
        np.array([0.0, 0.5, 1.0], np.float32),
    )
    return Data(samples, features, samples, features)


def trainable(target, taps: tuple[int, ...] = TAPS, **options) -> TrainableEagle3:
    return TrainableEagle3(
        random_model(target, taps),
        target.embedding_weight(),
        target.head_weight(),
        UnrollOptions(**{"autocast": False, "unroll": 4, "decay": 0.5} | options),
        last=DEEPEST,
    )


def test_states_of_the_last_layer_are_kept_once(target):
    """Labels are made of them, whether the drafter reads them or not."""
    for taps, layers in [((0, 1, 1), (0, 1, 1, DEEPEST)), ((0, DEEPEST, 1), (0, DEEPEST, 1))]:
        subject = trainable(target, taps=taps)
        assert subject.layers == layers
        features = torch.randn(1, 2, len(layers) * WIDTH)
        states, final = subject._split(features)
        at = layers.index(DEEPEST) * WIDTH
        assert torch.equal(states, features[..., : 3 * WIDTH])
        assert torch.equal(final, features[..., at : at + WIDTH])


@pytest.mark.parametrize("label_temperature", [None, 0.0, 0.7])
def test_the_loss_is_cross_entropy_to_the_targets_distribution_row_by_row(
    target, data, label_temperature
):
    """Against a loop over rows, with the distribution from the target's own logits."""
    subject = trainable(target, batch=5, anchors=6, label_temperature=label_temperature)
    batch = subject.batch(data, (0, 3))
    tokens, features, anchors, ends, _ = batch
    states = features[..., : 3 * WIDTH].float()
    embeds = target.embedding_weight()[tokens]
    drafts = unrolled(subject.model, states, embeds, anchors, 4)
    rows = {ids.tobytes(): at for at, ids in enumerate(data.samples.tokens)}
    total = weights = 0.0
    for s, ids in enumerate(tokens):
        row = rows[ids.numpy().astype(np.int32).tobytes()]
        heat = data.samples.temperatures[row] if label_temperature is None else label_temperature
        logits = target.model(ids[None]).logits[0].detach().double()
        distributions = (logits / max(heat, 1e-9)).softmax(-1)
        for a, anchor in enumerate(anchors[s].tolist()):
            for step, draft in enumerate(drafts):
                if anchor + step + 1 >= ends[s]:
                    continue
                scores = subject.model.logits(draft[s, a], target.head_weight()).double()
                total -= (
                    0.5**step * (distributions[anchor + step] * scores.log_softmax(-1)).sum().item()
                )
                weights += 0.5**step
    assert subject.loss(*batch).item() == pytest.approx(total / weights, rel=5e-3)


def test_compiled_loss_and_gradient_are_those_of_plain_code(target, data):
    subject = trainable(target, batch=2, anchors=3, unroll=2)
    subject.model.requires_grad_()
    batch = subject.batch(data, (0, 0))
    found = []
    for loss in (subject.loss, torch.compile(subject.loss, dynamic=False, backend="aot_eager")):
        value = loss(*batch)
        found.append((value, *torch.autograd.grad(value, list(subject.model.parameters()))))
    for plain, compiled in zip(*found, strict=True):
        torch.testing.assert_close(plain, compiled, atol=1e-5, rtol=1e-4)


def test_batches_are_functions_of_seed_and_step(data):
    first, again, other = (
        draw(data.samples, data.features, key, batch=4, anchors=50)
        for key in [(0, 7), (0, 7), (0, 8)]
    )
    assert torch.equal(first.anchors, again.anchors)
    assert torch.equal(first.tokens, again.tokens)
    assert not torch.equal(first.anchors, other.anchors)
    start = torch.tensor([4, 5, 6])[[row_of(data, ids) for ids in first.tokens]]
    assert torch.equal(first.anchors.amin(1), start)  # the first generated token
    assert torch.equal(first.anchors.amax(1), first.ends - 2)  # the last one with a successor


def row_of(data: Data, ids: torch.Tensor) -> int:
    return int(np.flatnonzero((data.samples.tokens == ids.numpy()).all(1))[0])


def test_evaluation_accepts_what_a_greedy_chain_would(target, data):
    """Against the drafter's distribution at every step, on the text that is given."""
    subject = trainable(target)
    found = {entry.temperature: entry for entry in subject.evaluate(data)}

    def hits(row: np.ndarray, anchors: np.ndarray) -> np.ndarray:
        batch = pack(data.heldout, data.heldout_features, row, anchors)
        states = batch.features[..., : 3 * WIDTH].float()
        embeds = target.embedding_weight()[batch.tokens]
        drafts = unrolled(subject.model, states, embeds, batch.anchors, DEPTH)
        best = [subject.model.logits(d, target.head_weight())[0].argmax(-1) for d in drafts]
        told = [batch.tokens[0, anchors[0] + step] for step in range(1, DEPTH + 1)]
        return np.stack([(b == t).numpy() for b, t in zip(best, told, strict=True)], 1)

    assert {heat: entry.tau for heat, entry in found.items()} == {
        entry.temperature: entry.tau for entry in replayed(data.heldout, DEPTH, hits)
    }
    assert set(found) == {0.0, 0.5, 1.0}


def test_a_run_exports_what_eagle3_loads(tmp_path, target, target_folder):
    folder = train(training_file(tmp_path, target_folder))
    model = Eagle3Model.from_folder(folder)
    assert model.dtype == torch.bfloat16
    assert (model.embed_tokens, model.lm_head, model.d2t) == (None, None, None)
    config = load_training(tmp_path / "eagle3.yaml")
    assert isinstance(config, Eagle3Training)
    assert model.config == drafter_config(config.drafter, target.model)
    found = describe(folder)
    assert (found.format, found.algorithm, found.problems) == ("speculators", "eagle3", ())
    assert found.taps == TAPS
    report = json.loads((tmp_path / "work/drafter-report.json").read_text())
    assert report["steps"] == 6
    assert {entry["temperature"] for entry in report["acceptance"]} == {0.0, 1.0}
    trained = torch.load(tmp_path / "work/drafter.pt", weights_only=True)["model"]
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, trained[name].bfloat16())


def test_a_resumed_run_ends_where_an_unbroken_one_does(tmp_path, target_folder):
    whole = training_file(tmp_path / "whole", target_folder)
    parts = training_file(tmp_path / "parts", target_folder)
    steady = ["train.cool_down=0.01", "train.warm_up=0.001"]  # rates that no budget changes
    train(whole, set_options=steady)
    for steps in (3, 6):
        train(parts, set_options=[*steady, f"train.steps={steps}"])
    ends = [
        torch.load(tmp_path / name / "work/drafter.pt", weights_only=True)["model"]
        for name in ("whole", "parts")
    ]
    for name, tensor in ends[0].items():
        torch.testing.assert_close(tensor, ends[1][name], atol=0, rtol=0)


def test_a_target_whose_logits_are_capped_is_refused(target):
    check_head(target.model, target.head_weight())
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=32,
        initializer_range=0.5,
        final_logit_softcapping=2.0,
    )
    capped = Gemma2ForCausalLM(config).eval()
    with pytest.raises(UnsupportedTarget, match="soft cap"):
        check_head(capped, capped.lm_head.weight)


def test_training_learns_what_a_target_always_says(target, data):
    """A few dozen steps on three texts bring the loss well below where it began."""
    subject = trainable(target, batch=3, anchors=8, label_temperature=0.0)
    subject.model.requires_grad_()
    optimiser = torch.optim.Adam(subject.model.parameters(), 1e-2)
    losses = []
    for step in range(40):
        loss = subject.loss(*subject.batch(data, (0, step)))
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(
    ("setting", "error", "message"),
    [
        ("drafter.taps=[0,3]", PairingError, "layers 0 to 2"),
        ("drafter.block_size=8", ConfigError, "unknown key 'block_size'"),
        ("train.objective=nll", ConfigError, "unknown key 'objective'"),
        ("train.unroll=0", ConfigError, "train.unroll"),
        ("drafter.algorithm=eagle", ConfigError, "choices: .*dflash.*eagle3"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_sampled(
    setting, error, message, tmp_path, target_folder
):
    with pytest.raises(error, match=message):
        train(training_file(tmp_path, target_folder), set_options=[setting])
    assert not (tmp_path / "work").exists()
