"""How many positions a target can hold, in every published form of rotary settings."""

from types import SimpleNamespace

import pytest

from draftwood.core.errors import RequestError
from draftwood.core.hf import HFTarget
from draftwood.core.hf.rope import position_limit

PLAIN = {"rope_type": "default", "rope_theta": 1e4}
LONG = {"rope_type": "longrope", "original_max_position_embeddings": 1024}


@pytest.mark.covers("rope-switch")
@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({}, 4096),
        ({"rope_parameters": None}, 4096),
        ({"rope_parameters": PLAIN}, 4096),
        ({"rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": 9}}, 4096),
        ({"rope_parameters": LONG}, 1024),
        ({"rope_parameters": {"rope_type": "dynamic"}}, 4096),
        ({"rope_parameters": LONG | {"rope_type": "dynamic"}}, 1024),
        ({"rope_parameters": {"full_attention": LONG, "sliding_attention": PLAIN}}, 1024),
        ({"rope_parameters": {"full_attention": PLAIN, "sliding_attention": PLAIN}}, 4096),
        ({"rope_scaling": {"type": "longrope", "original_max_position_embeddings": 512}}, 512),
        ({"rope_scaling": {"type": "su"}, "original_max_position_embeddings": 256}, 256),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 4096),
    ],
)
def test_position_limit_is_the_length_up_to_which_rope_does_not_rescale(settings, limit):
    config = SimpleNamespace(max_position_embeddings=4096, **settings)
    assert position_limit(config).positions == limit


def test_position_limit_gives_the_reason_only_where_rope_lowers_it():
    config = SimpleNamespace(max_position_embeddings=4096, rope_parameters=LONG)
    assert "longrope" in position_limit(config).reason
    config.rope_parameters = PLAIN
    assert position_limit(config).reason == ""


@pytest.mark.covers("rope-switch")
def test_text_past_a_nested_rope_switch_is_refused_with_the_reason(fresh_model):
    model = fresh_model("gemma3")
    settings = dict(model.config.rope_parameters)
    settings["full_attention"] = settings["full_attention"] | {
        "rope_type": "dynamic",
        "factor": 2.0,
        "original_max_position_embeddings": 16,
    }
    model.config.rope_parameters = settings
    target = HFTarget(model, check=False)
    assert target.max_context == 16
    with pytest.raises(RequestError, match="dynamic rotary embedding rescales"):
        target.open().prefill(list(range(1, 18)))
