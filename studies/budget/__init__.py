"""Budget policies compared offline, in virtual time. See README.md.

`recording` decodes texts and records the round that could start at each token, `shapes` grows
trees to compare with, `times` measures stages, `walking` walks policies over the record, `ablation`
compares them and `command` is the command line.
"""
