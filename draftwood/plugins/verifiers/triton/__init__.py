"""The `triton` verifier: attention over trees, judging and committing as kernels on the device."""
