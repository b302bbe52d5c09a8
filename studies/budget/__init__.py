"""Budgets compared offline, in virtual time: what a round gives is recorded once, what it costs is
read from a table of measured times, and any policy is walked over the recorded text.

Under a verifier that keeps plain decoding's tokens, the text is one for all budgets. So it is
decoded once, plainly, and at every token of it the round that could start there is recorded: its
tree, as large as any budget wants, and the path that the text takes through it. A budget of n
commits the nodes of that path among the first n, and one more token; then the walk stands at
another token, whose round is recorded too. Nothing is estimated but the times, and those are the
same for everyone, so a difference of a percent is a difference and not a noisy timer's.

`recording` decodes and grows, `times` measures, `walking` walks policies, and `ablation` makes the
tables.
"""
