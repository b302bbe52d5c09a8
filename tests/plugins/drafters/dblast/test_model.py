"""The DBlast network: branches in low rank, a prior, and DFlash where there is one branch."""

import copy
import json
import pickle
import shutil
from itertools import pairwise
from pathlib import Path

import attrs
import pytest
import torch
from bounds import matmul_bound
from safetensors.torch import load_file, save_file

from draftwood.core.errors import CheckpointError
from draftwood.plugins.drafters.dblast.config import DBlastConfig
from draftwood.plugins.drafters.dblast.model import DBlastModel
from draftwood.plugins.drafters.dflash.config import DFlashConfig
from draftwood.plugins.drafters.dflash.model import DFlashModel

FIXTURES = Path(__file__).parents[3] / "fixtures"
DFLASH = FIXTURES / "zlab/dflash"


@pytest.fixture(scope="module")
def head() -> torch.Tensor:
    return load_file(FIXTURES / "zlab/target/model.safetensors")["lm_head.weight"]


def hidden(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def grown(branches: int = 3, rank: int = 5) -> DBlastModel:
    model = DBlastModel.from_folder(DFLASH).with_branches(branches, rank, seed=4)
    torch.nn.init.normal_(model.branches.expand, generator=torch.Generator().manual_seed(5))
    torch.nn.init.normal_(model.branches.prior.weight, generator=torch.Generator().manual_seed(6))
    return model


def product_bound(model: DBlastModel, states: torch.Tensor, head: torch.Tensor) -> float:
    """By how much two float32 computations of `branch_logits` may differ."""
    branches = model.branches
    width, rank = branches.expand.shape[1:]
    reduced = (states @ branches.reduce.weight.T).abs()  # silu does not increase it
    expanded = reduced @ branches.expand.abs().amax(0).T
    magnitude = (states.abs() + 3 * expanded) @ head.abs().T  # U_0 a, and U_z a - U_0 a
    return matmul_bound(torch.float32, 2 * width + 2 * rank, magnitude.detach())


def written(model: DBlastModel, folder: Path, **change: object) -> Path:
    """`model` as a checkpoint; keys of its `dblast_config` replaced."""
    shutil.copytree(DFLASH, folder)
    data = json.loads((folder / "config.json").read_text())
    data["dblast_config"] = {**model.config.section(), **change}
    (folder / "config.json").write_text(json.dumps(data))
    save_file(model.published_state(), folder / "model.safetensors")
    return folder


def test_a_dflash_checkpoint_loads_as_one_branch_without_new_parameters(head):
    plain, model = DFlashModel.from_folder(DFLASH), DBlastModel.from_folder(DFLASH)
    assert (model.config.branches, model.config.rank) == (1, 0)
    assert model.published_state().keys() == plain.published_state().keys()
    h = hidden(2, 7, 64)
    assert model.branch_logits(h, head).equal(plain.logits(h, head)[None])
    assert model.prior_logits(h[:, 0]).equal(torch.zeros(2, 1))


@pytest.mark.parametrize("grad", [False, True])
def test_branch_logits_equal_the_head_of_each_expanded_state(grad, head):
    model = grown()
    h = hidden(2, 4, 64)
    parts = model.branches
    expanded = [h + torch.nn.functional.silu(h @ parts.reduce.weight.T) @ u.T for u in parts.expand]
    with torch.set_grad_enabled(grad):
        actual = model.branch_logits(h, head)
    assert actual.shape == (3, 2, 4, 96)
    for branch, state in zip(actual, expanded, strict=True):
        torch.testing.assert_close(
            branch, model.logits(state, head), atol=product_bound(model, h, head), rtol=0
        )
    assert model.prior_logits(h[:, 0]).shape == (2, 3)


def test_soft_cap_and_multiplier_apply_to_every_branch(head):
    model = grown()
    plain = model.branch_logits(hidden(4, 64), head)
    model.config = attrs.evolve(model.config, output_multiplier=0.5, final_logit_softcapping=2.0)
    capped = model.branch_logits(hidden(4, 64), head)
    torch.testing.assert_close(capped, 2.0 * torch.tanh(plain * 0.5 / 2.0))


def test_the_cached_projection_follows_weights_head_and_dtype(head):
    model, h = grown(), hidden(4, 64)
    with torch.no_grad():
        first = model.branch_logits(h, head)
        model.branches.expand.mul_(2.0)  # an optimiser's step
        second = model.branch_logits(h, head)
        other = model.branch_logits(h, head * 3.0)
        assert not torch.allclose(first, second)
        bound = product_bound(model, h, head)
        torch.testing.assert_close(other, 3.0 * second, atol=3.0 * bound, rtol=0)
        model.double()
        exact = model.branch_logits(h.double(), head.double())
        torch.testing.assert_close(exact.float(), second, atol=bound, rtol=0)


def test_replaced_parameters_invalidate_the_cached_projection(head):
    """For a whole model, its branches alone, and a copy, which has its own cache."""
    other, h = grown(), hidden(4, 64)
    with torch.no_grad():
        for parameter in other.branches.parameters():
            parameter.mul_(2.0).add_(0.1)
        expected = other.branch_logits(h, head), other.prior_logits(h[0])
        for replace in (
            lambda model: model.load_state_dict(other.state_dict(), assign=True),
            lambda model: model.branches.load_state_dict(other.branches.state_dict(), assign=True),
        ):
            model = grown()
            before = model.branch_logits(h, head), model.prior_logits(h[0])
            copied = pickle.loads(pickle.dumps(copy.deepcopy(model)))
            replace(model)
            untouched = copied.branch_logits(h, head), copied.prior_logits(h[0])
            after = model.branch_logits(h, head), model.prior_logits(h[0])
            for old, kept, new, other_output in zip(
                before, untouched, after, expected, strict=True
            ):
                assert torch.equal(kept, old)
                assert torch.equal(new, other_output)
                assert not torch.equal(old, other_output)  # negative control
            replace(copied)
            assert torch.equal(copied.branch_logits(h, head), expected[0])


def test_branch_logits_of_one_state_equal_those_of_many(head):
    model, h = grown(), hidden(2, 3, 64)
    with torch.no_grad():
        many = model.branch_logits(h, head)
        assert model.branch_logits(h[1, 2], head).shape == many[:, 1, 2].shape
        bound = product_bound(model, h, head)
        one = model.branch_logits(h[1, 2], head)
        torch.testing.assert_close(one, many[:, 1, 2], atol=bound, rtol=0)


def test_gradients_reach_expander_and_prior(head):
    model = grown()
    model.requires_grad_(requires_grad=True)
    h = hidden(4, 64)
    (model.branch_logits(h, head).square().mean() + model.prior_logits(h[0]).sum()).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.branches.parameters())


def test_new_branches_differ_by_spread_and_depend_on_the_seed():
    plain, head = DBlastModel.from_folder(DFLASH), torch.eye(64)  # logits are the states
    model, twin = plain.with_branches(4, 8, seed=3), plain.with_branches(4, 8, seed=3)
    h = hidden(4, 64)
    actual, shared = model.branch_logits(h, head), plain.logits(h, head)
    assert actual.equal(twin.branch_logits(h, head))
    assert not actual.equal(plain.with_branches(4, 8, seed=4).branch_logits(h, head))
    assert all(not a.equal(b) for a, b in pairwise(actual))
    assert model.prior_logits(h[0]).equal(torch.zeros(4))
    # Of the order of the shared state for every rank, and in proportion to `spread`.
    wide = plain.with_branches(4, 32, seed=3).branch_logits(h, head)
    for branches in (actual, wide):
        assert 0.4 < (branches - shared).std() / shared.std() < 0.9
    near = plain.with_branches(4, 8, seed=3, spread=0.1).branch_logits(h, head)
    bound = product_bound(model, h, head)
    torch.testing.assert_close(near - shared, 0.1 * (actual - shared), atol=bound, rtol=0)
    none = plain.with_branches(4, 8, seed=3, spread=0.0).branch_logits(h, head)
    torch.testing.assert_close(none, shared.expand(4, -1, -1), atol=bound, rtol=0)


def test_a_written_checkpoint_loads_unchanged(tmp_path):
    model = grown()
    table = [[0.7, 0.5], [1.0, 1.5]]
    loaded = DBlastModel.from_folder(written(model, tmp_path / "x", prior_temperatures=table))
    stored, kept = loaded.published_state(), model.published_state()
    assert stored.keys() == kept.keys()
    assert all(stored[name].equal(kept[name]) for name in kept)
    assert loaded.config.section() == {"branches": 3, "rank": 5, "prior_temperatures": table}
    assert DBlastConfig.from_dflash(DFlashConfig.from_file(DFLASH), 3, 5, table) == loaded.config


def test_prior_temperature_is_interpolated_between_tuned_ones():
    config = DBlastConfig.from_dflash(
        DFlashConfig.from_file(DFLASH), 2, 4, [[0.5, 1.0], [1.0, 3.0]]
    )
    actual = [config.prior_temperature(t) for t in (0.0, 0.5, 0.75, 1.0, 2.0)]
    assert actual == [1.0, 1.0, 2.0, 3.0, 3.0]
    assert DBlastConfig.from_file(DFLASH).prior_temperature(0.7) == 1.0


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"branches": 4}, "rank"),
        ({"branches": 0, "rank": 1}, "branches"),
        ({"branches": 1, "rank": 3}, "one branch"),
        ({"branches": 2, "rank": 3, "prior_temperatures": [[1.0]]}, "prior_temperatures"),
        ({"branches": 2, "rank": 3, "prior_temperatures": [[1, 1], [0.5, 1]]}, "must rise"),
    ],
)
def test_config_errors_name_file_and_key(section, message, tmp_path):
    data = json.loads((DFLASH / "config.json").read_text()) | {"dblast_config": section}
    with pytest.raises(CheckpointError, match=message) as caught:
        DBlastConfig.from_mapping(data, "folder/config.json")
    assert "folder/config.json" in str(caught.value)


def test_a_selector_is_refused_naming_the_drafter_that_reads_it():
    with pytest.raises(CheckpointError, match="use the drafter dflash"):
        DBlastConfig.from_file(FIXTURES / "zlab/dflash2")


def test_missing_branch_parameters_are_named(tmp_path):
    model = grown()
    folder = written(model, tmp_path / "x")
    weights = load_file(folder / "model.safetensors")
    del weights["branches.expand"]
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"missing: branches\.expand"):
        DBlastModel.from_folder(folder)
