"""Budget controllers: each decides how much of a tree is worth its time on this machine."""
