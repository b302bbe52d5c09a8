"""What DBlast's mixture of branches gains (arXiv 2608.05448). See README.md.

`replay` computes the acceptance of many trees in one decode, `methods` are the compared methods,
`report`, `tables` and `figures` show them, and `tuning` chooses the prior temperature. `ablate` and
`tune_zt` are the commands.
"""
