"""The roofline controller (BASTION, arXiv 2605.29727): verify the tree that pays on this machine.

Costs: `roof` and `forward_table` give the time of a target forward, `measuring` times forwards,
`fitting` fits roofs to them, `corrections` and `stage_times` follow the times of rounds, and
`cost_model` adds them up to the time of a round. `probing` makes a cost model for a new pipeline,
`store` keeps it on disk and `calibration` measures it thoroughly.

Gains: `acceptance` estimates how many tokens a tree commits.

Decisions: `cost_based` sets the budget, `levels` decides about one more level of a tree,
`speculation` switches speculation off and on, and `controller` is the plugin.
"""

from draftwood.plugins.controllers.roofline.controller import Roofline

__all__ = ["Roofline"]
