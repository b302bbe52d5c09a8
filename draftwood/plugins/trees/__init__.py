"""Tree policies: each turns a proposal into a draft tree."""
