"""The names that have changed, and their new names: the one table behind every such error.

Readers look a name up here only after they have found that it is unknown, so a new option or
class may take an old name again.
"""

from collections.abc import Mapping

OPTION_VALUES: Mapping[str, Mapping[str, str]] = {
    "tree.form": {"heap": "search", "levelled": "by_level"},
}
"""Values of YAML options, by the option's dotted key."""

TRAIT_KEYWORDS: Mapping[str, Mapping[str, str]] = {
    "DrafterTraits": {"law": "form"},
    "TreeTraits": {"laws": "forms"},
    "VerifierTraits": {"elsewhere": "unsupported_device_hint", "picks": "resolve_for_device"},
}
"""Keyword arguments, by the class of traits."""

PROPOSAL_FORMS: Mapping[str, str] = {"points": "lookup"}
"""Forms of proposals in a plugin's traits."""

METHODS: Mapping[str, str] = {"go_on": "should_expand", "law": "probs", "laws": "probs"}
"""Methods that a plugin's classes define or override."""

NAMES: Mapping[str, str] = {
    "GoOn": "ShouldExpand",
    "Guesses": "LookupProposal",
    "Law": "ProposalForm",
    "NodeLaws": "NodeDistributions",
    "Points": "LookupPaths",
    "heap": "best_first_search",
    "sampling_law": "sampling_probs",
}
"""Classes and functions of the public modules."""

COMMANDS: Mapping[str, str] = {
    "ablate": "python -m studies.budget",
    "tune-zt": "python -m studies.dblast",
}
"""Commands that left the package for its source repository."""


def missing_attribute(module: str, name: str) -> AttributeError:
    """The error of a module's `__getattr__`; it says the new name of what was renamed."""
    hint = f"; it is now called {NAMES[name]!r}" if name in NAMES else ""
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}", name=name)


def renamed_method(cls: type) -> str | None:
    """What is wrong with a class that defines a method under its old name; None if none does."""
    for base in cls.__mro__:
        for old, new in METHODS.items():
            if old in vars(base):
                return f"{base.__qualname__}.{old} is now called {new!r}: rename the method"
    return None
