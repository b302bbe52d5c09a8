"""Published formats of drafter checkpoints: what one is, and from one layout to another."""
