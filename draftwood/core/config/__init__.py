"""Pipelines in YAML: read, validated, checked as a whole."""
