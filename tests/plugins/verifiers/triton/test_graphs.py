"""The kernels in forward passes of fixed size: a target's, with padding, and a drafter's block."""

import random
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig

from draftwood.core.hf import HFTarget, load_target
from draftwood.core.hf.graphs import Graphs
from draftwood.core.kernels.capture import Capturing, on_device
from draftwood.core.kernels.launches import LAUNCHES
from draftwood.core.kernels.triton.kernels import TritonKernels
from draftwood.core.options import Sampling
from draftwood.core.tree import TokenTree
from draftwood.plugins.drafters.dflash.drafter import DFlash
from draftwood.plugins.drafters.options import DFlashOptions

ON_GPU = torch.cuda.is_available()
VOCAB, WINDOW, LAYERS = 61, 24, 2
ZLAB = Path(__file__).parents[3] / "fixtures" / "zlab"


@pytest.fixture
def target():
    """On a GPU forwards are captured; in the interpreter they run uncaptured, padded as there."""
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=320,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention"],
        initializer_range=0.4,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").float().eval()
    padded = HFTarget(model.to("cuda" if ON_GPU else "cpu"), graphs="auto")
    if not ON_GPU:
        padded.graphs = Graphs(padded.scorer, Capturing(lambda launch, replayed: launch))
    return padded


def test_padding_changes_no_score(target):
    rng, kernels = random.Random(0), TritonKernels()
    own, plain = target.open((0,), kernels), target.open((0,))
    prompt = [rng.randrange(VOCAB) for _ in range(30)]  # past the window
    own.prefill(prompt)
    plain.prefill(prompt)
    before = LAUNCHES.counts()["tree_attention"]
    for nodes in (6, 0, 7):
        parents = [-1, *(rng.randrange(node) for node in range(1, nodes + 1))]
        depths = [0]
        for parent in parents[1:]:
            depths.append(depths[parent] + 1)
        tokens = rng.sample(range(VOCAB), nodes + 1)
        tree = TokenTree.from_lists(tokens, parents, depths, [0.0] * (nodes + 1))
        actual, expected = (target.forward([(session, tree)])[0] for session in (own, plain))
        torch.testing.assert_close(actual.logits, expected.logits, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(actual.features, expected.features, rtol=1e-4, atol=1e-4)
        path = tree.path(nodes)
        own.commit(path)
        plain.commit(path)
    assert LAUNCHES.counts()["tree_attention"] - before >= 3 * LAYERS
    (buffers,) = own.cache.held
    sizes = {(size, taps) for size, taps, _ in buffers.forwards}
    assert sizes == {
        (9, (0,)),
        (1, (0,)),
        (5, ()),
    }  # the last one is the check's when the session opens


@pytest.mark.parametrize("layout", ["dflash", "dflash2"])
def test_a_drafters_block_equals_that_of_its_own_attention(layout):
    target = load_target(ZLAB / "target", device="cuda" if ON_GPU else "cpu", dtype="float32")
    capture = partial(on_device, target.device) if ON_GPU else lambda launch, replayed: launch
    sessions = []
    for fixed in (True, False):
        drafter = DFlash(DFlashOptions(checkpoint=ZLAB / layout)).bind(target)
        if fixed:
            drafter = drafter.capture(TritonKernels(), Capturing(capture))
        sessions.append(drafter.open(target, Sampling(1.0)))
    make = torch.Generator().manual_seed(0)
    before = LAUNCHES.counts().get("tree_attention", 0)
    for anchor, rows in enumerate((40, 3, 1)):
        features = torch.randn(rows, 192, generator=make).to(target.device)
        for session in sessions:
            session.commit((1,) * rows, features)
        with torch.inference_mode():
            actual, expected = (session.slots(anchor) for session in sessions)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert LAUNCHES.counts()["tree_attention"] - before >= 3 * 2
