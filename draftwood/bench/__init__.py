"""Pipelines measured beside each other, and the reports about it.

`prompts` is what they decode, `contestants` who decodes, `measuring` runs them interleaved and
writes each `records.Record` to a `journal`, `statistics` and `summary` turn records into numbers
with intervals, and `reports` writes them: JSON, CSV, Markdown, Spec-Bench's lines, and one HTML
page with the drawings of `figures`.
"""
