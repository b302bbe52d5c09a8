"""Studies of the papers behind draftwood; run from the repository root, outside the wheel."""
