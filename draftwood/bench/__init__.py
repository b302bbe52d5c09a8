"""Benchmarks of pipelines beside each other, and their reports.

`prompts` reads what is decoded, `contestants` loads what decodes, and `measuring` runs contestants
interleaved and writes each `records.RequestRecord` to a `journal`. `statistics` and `summary` turn
records into numbers with intervals. `reports` writes these as JSON, CSV, Markdown, Spec-Bench's
lines, and one HTML page with the figures of `figures`.
"""
