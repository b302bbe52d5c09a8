"""The site builds without warnings, and its pages open from a folder, without a network."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_pages_load_no_script_style_or_image_from_a_network(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    loaded = re.compile(r'<(?:script|link|img|iframe)\b[^>]*(?:src|href)="(https?://[^"]+)"')
    found = {page: loaded.findall(page.read_text("utf-8")) for page in pages}
    assert {page: links for page, links in found.items() if links} == {}


def test_links_between_pages_lead_to_files(site):
    """`use_directory_urls` is off: a link to a folder would not open without a server."""
    for page in site.rglob("*.html"):
        if page.name == "404.html":  # only a server shows it, so its links begin at the root
            continue
        for link in re.findall(r'<a [^>]*href="([^":#?]+)', page.read_text("utf-8")):
            assert (page.parent / link).is_file(), (page.name, link)


def test_the_search_index_has_every_part_of_the_site(site):
    index = (site / "search" / "search_index.js").read_text("utf-8")
    for page in ("glossary.html", "plugins/verifier.html", "evidence/benchmarks.html"):
        assert page in index
