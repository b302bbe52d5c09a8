"""Kernels run in the interpreter here."""

import triton_interpreter  # noqa: F401
