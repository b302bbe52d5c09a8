"""`dblast` proposes the network's mixture, and decodes to the target's tokens."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from draftwood import load_pipeline
from draftwood.core.config.pipeline import load_config
from draftwood.core.errors import CheckpointError, ConfigError
from draftwood.core.generation import Pipeline
from draftwood.core.interfaces import DraftWork
from draftwood.core.options import Sampling
from draftwood.core.proposals import MixtureProposal
from draftwood.core.randomness import Seeded
from draftwood.core.values import Limits
from draftwood.plugins.drafters.dblast.drafter import DBlast
from draftwood.plugins.drafters.dblast.model import DBlastModel
from draftwood.plugins.drafters.formats.convert import convert
from draftwood.plugins.drafters.formats.describe import describe
from draftwood.plugins.drafters.options import DBlastOptions

FIXTURES = Path(__file__).parents[3] / "fixtures"
DFLASH = FIXTURES / "zlab/dflash"
RECORDS = json.loads((DFLASH / "expected.json").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The DFlash fixture with four branches that differ visibly."""
    folder = tmp_path_factory.mktemp("dblast") / "checkpoint"
    shutil.copytree(DFLASH, folder)
    model = DBlastModel.from_folder(DFLASH).with_branches(4, 8, seed=3)
    assert model.branches is not None
    generator = torch.Generator().manual_seed(7)
    torch.nn.init.normal_(model.branches.expand, std=0.15, generator=generator)
    torch.nn.init.normal_(model.branches.prior.weight, std=0.3, generator=generator)
    data = json.loads((folder / "config.json").read_text())
    data["dblast_config"] = {**model.config.section(), "prior_temperatures": [[0.7, 0.4], [1, 2]]}
    (folder / "config.json").write_text(json.dumps(data))
    save_file(model.published_state(), folder / "model.safetensors")
    return folder


def document(folder: Path, tree: str = "lottery", rule: str = "ratio", **drafter: object) -> dict:
    return {
        "target": {"model": str(FIXTURES / "zlab/target")},
        "drafter": {"use": "dblast", "checkpoint": str(folder), **drafter},
        "tree": {"use": tree},
        "controller": {"use": "fixed", "nodes": 24},
        "verifier": {"use": rule},
        "runtime": {"dtype": "float32"},
    }


LIMITS = Limits(24)


def proposed(
    pipeline: Pipeline, temperature: float = 1.0, limits: Limits = LIMITS
) -> MixtureProposal:
    """The first round's proposal for a recorded prompt."""
    engine, ids = pipeline.engine, RECORDS[0]["prompt"]
    assert engine.drafter is not None
    session = engine.target.open(engine.drafter.taps)
    forwarded = session.prefill(ids)
    draft = engine.drafter.open(engine.target, Sampling(temperature))
    draft.commit(ids, forwarded.features)
    work = DraftWork(draft, int(forwarded.logits[0].argmax()), len(ids), limits, Seeded(0))
    (proposal,) = engine.drafter.propose([work])
    assert isinstance(proposal, MixtureProposal)
    return proposal


def test_the_proposal_is_the_mixture_of_the_network(folder: Path) -> None:
    pipeline = load_pipeline(document(folder))
    proposal, one = proposed(pipeline), proposed(load_pipeline(document(DFLASH)))
    assert proposal.logits.shape == (4, 7, 96)
    assert one.logits.shape == (1, 7, 96)
    assert proposal.weights().sum() == pytest.approx(1.0)
    assert proposal.weights().max() < 0.999
    assert not proposal.logits[0].equal(proposal.logits[1])
    short = proposed(pipeline, limits=Limits(24, 3))
    torch.testing.assert_close(short.logits, proposal.logits[:, :3])
    assert short.prior.equal(proposal.prior)


def test_prior_temperature_comes_from_the_option_else_the_checkpoint(folder: Path) -> None:
    def z_t(**drafter: object) -> list[float]:
        pipeline = load_pipeline(document(folder, **drafter))
        return [proposed(pipeline, t).prior_temperature for t in (0.7, 0.85, 1.5)]

    assert z_t() == pytest.approx([0.4, 1.2, 2.0])
    assert z_t(prior_temperature=0.3) == [0.3, 0.3, 0.3]
    assert z_t(prior_temperature=[[0.7, 1.0], [1.5, 3.0]])[::2] == [1.0, 3.0]
    with pytest.raises(ConfigError, match="must rise"):
        load_config(document(folder, prior_temperature=[[1.0, 1.0], [0.5, 3.0]]))
    with pytest.raises(ConfigError, match="not negative"):
        load_config(document(folder, prior_temperature=-1.0))


@pytest.mark.parametrize("tree", ["best_first", "branches", "chain", "lottery", "sampled"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_match_gives_the_tokens_of_plain_decoding(
    folder: Path, tree: str, temperature: float
) -> None:
    fast = load_pipeline(document(folder, tree, "match"))
    plain = load_pipeline(
        {
            "target": {"model": str(FIXTURES / "zlab/target")},
            "verifier": {"use": "match"},
            "runtime": {"dtype": "float32"},
        }
    )
    options = {"max_new_tokens": 48, "temperature": temperature, "seed": 5}
    accepted = rejected = 0
    for record in RECORDS[:2]:
        ours = fast.generate(record["prompt"], **options)
        assert ours.tokens == plain.generate(record["prompt"], **options).tokens
        accepted += ours.stats.accepted
        rejected += ours.stats.rejected
    assert accepted > 0
    assert rejected > 0


@pytest.mark.parametrize(("tree", "rule"), [("lottery", "ratio"), ("sampled", "traversal")])
def test_rejection_rules_accept_and_reject_drafts(folder: Path, tree: str, rule: str) -> None:
    pipeline = load_pipeline(document(folder, tree, rule))
    stats = pipeline.generate(
        RECORDS[0]["prompt"], max_new_tokens=48, temperature=0.8, seed=1
    ).stats
    assert stats.accepted > 0
    assert stats.rejected > 0


def test_one_branch_decodes_like_dflash() -> None:
    """A DFlash checkpoint under `dblast` commits the same tokens in every round."""
    ours = load_pipeline(document(DFLASH, "best_first", "match"))
    theirs = load_pipeline(
        {
            **document(DFLASH, "best_first", "match"),
            "drafter": {"use": "dflash", "checkpoint": str(DFLASH)},
        }
    )
    for record in RECORDS:
        one, other = (p.generate(record["prompt"], max_new_tokens=48) for p in (ours, theirs))
        assert one.tokens == other.tokens
        assert one.stats.committed_per_round == other.stats.committed_per_round


def test_checkpoints_with_a_selector_are_refused() -> None:
    with pytest.raises(CheckpointError, match="use the drafter dflash"):
        DBlast(DBlastOptions(FIXTURES / "zlab/dflash2"))


def test_a_checkpoint_with_branches_is_described_as_dblast(folder: Path, tmp_path: Path) -> None:
    description = describe(folder)
    assert (description.format, description.algorithm, description.block) == ("zlab", "dblast", 8)
    assert description.problems == ()
    assert describe(DFLASH).algorithm == "dflash"
    data = json.loads((folder / "config.json").read_text())
    del data["dblast_config"]["rank"]
    (tmp_path / "config.json").write_text(json.dumps(data))
    (problem,) = describe(tmp_path).problems
    assert "need an expander of rank" in problem
    with pytest.raises(CheckpointError, match="dblast"):
        convert(folder, tmp_path / "other", "speculators")
