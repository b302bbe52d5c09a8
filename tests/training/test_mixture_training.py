"""Training of DBlast drafters on a random target: every stage, resuming, starting from
checkpoints, and several processes."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import attrs
import numpy as np
import pytest
import torch
from training_file import written
from transformers import Gemma2Config, Gemma2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from draftwood.core.errors import ConfigError, DraftwoodError, PairingError, UnsupportedTarget
from draftwood.core.hf.loading import load_target
from draftwood.plugins.drafters.dblast.model import DBlastModel
from draftwood.plugins.drafters.dflash.model import DFlashModel
from draftwood.training import train
from draftwood.training.branch_evaluation import BranchAcceptance, _distinct, _tied
from draftwood.training.branches import TrainableBranches
from draftwood.training.config import DBlastTraining, load_training
from draftwood.training.features import Features
from draftwood.training.likelihood import final_states, token_likelihoods
from draftwood.training.pace import Clock
from draftwood.training.sampling import Samples
from draftwood.training.trainable import Data

LENGTH, BLOCK, WIDTH = 24, 5, 32
STEADY = ["train.cool_down=0.01", "train.warm_up=0.001"]  # the rate follows the budget's fraction


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=61,
        hidden_size=WIDTH,
        num_hidden_layers=2,
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


@pytest.fixture
def target(target_folder):
    return load_target(target_folder, device="cpu", dtype="float32")


def training_file(folder: Path, target_folder: Path, drafter: str = "", options: str = "") -> Path:
    return written(
        folder / "dblast.yaml",
        target_folder,
        LENGTH,
        f"""
drafter: {{algorithm: dblast, branches: 3, rank: 2, taps: [0, 1], block_size: {BLOCK},
          mask_token: 60, heads: 2, kv_heads: 1, head_dim: 16, intermediate: 48{drafter}}}
train: {{objective: al, steps: 4, batch: 4, anchors: 4, autocast: false, balance: 0.1{options}}}
""",
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory, target_folder) -> Path:
    """The folder of one finished run."""
    folder = tmp_path_factory.mktemp("run")
    train(training_file(folder, target_folder), set_options=STEADY)
    return folder


def trainable_of(path: Path, target) -> tuple[TrainableBranches, Data]:
    """Of a run whose stages are done: a new drafter, none of whose parts is silent."""
    config = load_training(path)
    assert isinstance(config, DBlastTraining)
    torch.manual_seed(1)
    trainable = TrainableBranches.start(config, target, None)
    for name, parameter in trainable.model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight", "prior.weight")):
            torch.nn.init.normal_(parameter, std=0.3)
    samples = Samples.load(config.work / "samples-train.npz")
    shape = (*samples.tokens.shape, 2 * WIDTH)
    features = Features(config.work / "features-train.bin", shape, torch.bfloat16)
    likelihoods = np.memmap(
        config.work / "likelihoods-train.bin", np.float32, "r", shape=samples.tokens.shape
    )
    return trainable, Data(samples, features, samples, features, likelihoods)


def test_a_run_exports_what_dblast_loads(trained):
    model = DBlastModel.from_folder(trained / "out")
    assert (model.config.branches, model.config.rank) == (3, 2)
    assert model.config.block_size == BLOCK
    assert model.dtype == torch.bfloat16
    report = json.loads((trained / "work/drafter-report.json").read_text())
    assert [entry["temperature"] for entry in report["acceptance"]] == [0.0, 1.0]
    for entry in report["acceptance"]:
        assert sum(entry["usage"]) == pytest.approx(1.0, abs=1e-5)
        assert len(entry["distinct"]) == BLOCK - 1
        assert entry["accepted"]["mixture_ratio"] <= entry["accepted"]["mixture_bound"] + 1e-6


def test_a_resumed_run_ends_where_an_unbroken_one_does(trained, tmp_path, target_folder):
    parts = training_file(tmp_path, target_folder)
    for steps in (2, 4):
        train(parts, set_options=[*STEADY, f"train.steps={steps}"])
    whole, broken = (
        torch.load(folder / "work/drafter.pt", weights_only=True) for folder in (trained, tmp_path)
    )
    assert whole["step"] == broken["step"] == 4
    for name, tensor in whole["model"].items():
        assert torch.equal(tensor, broken["model"][name]), name


def test_a_branch_does_not_see_the_target_at_or_after_its_anchor(trained, target):
    trainable, data = trainable_of(trained / "dblast.yaml", target)
    embeds, features, anchors, *rest = trainable.batch(data, (0, 0))

    def blocks(states):
        with torch.no_grad():
            found = trainable._blocks(embeds, states, anchors, *rest)
        s, a = anchors.shape
        return found.branches.view(s, a, 3, -1), found.prior.view(s, a, 3)

    plain = blocks(features)
    for a in range(anchors.shape[1]):
        row, at = 1, int(anchors[1, a])
        later, earlier = features.clone(), features.clone()
        later[row, at:] += 10 * torch.randn_like(later[row, at:])
        earlier[row, at - 1] += 10
        for before, unseen, seen in zip(plain, blocks(later), blocks(earlier), strict=True):
            assert torch.equal(before[row, a], unseen[row, a])
            assert not torch.allclose(before[row, a], seen[row, a], atol=1e-3)


def test_training_lowers_its_objective(trained, target):
    """On one batch, by plain gradient descent: the loss that is compiled and averaged is one."""
    trainable, data = trainable_of(trained / "dblast.yaml", target)
    batch = trainable.batch(data, (0, 0))
    losses = []
    optimiser = torch.optim.Adam(trainable.model.parameters(), 1e-3)
    for _ in range(8):
        optimiser.zero_grad()
        loss = trainable.loss(*batch)
        loss.backward()
        assert all(p.grad is not None for p in trainable.model.parameters())
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.01


@pytest.mark.parametrize(("branches", "there"), [(1, 3), (3, 3)])
def test_training_starts_from_a_checkpoint(branches, there, tmp_path, target_folder):
    """From a DFlash checkpoint, here with fresh branches that change nothing; from a DBlast one."""
    first = training_file(tmp_path / "first", target_folder)
    at_once = [*STEADY, "train.steps=1"]
    once = [*at_once, f"drafter.branches={branches}", "train.balance=0.0"]
    folder = train(first, set_options=once)
    second = training_file(tmp_path / "second", target_folder)
    still = ["train.lr=1e-9", "train.adam_lr=1e-9", "train.weight_decay=0.0"]
    fresh = ["drafter.spread=0.0", f"drafter.branches={there}"]
    settings = [*at_once, *still, f"drafter.init={folder}", *fresh]
    again = DBlastModel.from_folder(train(second, set_options=settings)).float()
    start = DBlastModel.from_folder(folder).float()
    assert type(again) is type(start)
    assert again.config.branches == there
    hidden, head = torch.randn(4, WIDTH), torch.randn(61, WIDTH)
    for name, parameter in start.named_parameters():
        torch.testing.assert_close(again.get_parameter(name), parameter, atol=1e-2, rtol=1e-2)
    difference = again.branch_logits(hidden, head) - start.branch_logits(hidden, head)
    assert difference.abs().max() < 0.25 * start.branch_logits(hidden, head).abs().max()


def test_one_branch_is_a_dflash_checkpoint(target_folder, tmp_path):
    settings = ["drafter.branches=1", "train.balance=0.0", "train.steps=1", "train.objective=nll"]
    folder = train(training_file(tmp_path, target_folder), set_options=settings)
    assert "dblast_config" not in json.loads((folder / "config.json").read_text())
    assert DFlashModel.from_folder(folder).config.block_size == BLOCK
    assert not (tmp_path / "work/likelihoods-train.bin").exists()


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (["drafter.block_size=6"], PairingError, "block_size is 5 there and 6 here"),
        (["drafter.branches=2"], PairingError, "has 3 branches of rank 2.*asks for 2"),
        (["drafter.branches=1"], DraftwoodError, "nothing to balance"),
        (["train.al.threshold=1.5"], ConfigError, "train.al"),
        (["train.al.retained=all"], ConfigError, "whole_block, one_prefix, all_retained"),
        (["train.objective=nll", "train.al.rule=token"], ConfigError, "option of objective 'al'"),
    ],
)
def test_what_does_not_fit_is_refused(settings, error, message, trained, tmp_path, target_folder):
    path = training_file(tmp_path, target_folder, f", init: {trained / 'out'}")
    with pytest.raises(error, match=message):
        train(path, set_options=settings)
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("objective", ["al", "dpace"])
def test_dflash_drafters_have_the_same_objectives(objective, target_folder, tmp_path):
    path = training_file(tmp_path, target_folder)
    plain = path.read_text().replace("algorithm: dblast, branches: 3, rank: 2, ", "")
    path.write_text(plain.replace(", balance: 0.1", ""))
    folder = train(path, set_options=["train.steps=1", f"train.objective={objective}"])
    assert type(DFlashModel.from_folder(folder)) is DFlashModel
    assert (tmp_path / "work/likelihoods-train.bin").exists() == (objective == "al")


def test_tempered_training_divides_by_the_temperature_of_the_text(trained, target):
    """A block of a text at 1.0 says the same either way; one of a greedy text says it colder."""
    trainable, data = trainable_of(trained / "dblast.yaml", target)
    batch = trainable.batch(data, (0, 0))
    plain = trainable._blocks(*batch).branches
    trainable.options = attrs.evolve(trainable.options, tempered=True)
    tempered, heat = trainable._blocks(*batch).branches, batch[-1].flatten()
    assert set(heat.tolist()) == {0.0, 1.0}
    torch.testing.assert_close(tempered[heat == 1.0], plain[heat == 1.0])
    assert (tempered[heat == 0.0] - plain[heat == 0.0]).abs().mean() > 0.1


WORKER = """
import sys
from pathlib import Path
import torch
import torch.distributed as dist
from draftwood.core.hf.loading import load_target
from draftwood.training import export, pace, run, train, trainer
from draftwood.training.parallel import average_gradients, joined, rank
sys.path[:0] = [{tests!r}, str(Path({tests!r}).parent)]
from test_mixture_training import trainable_of

with joined("cpu"):
    if rank() > 0:  # only the first process writes
        def refuse(*args, **kwargs):
            raise AssertionError("not the first process")
        trainer.save_checkpoint = refuse
        from draftwood.training import blocks
        blocks.export = refuse
    run.joined = lambda device: __import__("contextlib").nullcontext(device)
    train({path!r}, set_options={settings!r})
    trainable, data = trainable_of(Path({path!r}), load_target({target!r}, dtype="float32"))
    trainable.loss(*trainable.batch(data, (0, 9))).backward()
    average_gradients(trainable.model.parameters())
    if rank() == 0:
        grads = {{name: p.grad for name, p in trainable.model.named_parameters()}}
        torch.save(grads, {out!r})
"""


@pytest.mark.slow
def test_two_processes_with_half_a_batch_are_one_with_all_of_it(tmp_path, target_folder, target):
    path = training_file(tmp_path, target_folder)
    script, out = tmp_path / "worker.py", tmp_path / "grads.pt"
    script.write_text(
        WORKER.format(
            tests=str(Path(__file__).parent),
            path=str(path),
            settings=STEADY,
            target=str(target_folder),
            out=str(out),
        )
    )
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("step 4: T=0") == 1
    trainable, data = trainable_of(path, target)
    trainable.loss(*trainable.batch(data, (0, 9))).backward()
    together = torch.load(out, weights_only=True)
    for name, parameter in trainable.model.named_parameters():
        assert parameter.grad.abs().max() > 1e-5, name
        torch.testing.assert_close(together[name], parameter.grad, atol=1e-6, rtol=1e-5)
    assert torch.load(tmp_path / "work/drafter.pt", weights_only=True)["step"] == 4


def test_a_batch_that_cannot_be_shared_is_refused(monkeypatch):
    from draftwood.training import parallel

    monkeypatch.setattr(parallel, "size", lambda: 3)
    with pytest.raises(DraftwoodError, match="a multiple of 3"):
        parallel.check_batch(16)


def samples_of(target, temperatures: list[float]) -> Samples:
    tokens = torch.randint(1, 60, (len(temperatures), LENGTH)).numpy().astype(np.int32)
    rows = len(temperatures)
    heat = np.array(temperatures, np.float32)
    return Samples(tokens, np.full(rows, 4), np.full(rows, LENGTH), heat)


def test_likelihoods_are_of_the_distribution_that_wrote_each_text(target, tmp_path):
    torch.manual_seed(0)
    samples = samples_of(target, [0.0, 0.5, 1.0])
    found = token_likelihoods(target.model, samples, tmp_path / "p.bin", Clock())
    ids = torch.from_numpy(samples.tokens.astype(np.int64))
    with torch.no_grad():
        logits = target.model(ids).logits
    for row, heat in ((1, 0.5), (2, 1.0)):
        probs = (logits[row] / heat).log_softmax(-1)
        for t in range(4, LENGTH):
            assert found[row, t] == pytest.approx(probs[t - 1, ids[row, t]].item(), abs=1e-4)
    assert (found[0] == 0).all()  # greedy text was certain
    assert (found[:, :4] == 0).all()  # nobody drew the prompt


def test_likelihoods_go_on_where_they_stopped(target, tmp_path, monkeypatch):
    from draftwood.training import likelihood

    torch.manual_seed(0)
    samples = samples_of(target, [1.0] * 5)
    monkeypatch.setattr(likelihood, "BATCH", 2)
    whole = np.array(token_likelihoods(target.model, samples, tmp_path / "p.bin", Clock()))
    assert (whole[:, 4:] < 0).all()
    (tmp_path / "p.json").write_text('{"texts": 4}')
    part = np.memmap(tmp_path / "p.bin", np.float32, "r+", shape=whole.shape)
    part[:] = np.where(np.arange(5)[:, None] < 4, 7.0, 0.0)
    again = token_likelihoods(target.model, samples, tmp_path / "p.bin", Clock())
    assert (again[:4] == 7.0).all()
    np.testing.assert_allclose(again[4], whole[4], atol=1e-6)


def test_final_states_times_the_head_are_the_logits(target, tmp_path):
    samples = samples_of(target, [0.0, 1.0])
    head = target.head_weight().detach().float()
    states = final_states(target.model, head, samples, tmp_path / "s.bin", Clock())
    with torch.no_grad():
        logits = target.model(torch.from_numpy(samples.tokens.astype(np.int64))).logits
    torch.testing.assert_close(torch.from_numpy(states) @ head.T, logits, atol=1e-4, rtol=1e-4)


def test_a_soft_cap_is_noticed(tmp_path):
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=61,
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=32,
        final_logit_softcapping=2.0,
        initializer_range=0.5,
    )
    model = Gemma2ForCausalLM(config).eval()
    samples = samples_of(None, [1.0])
    with pytest.raises(UnsupportedTarget, match="soft cap"):
        final_states(model, model.lm_head.weight.detach(), samples, tmp_path / "s.bin", Clock())


def acceptance(usage: tuple[float, ...], distinct: tuple[float, ...]) -> BranchAcceptance:
    weights = torch.tensor(usage)
    effective = (-torch.xlogy(weights, weights).sum()).exp().item()
    return BranchAcceptance(1.0, {}, {}, usage, effective, 2.0, distinct, (0.0,), 1.0, 1)


def test_collapse_is_said():
    assert acceptance((0.3, 0.3, 0.4), (1.2, 2.0)).warning is None
    assert acceptance((1.0,), (1.0, 1.0)).warning is None
    assert "1.06 of 3 branches are in use" in str(acceptance((0.99, 0.01, 0.0), (1.2, 2.0)))
    assert "1.10 of 3 greedy branches" in str(acceptance((0.3, 0.3, 0.4), (1.0, 1.1)))


def test_distinct_prefixes_of_greedy_branches_are_counted():
    greedy = torch.tensor([[[1, 2, 3], [1, 2, 4], [1, 2, 3], [5, 2, 3]]])
    assert _distinct(greedy).tolist() == [[2.0, 2.0, 3.0]]


def test_what_ties_tokens_is_what_independent_positions_miss():
    sure, never = math.log(0.9), math.log(0.1)
    halves = torch.tensor([[0.5, 0.5]]).log()
    alike = torch.tensor([[[sure, sure], [never, never]]])  # y is what the first branch says
    found = _tied(halves, alike)[0]
    assert found[0] == pytest.approx(0.0, abs=1e-6)  # one token is tied to nothing
    assert found[1] == pytest.approx(math.log((0.81 + 0.01) / 2) - 2 * math.log(0.5))
    crossed = torch.tensor([[[sure, never], [never, sure]]])  # y is what neither says
    assert _tied(halves, crossed)[0, 1] < 0
    assert _tied(torch.zeros(1, 1), alike[:, :1]).abs().max() < 1e-6  # one branch ties nothing
