"""Published formats of drafter checkpoints: describing them, and converting between layouts."""
