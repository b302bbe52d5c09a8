"""Verifiers: each commits tokens so that the output distribution is the target's."""
