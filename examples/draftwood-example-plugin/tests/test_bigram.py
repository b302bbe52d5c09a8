"""The plugin is found through its entry point, drafts, and leaves the text as it was."""

from draftwood_example_plugin.drafter import Bigram
from draftwood_example_plugin.register import BigramOptions

import draftwood
from draftwood.core.options import Sampling
from draftwood.core.registry.loader import load_plugins
from draftwood.core.registry.plugin import Kind
from draftwood.testing import OracleTarget

PROMPT = [0, 1, 2, 3, 4, 0]
PIPELINE = {
    "drafter": {"use": "bigram", "depth": 3},
    "tree": {"use": "chain"},
    "controller": {"use": "fixed", "nodes": 3},
    "verifier": {"use": "match"},
}


def target():
    """Counts to five and starts again, except that every third 2 is followed by a 4."""

    def probs(prefix):
        following = (prefix[-1] + 1) % 5
        if prefix[-1] == 2 and prefix.count(2) % 3 == 0:
            following = 4
        return [1.0 if token == following else 0.001 for token in range(5)]

    return OracleTarget(5, probs)


def test_it_is_installed_and_says_where_it_came_from():
    entry = load_plugins().get(Kind.DRAFTER, "bigram")
    assert str(entry.source) == "'draftwood-example-plugin 0.1.0'"


def test_text_is_plain_decodings_and_some_drafts_are_accepted_and_some_rejected():
    plain = draftwood.load_pipeline({"verifier": {"use": "match"}}, target=target())
    drafted = draftwood.load_pipeline(PIPELINE, target=target())
    for options in ({}, {"temperature": 1.0, "seed": 7}):
        result = drafted.generate(PROMPT, max_new_tokens=60, **options)
        assert result.tokens == plain.generate(PROMPT, max_new_tokens=60, **options).tokens
        assert result.stats.accepted > 0
        assert result.stats.rejected > 0


def test_a_fork_learns_on_its_own():
    session = Bigram(BigramOptions()).open(target(), Sampling())
    session.commit([0, 1], None)
    fork = session.fork()
    fork.commit([2], None)
    assert (1 in session.after, fork.after[1]) == (False, 2)
