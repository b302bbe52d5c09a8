"""Kernels for the attention over trees and for the compaction of the cache."""
