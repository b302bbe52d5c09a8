"""dflash checkpoints in the published layouts decode as in their own implementations."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood import load_pipeline
from draftwood.core.errors import CompositionError, PairingError
from draftwood.core.generation import Pipeline

FIXTURES = Path(__file__).parents[3] / "fixtures"
CHECKPOINTS = ["zlab/dflash", "zlab/dflash2", "speculators/dflash", "heads/jetspec"]


def pipeline(checkpoint: str, **changes: object) -> Pipeline:
    document = {
        "target": {"model": str(FIXTURES / "zlab/target")},
        "drafter": {"use": "dflash", "checkpoint": str(FIXTURES / checkpoint)},
        "tree": {"use": "chain"},
        "controller": {"use": "fixed", "nodes": 7},
        "verifier": {"use": "match"},
        "runtime": {"dtype": "float32"},
    }
    return load_pipeline(document | changes)


def expected(checkpoint: str) -> list[dict[str, list[int]]]:
    folder = checkpoint.replace("speculators", "zlab")
    records: list[dict[str, Any]] = json.loads((FIXTURES / folder / "expected.json").read_text())
    for record in records:
        rounds = record["committed_per_round"]
        if isinstance(rounds, dict):  # by loop; the reference does not cap its last round
            record["committed_per_round"] = rounds["chain"][:-1]
    return records


@pytest.mark.covers("block-start")
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_chains_commit_the_recorded_tokens_of_each_round(checkpoint: str) -> None:
    chain = pipeline(checkpoint)
    for record in expected(checkpoint):
        result = chain.generate(record["prompt"], max_new_tokens=64, eos_token_id=())
        assert list(result.tokens[:48]) == record["output"]
        rounds = record["committed_per_round"]
        assert result.stats.committed_per_round[: len(rounds)] == rounds


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
@pytest.mark.parametrize("tree", ["chain", "best_first", "static"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_tree_gives_the_tokens_of_plain_decoding(
    checkpoint: str, tree: str, temperature: float
) -> None:
    fast = pipeline(checkpoint, tree={"use": tree}, controller={"use": "fixed", "nodes": 24})
    plain = load_pipeline(
        {
            "target": {"model": str(FIXTURES / "zlab/target")},
            "verifier": {"use": "match"},
            "runtime": {"dtype": "float32"},
        }
    )
    options = {"max_new_tokens": 64, "temperature": temperature, "seed": 5}
    rejected = accepted = 0
    for record in expected(checkpoint):
        ours = fast.generate(record["prompt"], **options)
        assert ours.tokens == plain.generate(record["prompt"], **options).tokens
        accepted += ours.stats.accepted
        rejected += ours.stats.rejected
    assert accepted > 0
    assert rejected > 0


def test_a_wider_tree_commits_more_per_round_than_the_chain() -> None:
    prompts = [record["prompt"] for record in expected("zlab/dflash")]
    lengths = {}
    for tree, nodes in [("chain", 7), ("best_first", 32)]:
        one = pipeline(
            "zlab/dflash", tree={"use": tree}, controller={"use": "fixed", "nodes": nodes}
        )
        rounds = [one.generate(p, max_new_tokens=64).stats for p in prompts]
        lengths[tree] = sum(s.committed for s in rounds) / sum(s.rounds for s in rounds)
    assert lengths["best_first"] > lengths["chain"]


@pytest.mark.covers("tapped-layers")
def test_other_tapped_layers_lower_acceptance(tmp_path: Path) -> None:
    """Negative control: with other taps the drafter loads, and its proposals are worse."""
    folder = FIXTURES / "zlab/dflash"
    config = json.loads((folder / "config.json").read_text())
    config["dflash_config"]["target_layer_ids"] = [0, 3, 5]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    prompts = [record["prompt"] for record in expected("zlab/dflash")]

    def tau(checkpoint: str) -> float:
        stats = [pipeline(checkpoint).generate(p, max_new_tokens=64).stats for p in prompts]
        return sum(s.committed for s in stats) / sum(s.rounds for s in stats)

    assert tau(str(tmp_path)) < 0.8 * tau("zlab/dflash")


@pytest.mark.covers("tapped-layers")
def test_tapped_layers_out_of_range_are_refused_before_weights_load(tmp_path: Path) -> None:
    config = json.loads((FIXTURES / "zlab/dflash/config.json").read_text())
    config["dflash_config"]["target_layer_ids"] = [1, 2, 17]
    config["num_target_layers"] = 18
    (tmp_path / "config.json").write_text(json.dumps(config))  # and no weights at all
    with pytest.raises(CompositionError, match="17"):
        pipeline(str(tmp_path))


def test_a_target_of_another_width_is_refused() -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=6,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
    )
    other = Qwen3ForCausalLM(config).eval()
    with pytest.raises(PairingError, match="64 wide"):
        load_pipeline(
            {
                "drafter": {"use": "dflash", "checkpoint": str(FIXTURES / "zlab/dflash")},
                "tree": {"use": "chain"},
                "controller": {"use": "fixed", "nodes": 7},
                "verifier": {"use": "match"},
            },
            target=other,
        )
