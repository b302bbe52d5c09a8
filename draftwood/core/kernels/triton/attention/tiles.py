"""Block sizes of attention. All fit into the shared memory of their chips, and those for half
precision spill no registers; the tests compile each of them."""

from attrs import frozen

LOAD = 128
"""Cost of loading a key, in rows that are multiplied with it. An estimate: 4 bytes per channel of
key and value from a level-2 cache at 5 TB/s cost as much as 160 rows with 4 operations per channel
at 800 TFLOP/s, and fewer rows where products are slower."""


@frozen
class Tile:
    """Sizes of a program.

    Attributes:
        rows: Rows of queries, times the heads that share a K/V head.
        keys: Keys in a block of context.
        warps: Warps of the program.
        stages: Stages of its pipeline of loads.
    """

    rows: int
    keys: int
    warps: int
    stages: int


def block_dim(dim: int) -> int:
    """Width of a block for `dim` channels: a power of two, at least 16."""
    return max(16, 1 << (dim - 1).bit_length())


def tiles(backend: str, dim: int, itemsize: int) -> tuple[Tile, ...]:
    """The tiles for a backend, "cuda" or "hip", by number of rows."""
    return _TILES[backend, itemsize > 2][max(64, block_dim(dim))]


def choose(backend: str, dim: int, itemsize: int, rows: int) -> Tile:
    """The tile with the lowest cost for `rows`: padding is multiplied, too, and each block of rows
    loads all keys."""

    def cost(tile: Tile) -> int:
        return -(-rows // tile.rows) * (tile.rows + LOAD)

    return min(tiles(backend, dim, itemsize), key=cost)


# By block width. In float32 on NVIDIA, a pipeline of loads leaves too few registers.
_HALF = {
    64: (Tile(16, 128, 4, 3), Tile(32, 128, 4, 3), Tile(64, 64, 4, 3), Tile(128, 64, 8, 2)),
    128: (Tile(16, 64, 4, 3), Tile(32, 64, 4, 3), Tile(64, 64, 4, 2), Tile(128, 64, 8, 3)),
    256: (Tile(16, 32, 4, 3), Tile(32, 32, 4, 3), Tile(64, 32, 8, 3)),
}
_SINGLE = {
    64: (Tile(16, 32, 4, 1), Tile(32, 32, 8, 1)),
    128: (Tile(16, 32, 8, 1),),
    256: (Tile(16, 32, 8, 1),),
}
_AMD_HALF = {
    64: (Tile(16, 64, 4, 2), Tile(32, 64, 4, 2), Tile(64, 64, 4, 2)),
    128: (Tile(16, 64, 4, 2), Tile(32, 64, 4, 2), Tile(64, 64, 8, 2)),
    256: (Tile(16, 32, 4, 2), Tile(32, 32, 4, 2)),
}
_AMD_SINGLE = {
    64: (Tile(16, 32, 4, 2), Tile(32, 32, 4, 2)),
    128: (Tile(16, 32, 4, 2), Tile(32, 32, 4, 2)),
    256: (Tile(16, 32, 4, 1),),
}
_TILES = {
    ("cuda", False): _HALF,
    ("cuda", True): _SINGLE,
    ("hip", False): _AMD_HALF,
    ("hip", True): _AMD_SINGLE,
}
