"""A selector of DFlash 2 in training: what it adds, what it may see, what it leaves alone."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from training_file import BLOCK, training_file

from draftwood.core.build import load_pipeline
from draftwood.core.errors import ConfigError, PairingError
from draftwood.core.options import Sampling
from draftwood.core.proposals import MarkovProposal
from draftwood.plugins.drafters.dflash.config import DFlashConfig
from draftwood.plugins.drafters.dflash.model import DFlashModel
from draftwood.training import train
from draftwood.training.branch_head import label_log_probs
from draftwood.training.config import load_training
from draftwood.training.packing import draw
from draftwood.training.trainable import Data

SELECTOR = "drafter.selector={candidates: 4, rank: 3}"
V, D = 37, 4


def tiny_model(candidates: int = V) -> DFlashModel:
    torch.manual_seed(0)
    model = DFlashModel(
        DFlashConfig(
            hidden_size=8,
            num_layers=1,
            num_heads=2,
            num_kv_heads=1,
            head_dim=4,
            intermediate_size=8,
            vocab_size=V,
            draft_vocab_size=V,
            block_size=D + 1,
            mask_token_id=0,
            target_layer_ids=(0,),
            target_hidden_size=8,
            causal=(False,),
            windows=(None,),
            selector_rank=3,
            selector_top_k=candidates,
        )
    )
    model.selector.initialise()
    torch.nn.init.normal_(model.selector.successor_codebook)
    return model


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_a_block_is_learnt_under_the_distribution_that_drafts_it(temperature):
    """With every token a candidate, log q of a block is the sum along its path in the proposal."""
    model, head = tiny_model(), torch.randn(V, 8)
    hidden, labels = torch.randn(2, D, 8), torch.randint(0, V, (2, D))
    anchors = torch.tensor([5, 6])
    previous = torch.cat((anchors[:, None], labels[:, :-1]), -1)
    heat = torch.full((2,), temperature)
    with torch.no_grad():
        found = label_log_probs(model, hidden, labels, head, heat, previous=previous)[:, 0]
        for block, states in enumerate(hidden):
            scores = model.selector.scores(model.logits(states, head), states, int(anchors[block]))
            proposal, at = MarkovProposal(*scores, Sampling(temperature), V), None
            for depth, token in enumerate(labels[block]):
                at = proposal.root() if at is None else at
                probs = proposal.probs(at)[0, token]
                torch.testing.assert_close(found[block, depth].exp(), probs, atol=1e-5, rtol=1e-4)
                if depth + 1 < D:
                    at = proposal.advance(at, torch.tensor([0]), token[None])


def test_held_out_text_is_judged_by_the_token_that_drafting_takes():
    """`likeliest` after the true token before is the first of the table's row for it."""
    model, head = tiny_model(candidates=6), torch.randn(V, 8)
    with torch.no_grad():
        states = torch.randn(D, 8)
        logits = model.logits(states, head)
        proposal = MarkovProposal(*model.selector.scores(logits, states, 9), Sampling(1.0), V)
        table, row, previous = proposal.table(1), 0, []
        greedy = []
        for _ in range(D):
            previous.append(greedy[-1] if greedy else 9)
            greedy.append(table.row(row).tokens[0])
            row = table.row(row).next_rows[0]
        found = model.selector.likeliest(logits, states, torch.tensor(previous))
    assert found.tolist() == greedy
    assert greedy != logits.argmax(-1).tolist()  # negative control: the selector has a say


def test_the_token_before_a_label_is_the_texts(tmp_path, target_folder):
    trainable, data = started(tmp_path, target_folder)
    packed = draw(data.samples, data.features, (0, 0), batch=2, anchors=4, block=BLOCK, mask=60)
    assert torch.equal(packed.previous[..., 0], packed.tokens[..., 0])
    assert torch.equal(packed.previous[..., 1:], packed.labels[..., :-1])
    _, _, anchors, labels, *_, previous, _ = trainable.batch(data, (0, 0))
    assert previous.shape == labels.shape == (*anchors.shape, BLOCK - 1)


def started(folder, target_folder, *settings):
    """A trainable and its data, as a run begins."""
    from draftwood.core.hf.loading import load_target, load_tokenizer
    from draftwood.training.blocks import TrainableBlocks
    from draftwood.training.run import _data

    config = load_training(training_file(folder, target_folder), settings)
    target = load_target(config.target, dtype="float32")
    trainable = TrainableBlocks.of(config, target, load_tokenizer(config.target))
    data: Data = _data(config, target, load_tokenizer(config.target), trainable)
    trainable.prepare(data)
    return trainable, data


def test_a_selector_learns_alone_and_the_rest_stays_as_it_was(tmp_path, target_folder):
    path = training_file(tmp_path, target_folder)
    first = train(path, set_options=[f"export={tmp_path / 'first'}"])
    settings = [SELECTOR, f"drafter.init={first}", "train.selector_only=true", "train.lr=0.1"]
    second = train(path, resume=False, set_options=settings)
    old, new = DFlashModel.from_folder(first), DFlashModel.from_folder(second)
    kept = old.state_dict()
    for name, tensor in new.state_dict().items():
        if name in kept:
            assert torch.equal(tensor, kept[name]), name
    assert new.selector.successor_codebook.abs().sum() > 0  # it began at zero
    config = json.loads((second / "config.json").read_text())
    assert config["architectures"] == ["DFlash2DraftModel"]
    assert config["dflash_config"]["selector_rank"] == 3
    assert config["dflash_config"]["selector_top_k"] == 4


def test_all_of_a_drafter_learns_with_its_selector(tmp_path, target_folder):
    path = training_file(tmp_path, target_folder)

    def trained(name, *settings):
        settings = [f"export={tmp_path / name}", SELECTOR, *settings]
        return DFlashModel.from_folder(train(path, resume=False, set_options=settings))

    first = train(path, set_options=[f"export={tmp_path / 'first'}"])
    old, new = DFlashModel.from_folder(first), trained("second", f"drafter.init={first}")
    assert not torch.equal(old.fc.weight, new.fc.weight)
    second, reseeded = f"drafter.init={tmp_path / 'second'}", "train.seed=9"
    went_on, afresh = trained("third", second, reseeded), trained("fourth", reseeded)
    books = [m.selector.predecessor_codebook.float() for m in (new, went_on, afresh)]
    assert 0 < (books[0] - books[1]).abs().max() < 0.1
    assert (books[0] - books[2]).abs().max() > 0.5  # negative control: another seed's start


def test_a_selector_over_a_reduced_vocabulary_is_learnt_and_drafts(tmp_path, target_folder):
    """First with its drafter, then alone, over the tokens that were chosen then."""
    path, few = training_file(tmp_path, target_folder), ["drafter.vocabulary=20", SELECTOR]
    first = train(path, set_options=[f"export={tmp_path / 'first'}", *few])
    alone = [f"drafter.init={first}", "train.selector_only=true", "train.adam_lr=0.1"]
    second = train(path, resume=False, set_options=[*few, *alone])
    old, new = DFlashModel.from_folder(first), DFlashModel.from_folder(second)
    assert torch.equal(old.draft_to_target(), new.draft_to_target())
    assert torch.equal(old.lm_head.weight, new.lm_head.weight)
    assert new.selector.successor_codebook.shape == (20, 3)
    assert not torch.equal(old.selector.successor_codebook, new.selector.successor_codebook)
    document = {
        "target": {"model": str(target_folder)},
        "drafter": {"use": "dflash", "checkpoint": str(second)},
        "tree": {"use": "best_first", "max_nodes": 6},
        "controller": {"use": "fixed", "nodes": 6},
        "verifier": {"use": "match"},
        "runtime": {"dtype": "float32"},
    }
    plain = load_pipeline({key: document[key] for key in ("target", "runtime")})
    found = load_pipeline(document)
    said = set(new.draft_to_target().tolist())
    for anchor in (min(said), next(token for token in range(61) if token not in said)):
        wanted = plain.generate([5, 9, anchor], max_new_tokens=12, eos_token_id=())
        result = found.generate([5, 9, anchor], max_new_tokens=12, eos_token_id=())
        assert result.tokens == wanted.tokens
        assert result.stats.drafted > 0


def test_after_a_token_that_it_cannot_say_a_selector_says_nothing():
    model, head = tiny_model(candidates=6), torch.randn(V, 8)
    with torch.no_grad():
        states = torch.randn(D, 8)
        logits = model.logits(states, head)
        for unsaid in (-1, V):  # beyond the codebook: a row that the target has for padding
            candidates, first, pair = model.selector.scores(logits, states, unsaid)
            assert torch.equal(first, logits[0, candidates[0]])
            assert torch.equal(pair, model.selector.scores(logits, states, 9)[2])
        unknown = torch.full((D,), -1)
        assert torch.equal(model.selector.likeliest(logits, states, unknown), logits.argmax(-1))
        assert (model.selector.added(states, unknown) == 0).all()


def test_a_checkpoint_with_a_head_of_its_own_is_no_start(tmp_path, target_folder):
    path = training_file(tmp_path, target_folder)
    settings = ["drafter.vocabulary=20", "train.steps=1"]
    folder = train(path, set_options=[*settings, f"export={tmp_path / 'first'}"])
    weights = load_file(folder / "model.safetensors")
    save_file(
        {**weights, "lm_head.weight": 2 * weights["lm_head.weight"]}, folder / "model.safetensors"
    )
    with pytest.raises(PairingError, match="a head of its own"):
        train(path, resume=False, set_options=[*settings, f"drafter.init={folder}"])


def test_features_are_read_as_they_are_after_two_scaled_runs(tmp_path, target_folder):
    """The first division is in the checkpoint; a second one of it would be wrong."""
    scaled = ["train.scale_features=true"]
    first = train(
        training_file(tmp_path, target_folder),
        set_options=[*scaled, f"export={tmp_path / 'first'}"],
    )
    settings = [*scaled, SELECTOR, f"drafter.init={first}"]
    trainable, _ = started(tmp_path, target_folder, *settings)
    before = DFlashModel.from_folder(first).fc.weight.float()
    torch.testing.assert_close(trainable.finished().fc.weight, before, atol=0, rtol=1e-5)
    assert not torch.allclose(trainable.model.fc.weight, before)  # negative control


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (["train.selector_only=true"], ConfigError, "needs 'drafter.selector'"),
        (["train.selector_only=true", SELECTOR], ConfigError, "needs 'drafter.init'"),
        (["drafter.init=first", "drafter.vocabulary=20"], PairingError, "draft_vocab_size is 61"),
        (["drafter.init=first", "drafter.block_size=4"], PairingError, "block_size is 5 there"),
    ],
)
def test_what_does_not_go_together_is_refused(
    settings,
    error,
    message,
    tmp_path,
    target_folder,
):
    path = training_file(tmp_path, target_folder)
    if "drafter.init=first" in settings:
        first = train(path, set_options=[f"export={tmp_path / 'first'}"])
        settings = [f"drafter.init={first}", *settings[1:]]
    with pytest.raises(error, match=message):
        train(path, resume=False, set_options=settings)
