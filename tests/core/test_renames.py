"""An old name gives an error that says the new one, for every row of every table.

Renamed option values are tested in `tests/core/config/test_pipeline.py`, commands in
`tests/cli/test_commands.py`.
"""

from importlib import import_module

import pytest

from draftwood.core.draws import Draws
from draftwood.core.errors import PluginError
from draftwood.core.proposals import Proposal
from draftwood.core.registry import plugin
from draftwood.core.registry.plugin import DrafterTraits, Kind, Plugin, TreeTraits
from draftwood.core.registry.registry import PluginSource, Registered
from draftwood.core.renames import METHODS, NAMES, PROPOSAL_FORMS, TRAIT_KEYWORDS

KEYWORDS = [(cls, *pair) for cls, pairs in TRAIT_KEYWORDS.items() for pair in pairs.items()]
PUBLIC = ("draftwood", "draftwood.core.interfaces", "draftwood.core.proposals")


@pytest.mark.parametrize(("cls", "old", "new"), KEYWORDS)
def test_renamed_trait_keyword_names_the_new_one(cls, old, new):
    with pytest.raises(TypeError, match=f"{cls}: {old!r} is now called {new!r}"):
        getattr(plugin, cls)(**{old: None})


@pytest.mark.parametrize(("old", "new"), PROPOSAL_FORMS.items())
def test_renamed_proposal_form_names_the_new_one(old, new):
    message = f"{old!r} is now called {new!r}"
    with pytest.raises(ValueError, match=f"form: {message}"):
        DrafterTraits(old, 4)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"forms: {message}"):
        TreeTraits(Draws.CHAIN, frozenset({old}))
    assert DrafterTraits(new, 4).form == new  # type: ignore[arg-type]


def test_unknown_proposal_form_lists_the_choices():
    with pytest.raises(ValueError, match="'tree'; choices: lookup, factorized, mixture, markov"):
        DrafterTraits("tree", 4)  # type: ignore[arg-type]


@pytest.mark.parametrize("module", PUBLIC)
@pytest.mark.parametrize(("old", "new"), NAMES.items())
def test_renamed_name_of_a_public_module_names_the_new_one(module, old, new):
    with pytest.raises(AttributeError, match=f"has no attribute {old!r}; it is now called {new!r}"):
        getattr(import_module(module), old)


@pytest.mark.parametrize("module", PUBLIC)
def test_unknown_name_of_a_public_module_is_a_plain_attribute_error(module):
    with pytest.raises(AttributeError, match=r"has no attribute 'nonsense'$"):
        getattr(import_module(module), "nonsense")  # noqa: B009


@pytest.mark.parametrize(("old", "new"), METHODS.items())
def test_plugin_with_a_renamed_method_is_refused_when_it_is_built(old, new, monkeypatch):
    base = type("Base", (), {old: lambda self: None})
    made = type("Made", (base,), {"__init__": lambda self, options: None})
    monkeypatch.setattr(plugin, "Made", made, raising=False)
    record = Plugin("old", "", object, f"{plugin.__name__}:Made", lambda options: None)  # type: ignore[arg-type,return-value]
    entry = Registered(Kind.CONTROLLER, record, PluginSource("old-spec", "0.1", "old"))
    message = f"controller 'old' of 'old-spec 0.1' .*Base.{old} is now called {new!r}"
    with pytest.raises(PluginError, match=message):
        entry.build(None)


@pytest.mark.parametrize(("old", "new"), METHODS.items())
def test_proposal_with_a_renamed_method_is_refused_when_it_is_defined(old, new):
    with pytest.raises(PluginError, match=f"Old.{old} is now called {new!r}"):
        type("Old", (Proposal,), {old: lambda self: None})
