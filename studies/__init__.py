"""Studies behind figures of the documentation. They run from the root."""
