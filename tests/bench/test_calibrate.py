"""`draftwood calibrate` on a target with scripted times, and its drawings."""

import json
import sys
import xml.etree.ElementTree as ET

import pytest

from draftwood.bench.roofline_figures import calibration_svg
from draftwood.cli.calibrate import JSON
from draftwood.plugins.controllers.roofline.calibration import FITTED, HELD_OUT, calibrate
from draftwood.testing.oracle import ScriptedCosts


@pytest.fixture(autouse=True)
def empty_store(tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "cache"))


def test_output_lists_every_point_and_the_quality_of_the_fit(draftwood, pipeline, tmp_path):
    ran = draftwood("calibrate", pipeline(), "--repeats", "1")
    assert ran.code == 0
    assert len(ran.out.splitlines()) == 1 + len(FITTED) + len(HELD_OUT) + 3
    assert ran.out.count("held out") == len(HELD_OUT)
    assert "on held-out points: median error 0." in ran.out
    assert "operations closed form" in ran.out
    assert "OracleTarget cannot be traced; operations come from a closed form" in ran.err
    (stored,) = (tmp_path / "cache" / "roofline").iterdir()
    assert f"stored: {stored}" in ran.err


def test_json_has_the_documented_keys(draftwood, pipeline):
    ran = draftwood("calibrate", pipeline(), "--repeats", "1", "--json")
    result = json.loads(ran.out)
    assert set(result) == set(JSON) | {"memory"}
    assert len(result["points"]) == len(FITTED) + len(HELD_OUT)


def test_the_drawing_is_xml_with_every_point_and_a_line_per_context(draftwood, pipeline, tmp_path):
    path = tmp_path / "roofs.svg"
    assert draftwood("calibrate", pipeline(), "--repeats", "1", "--svg", str(path)).code == 0
    root = ET.parse(path).getroot()
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    dots = [e for e in root.iter() if e.tag.endswith("circle")]
    assert len(dots) == len(FITTED) + len(HELD_OUT)
    assert all(0 < float(e.get("cx")) < width and 0 < float(e.get("cy")) < height for e in dots)
    curves = [e for e in root.iter() if e.tag.endswith("path") and e.get("class") == "line"]
    assert len(curves) == 5
    assert path.read_text() == calibration_svg(calibrate(ScriptedCosts(), 1))


def test_a_png_without_matplotlib_is_refused(draftwood, pipeline, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    ran = draftwood("calibrate", pipeline(), "--repeats", "1", "--png", str(tmp_path / "a.png"))
    assert ran.code == 2
    assert "pip install 'draftwood[plots]'" in ran.err


def test_a_png_is_drawn_with_matplotlib(draftwood, pipeline, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "a.png"
    assert draftwood("calibrate", pipeline(), "--repeats", "1", "--png", str(path)).code == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_an_unwritable_drawing_is_refused(draftwood, pipeline, tmp_path):
    ran = draftwood("calibrate", pipeline(), "--repeats", "1", "--svg", str(tmp_path))
    assert ran.code == 2
    assert "Is a directory" in ran.err
