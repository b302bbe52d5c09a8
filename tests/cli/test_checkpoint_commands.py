"""`inspect` and `convert`: what they print, JSON shapes, exit codes."""

import json
import shutil
from pathlib import Path

from draftwood.cli.inspect import JSON

FIXTURES = Path(__file__).parents[1] / "fixtures"


def test_inspect_says_what_a_checkpoint_is(draftwood):
    ran = draftwood("inspect", str(FIXTURES / "speculators/eagle3"))
    assert (ran.code, ran.err) == (0, "")
    lines = dict(line.split(None, 1) for line in ran.out.splitlines())
    assert (lines["format"], lines["algorithm"]) == ("speculators", "eagle3")
    assert lines["taps"] == "1, 2, 4"
    assert lines["vocabulary"] == "64 of 96"


def test_inspect_json_has_the_documented_keys(draftwood):
    ran = draftwood("inspect", str(FIXTURES / "zlab/dflash"), "--json")
    found = json.loads(ran.out)
    assert (ran.code, set(found)) == (0, set(JSON))
    assert found["pairs_with"] == {"model": None, "layers": 6, "hidden_size": 64}
    assert (found["taps"], found["block"], found["problems"]) == ([1, 2, 4], 8, [])


def test_inspect_exits_with_1_for_problems_and_2_for_no_checkpoint(draftwood, tmp_path):
    shutil.copy(FIXTURES / "zlab/dflash/config.json", tmp_path)
    ran = draftwood("inspect", str(tmp_path))
    assert ran.code == 1
    assert "problem: " in ran.out
    assert "neither model.safetensors" in ran.out
    assert json.loads(draftwood("inspect", str(tmp_path), "--json").out)["problems"]
    (tmp_path / "config.json").unlink()
    ran = draftwood("inspect", str(tmp_path))
    assert (ran.code, ran.out) == (2, "")
    assert "config.json: cannot be read" in ran.err


def test_convert_writes_what_inspect_accepts(draftwood, tmp_path):
    out = tmp_path / "out"
    ran = draftwood("convert", str(FIXTURES / "zlab/dflash"), str(out), "--to", "speculators")
    assert (ran.code, ran.out) == (0, f"{out}\n")
    found = json.loads(draftwood("inspect", str(out), "--json").out)
    assert (found["format"], found["taps"], found["problems"]) == ("speculators", [1, 2, 4], [])
    again = draftwood("convert", str(out), str(out), "--to", "zlab")
    assert again.code == 2
    assert "not an empty folder" in again.err
    assert draftwood("convert", str(out), str(tmp_path / "b"), "--to", "gguf").code == 2


def test_convert_takes_the_layers_that_an_eagle_checkpoint_does_not_name(draftwood, tmp_path):
    eagle, out = tmp_path / "eagle", tmp_path / "out"
    source = str(FIXTURES / "speculators/eagle3")
    assert draftwood("convert", source, str(eagle), "--to", "eagle").code == 0
    data = json.loads((eagle / "config.json").read_text())
    del data["eagle_aux_hidden_state_layer_ids"]
    (eagle / "config.json").write_text(json.dumps(data))
    back = ("convert", str(eagle), str(out), "--to", "speculators")
    assert draftwood(*back).code == 2
    assert draftwood(*back, "--taps", "one,two").code == 2
    assert draftwood(*back, "--taps", "1,2,4").code == 0
    assert json.loads(draftwood("inspect", str(out), "--json").out)["taps"] == [1, 2, 4]
