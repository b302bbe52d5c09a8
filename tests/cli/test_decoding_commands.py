"""`run`, `trace` and the table of `demo`, on a target without weights."""

import io
import json
import sys
import xml.etree.ElementTree as ET

import pytest

from draftwood.bench.machine import machine
from draftwood.bench.reports.tables import COLUMNS
from draftwood.cli import demo, drawing, options, timing
from draftwood.cli.prompts import PROMPTS
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
    assert all(part in line for part in ("3.00 (2.00-4.00)", "NO"))
    assert on["torch"] in text
    assert text.startswith("| pipeline" if markdown else "pipeline")


@pytest.mark.covers("text-encoding")
def test_byte_order_mark_is_no_part_of_the_prompt(draftwood, pipeline, tmp_path, monkeypatch):
    marked = b"\xef\xbb\xbf" + PROMPT.encode()
    (tmp_path / "prompt.txt").write_bytes(marked)
    plain = draftwood("run", pipeline, "--prompt", PROMPT)
    assert (
        draftwood("run", pipeline, "--prompt-file", str(tmp_path / "prompt.txt")).out == plain.out
    )
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(marked)))
    assert draftwood("run", pipeline, "--prompt-file", "-").out == plain.out


@pytest.mark.covers("resource-bomb")
def test_endless_prompt_is_refused_without_reading_it_all(draftwood, pipeline, monkeypatch):
    monkeypatch.setattr(options, "MAX_PROMPT_BYTES", 1000)
    ran = draftwood("run", pipeline, "--prompt-file", "/dev/zero")
    assert (ran.code, ran.out) == (2, "")
    assert "more than 1000 bytes" in ran.err


@pytest.mark.covers("mutated-input")
@pytest.mark.parametrize("file", ["a\0b", "x" * 5000, "/", "/dev/null/x"])
def test_prompt_file_that_cannot_be_opened_is_named(draftwood, pipeline, file):
    ran = draftwood("run", pipeline, "--prompt-file", file)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: --prompt-file ")


def test_request_options_of_run_override_the_pipeline(draftwood, pipeline):
    ran = draftwood("run", pipeline, "--prompt", PROMPT, "--max-new-tokens", "5")
    assert ran.out == EXPECTED[:5] + "\n"
    ran = draftwood("run", pipeline, "--prompt", PROMPT, "--stop", "zzz", "--stop", "ghi")
    assert ran.out == "defghi\n"
    assert "stopped by stop_string" in ran.err
    sampled = ("run", pipeline, "--prompt", PROMPT, "--temperature", "30")
    first, same, other = (draftwood(*sampled, "--seed", seed).out for seed in "112")
    assert first == same != other
    assert first != EXPECTED[:40] + "\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temperature", "-1"], "'temperature' must be >= 0.0: -1.0"),
        (["--temperature", "inf"], "'temperature' must be finite"),
        (["--max-new-tokens", "1000000000"], "'max_new_tokens' must be <="),
        (["--stop", ""], "'stop_strings' must be a list of texts, none empty"),
        (["--chat"], "chat messages need a tokenizer with a chat template"),
    ],
)
def test_wrong_request_option_is_named(draftwood, pipeline, arguments, message):
    ran = draftwood("run", pipeline, "--prompt", PROMPT, *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["--chat"], [("user", "abc")]),
        (["--system", "xyz"], [("system", "xyz"), ("user", "abc")]),
    ],
)
def test_chat_and_system_go_through_the_chat_template(
    draftwood, pipeline, letters, monkeypatch, arguments, messages
):
    seen = []

    def template(_: object, given: list[dict[str, str]], **options: object) -> str:
        seen.append([(message["role"], message["content"]) for message in given])
        return PROMPT

    monkeypatch.setattr(letters, "chat_template", "any", raising=False)
    monkeypatch.setattr(letters, "apply_chat_template", template, raising=False)
    ran = draftwood("run", pipeline, "--prompt", "abc", *arguments)
    assert (ran.code, ran.out) == (0, EXPECTED[:40] + "\n")
    assert seen == [messages]


def test_trace_marks_the_accepted_path_without_colour(draftwood, pipeline):
    ran = draftwood("trace", pipeline, "--prompt", PROMPT, "--rounds", "1")
    assert "\x1b" not in ran.out
    accepted = [line for line in ran.out.splitlines() if "* " in line]
    count = int(ran.out.partition(" accepted")[0].rpartition(" ")[2])
    assert len(accepted) == count + 1  # and the anchor
    assert len([line for line in ran.out.splitlines() if "+ " in line and "bonus" in line]) == 2


@pytest.mark.covers("output-stream")
def test_visible_text_on_an_ascii_terminal_is_ascii():
    assert drawing.visible(" a\n\té", ascii_only=True) == "_a\\n\\t\\xe9"
    assert drawing.visible("", ascii_only=True) == "''"
    assert drawing.visible(" a\n") == "·a⏎"


@pytest.mark.parametrize("prompt", PROMPTS)
def test_prompts_of_the_demo_end_where_a_word_ends(prompt):
    assert prompt[-1] == prompt.rstrip()[-1]


def test_table_of_the_demo_fits_80_columns_and_says_what_the_speedup_divides():
    decoders, clock = scripted({"plain": [4, 4], "bastion": [2, 1], "eagle-static": [2, 1]})
    timed = timing.side_by_side(decoders, [[1]], 2, clock=clock)
    lines = demo.render(timed, machine(), markdown=False).splitlines()
    assert max(map(len, lines[:4])) <= 80
    assert "seconds of plain divided by seconds of the pipeline" in lines[5]
    assert lines[5].endswith("median (lowest-highest) of 2 repetitions")


CELLS = ("eagle-static", "213.8", "2.33", "2.20-2.41", "2.75", "4.70", "4.42", "24.6")


@pytest.mark.parametrize("end", ["yes", "19 of 20, margin 1e-05", "by distribution"])
@pytest.mark.parametrize("width", [120, 80, 40])
def test_table_of_bench_fits_the_terminal(monkeypatch, width, end):
    monkeypatch.setenv("COLUMNS", str(width))
    row = (*CELLS, end)
    lines = options.table([row, row], COLUMNS).splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    assert all(word in words for cell in row for word in cell.split())
    if end != "by distribution":  # too long for 80 columns beside the others
        assert (lines[0] == "eagle-static") == (width == 40)


@pytest.mark.parametrize(("count", "text"), [(0, "0 tokens"), (1, "1 token"), (2, "2 tokens")])
def test_numbers_agree_with_their_nouns(count, text):
    assert options.counted(count, "token") == text
