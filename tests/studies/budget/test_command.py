"""The command line of the budget study."""

import json

from studies.budget.command import JSON, command


def test_json_output_has_the_documented_keys(study, pipeline, prompt_file, tmp_path):
    arguments = ("--prompts", prompt_file, "--tokens", "12", "--repeats", "1")
    ran = study(command, pipeline(), *arguments, "--json", "--out", str(tmp_path / "out"))
    assert ran.code == 0, ran.err
    result = json.loads(ran.out)
    assert {key for key in JSON if "." not in key} == set(result)
    (each,) = result["pipelines"].values()
    assert [cell["temperature"] for cell in each["cells"]] == [0.0, 0.7, 1.0]
    assert set(each) == {"times", "cells", "overall", "policies"}
    assert (tmp_path / "out" / "budget.md").read_text().startswith("## Budgets of")
    assert json.loads((tmp_path / "out" / "budget.json").read_text()) == result


def test_unsuitable_pipelines_are_refused_before_weights_load(study, pipeline, small_target):
    ran = study(command, pipeline(extra="\n"), "--set", "verifier.use=ratio")
    assert ran.code == 2
    assert "verifier" in ran.err
    assert study(command, "plain").code == 2
    assert study(command, pipeline(), "--temperature", "inf").code == 2
    assert small_target == []
