"""The example plugin installs as a stranger's would, passes its own tests, and runs from YAML."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from installed_beside import install_beside

EXAMPLE = Path(__file__).parents[2] / "examples" / "draftwood-example-plugin"
PACKAGE = EXAMPLE / "draftwood_example_plugin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Run Python with the example installed in a folder of its own."""
    site = tmp_path_factory.mktemp("site")
    return install_beside(site, site, str(EXAMPLE))


def test_the_examples_own_tests_pass(installed):
    # Its own three, and those of the suite that it inherits.
    assert re.search(
        r"^1\d passed",
        installed("-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLE)),
        re.M,
    )


def test_the_examples_pipeline_passes_check_and_its_plugin_is_listed(installed):
    command = ["-m", "draftwood", "check", str(EXAMPLE / "pipeline.yaml")]
    out = installed(*command, "--set", "target.model=some/model")
    assert "bigram  depth=6" in out
    assert "draftwood-example-plugin  0.1.0" in installed("-m", "draftwood", "plugins", "list")


@pytest.mark.parametrize("name", ["register.py", "drafter.py"])
def test_the_example_stays_short(name):
    code = [line for line in (PACKAGE / name).read_text().splitlines() if line.strip()]
    assert len(code) <= 30
