"""Training of EAGLE-3 drafters (arXiv 2503.01840): unrolled over several of their own steps."""
