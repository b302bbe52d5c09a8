"""The kernels in forwards of fixed size, whose padding nodes they must keep apart."""

import random

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig

from draftwood.core.hf import HFTarget
from draftwood.core.hf.graphs import Graphs
from draftwood.core.values import TokenTree
from draftwood.plugins.verifiers.triton.launches import LAUNCHES
from draftwood.plugins.verifiers.triton.verifier import TritonKernels

ON_GPU = torch.cuda.is_available()
VOCAB, WINDOW, LAYERS = 61, 24, 2


@pytest.fixture
def target():
    """On a GPU forwards are captured; in the interpreter, which has nothing to capture, they run
    again, padded all the same."""
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
    found = HFTarget(model.to("cuda" if ON_GPU else "cpu"), graphs="auto")
    if not ON_GPU:
        found.graphs = Graphs(found, lambda launch, replayed: launch)
    return found


def test_padding_moves_no_score(target):
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
        tree = TokenTree.of(tokens, parents, depths, [0.0] * (nodes + 1))
        found, expected = (target.forward([(session, tree)])[0] for session in (own, plain))
        torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found.features, expected.features, rtol=1e-4, atol=1e-4)
        path = tree.path(nodes)
        own.commit(path)
        plain.commit(path)
    assert LAUNCHES.counts()["tree_attention"] - before >= 3 * LAYERS
    (buffers,) = own.cache.held
    known = {(size, taps) for size, taps, _ in buffers.forwards}
    assert known == {(9, (0,)), (1, (0,)), (5, ())}  # the last was the check's, on opening
