"""An example of a draftwood plugin."""
