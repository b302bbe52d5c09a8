"""Contracts, engine, loader and configuration. Imports no plugin."""
