"""What ways of drawing from a latent mixture accept (DBlast, arXiv 2608.05448)."""
