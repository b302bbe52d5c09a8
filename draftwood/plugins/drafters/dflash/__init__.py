"""`dflash`: block-diffusion drafters (arXiv 2602.06036), both generations. Imports no torch."""
