"""Budget controllers: each decides how many draft nodes are verified."""
