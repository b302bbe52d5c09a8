"""Properties of whole pipelines, each with controls that must fail it."""
