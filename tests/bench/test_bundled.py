"""The whole way with a real model: the bundled target beside transformers' own decoding."""

import json

import pytest


@pytest.fixture(autouse=True)
def small_target() -> None:
    """The bundled target, instead of the one that says the alphabet."""


def test_every_way_of_decoding_says_the_same_about_real_code(draftwood, tmp_path):
    ran = draftwood(
        "bench",
        "ngram",
        "--limit",
        "1",
        "--tokens",
        "8",
        "--baseline",
        "hf-generate,hf-prompt-lookup,hf-assisted",
        "--assistant",
        "builtin",
        "--out",
        str(tmp_path),
        "--json",
    )
    assert ran.code == 0
    report = json.loads(ran.out)
    names = ["plain", "ngram", "hf-generate", "hf-prompt-lookup", "hf-assisted"]
    assert list(report["results"]) == names
    for results in report["results"].values():
        numbers = results["overall"]
        assert (numbers["requests"], numbers["tokens"]) == (1, 8)
        assert numbers["same_tokens"]["same"] == 1
        assert numbers["speedup_over_hf"]["value"] > 0
    assert report["differences"] == []
    answers = [json.loads(line) for line in (tmp_path / "report.jsonl").read_text().splitlines()]
    texts = {answer["choices"][0]["turns"][0] for answer in answers}
    assert len(texts) == 1  # whoever decoded it
