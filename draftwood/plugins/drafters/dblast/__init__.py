"""`dblast`: a DFlash drafter with K branches and a prior over them (arXiv 2608.05448).
Imports no torch."""
