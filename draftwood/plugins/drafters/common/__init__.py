"""Shared by drafters with checkpoints: config and weights, layers, K/V cache, base network."""
