"""Verifiers: each commits tokens so that the output law is the target's."""
