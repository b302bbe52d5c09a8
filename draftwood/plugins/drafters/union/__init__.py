"""Several drafters' proposals in one tree."""
