"""The Triton kernels as one `Kernels` object."""

import triton

from draftwood.core.kernels.triton.attention.ancestors import ancestor_words
from draftwood.core.kernels.triton.attention.launch import attend
from draftwood.core.kernels.triton.compaction import compact, compact_kernel

COMPILED = isinstance(compact_kernel, triton.JITFunction)
"""Whether kernels run on a GPU only: TRITON_INTERPRET was not set when they were imported."""


class TritonKernels:
    """Attention over trees and compaction of the cache in Triton; see `Kernels`."""

    attend = staticmethod(attend)
    ancestors = staticmethod(ancestor_words)
    compact = staticmethod(compact)
