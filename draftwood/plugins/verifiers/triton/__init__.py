"""The `triton` verifier: judging in kernels on the device."""
