"""The roofline controller (BASTION, arXiv 2605.29727): verify as much tree as pays here and now.

`prices` is what a round costs on this machine, `probing` where prices come from, `store` where
they are kept, `acceptance` what a tree is worth to this text, `switch` whether speculation pays at
all, and `controller` puts the two sides together.
"""

from draftwood.plugins.controllers.roofline.controller import Roofline

__all__ = ["Roofline"]
