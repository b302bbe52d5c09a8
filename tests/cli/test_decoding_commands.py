"""`run`, `trace` and the table of `demo`, on a target without weights."""

import io
import json
import sys
import xml.etree.ElementTree as ET

import pytest

from draftwood.bench.machine import machine
from draftwood.cli import demo, timing
from draftwood.cli.run import JSON
from draftwood.core.stats import RequestStats

ALPHABET = " abcdefghijklmnopqrstuvwxyz"
EXPECTED = (ALPHABET[1:] + ALPHABET * 2)[3:43].lstrip()
PROMPT = "abcdefghijklmnopqrstuvwxyz abc"


def test_run_streams_the_new_text_and_summarises_on_standard_error(draftwood, pipeline):
    ran = draftwood("run", pipeline, "--prompt", PROMPT)
    assert ran.code == 0
    assert ran.out == EXPECTED[: len(ran.out) - 1] + "\n"
    assert len(ran.out) == 41
    assert ran.err.startswith("40 tokens, stopped by length, ")


def test_run_json_is_one_object_with_the_documented_keys(draftwood, pipeline):
    ran = draftwood("run", pipeline, "--prompt", PROMPT, "--json", "--seed", "3")
    result = json.loads(ran.out)
    assert set(result) == set(JSON)
    assert result["text"] == EXPECTED[:40]
    assert (len(result["tokens"]), result["finish_reason"], result["seed"]) == (40, "length", 3)
    assert result["speculation"] == {"ran": True, "reason": None}
    assert result["accepted_length"] > 2
    assert set(result["budget"]) == {"mean", "min", "max"}
    stages = {"prefill", "draft", "grow", "verify", "judge", "commit", "other"}
    assert set(result["timings"]) == stages


def test_a_prompt_comes_from_a_file_or_standard_input(draftwood, pipeline, tmp_path, monkeypatch):
    (tmp_path / "prompt.txt").write_text(PROMPT)
    from_file = draftwood("run", pipeline, "--prompt-file", str(tmp_path / "prompt.txt"))
    stdin = io.TextIOWrapper(io.BytesIO(PROMPT.encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    from_stdin = draftwood("run", pipeline, "--prompt-file", "-")
    assert from_file.out == from_stdin.out
    assert from_file.out.startswith("defgh")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one of --prompt TEXT and --prompt-file FILE"),
        (["--prompt", "a", "--prompt-file", "b"], "give one of"),
        (["--prompt-file", "/nowhere.txt"], "/nowhere.txt: No such file or directory"),
        (["--prompt", ""], "prompt"),
        (["--prompt", "a", "--set", "tree.max_node=3"], "did you mean 'max_nodes'?"),
        (["--prompt", "a", "--seed", "-1"], "--seed"),
    ],
)
def test_bad_input_is_told_without_a_traceback(draftwood, pipeline, arguments, message):
    ran = draftwood("run", pipeline, *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert "Traceback" not in ran.err


def test_trace_draws_the_first_rounds(draftwood, pipeline):
    ran = draftwood("trace", pipeline, "--prompt", PROMPT, "--rounds", "2")
    assert ran.code == 0
    assert ran.out.count("round ") == 2
    assert "bonus" in ran.out


def test_trace_writes_an_svg_that_is_xml(draftwood, pipeline, tmp_path):
    target = tmp_path / "tree.svg"
    ran = draftwood("trace", pipeline, "--prompt", PROMPT, "--svg", str(target))
    assert (ran.code, ran.out) == (0, "")
    assert ET.parse(target).getroot().tag.endswith("svg")
    bad = draftwood("trace", pipeline, "--prompt", PROMPT, "--svg", str(tmp_path))
    assert bad.code == 2
    assert "Is a directory" in bad.err


def test_trace_of_a_text_without_rounds_says_so(draftwood, pipeline):
    ran = draftwood("trace", pipeline, "--prompt", PROMPT, "--set", "generation.max_new_tokens=1")
    assert ran.code == 2
    assert "before the first round" in ran.err


def scripted(seconds):
    """Decoders whose clock says what the test says: name -> seconds of each turn."""
    now, turns = [0.0], {name: iter(values) for name, values in seconds.items()}

    def decoder(name):
        def decode(prompt):
            now[0] += next(turns[name])
            stats = RequestStats(rounds=2, committed=6)
            return timing.Outcome((1, 2), None if name == "hf-generate" else stats)

        return decode

    return {name: decoder(name) for name in seconds}, lambda: now[0]


def test_decoders_are_timed_interleaved_and_paired():
    decoders, clock = scripted({"plain": [4, 4, 2], "bastion": [2, 1, 1], "hf-generate": [4, 4, 4]})
    order: list[str] = []
    timed = timing.side_by_side(decoders, [[1]], 3, clock=clock, progress=order.append)
    assert timed["plain"].seconds == [4, 4, 2]
    assert order[:3] == ["plain", "bastion", "hf-generate"]
    assert order[3:6] == ["bastion", "hf-generate", "plain"]
    assert timing.ratios(timed["bastion"], timed["plain"]) == [2, 4, 2]
    assert timed["bastion"].accepted_length == 3
    assert timed["hf-generate"].accepted_length is None
    assert timed["bastion"].tokens_per_second == 2
    assert set(timed["plain"].as_dict()) == {
        "seconds",
        "accepted_length",
        "tokens_per_second",
        "tokens",
    }


@pytest.mark.parametrize("markdown", [True, False])
def test_the_table_shows_every_pipeline_and_who_differs(markdown):
    decoders, clock = scripted({"plain": [4, 4], "bastion": [2, 1]})
    timed = timing.side_by_side(decoders, [[1]], 2, clock=clock)
    timed["bastion"].tokens = [[9]]
    on = machine()
    text = demo.render(timed, on, markdown=markdown)
    line = next(line for line in text.splitlines() if "bastion" in line)
    assert all(part in line for part in ("3.00", "2.00-4.00", "NO"))
    assert on["torch"] in text
    assert text.startswith("| pipeline" if markdown else "pipeline")
