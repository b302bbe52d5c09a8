"""The bundled plugins, one package per kind; each registers through its `register` module."""
