"""The small target, pipelines and prompts of the benchmark tests."""

from bench.conftest import pipeline, prompt_file, small_target

__all__ = ["pipeline", "prompt_file", "small_target"]
