"""Which block sizes a launch uses. Each was chosen so that no chip it is meant for lacks shared
memory or, in half precision, spills registers; the tests compile all of them."""

from attrs import frozen

LOAD = 128
"""What a key costs that a program loads, in rows that are multiplied with it. An estimate: 4 bytes
a channel of key and value from a second-level cache of 5 TB/s, against 4 operations a row and
channel at 800 TFLOP/s, are 160 rows; slower products make it fewer."""


@frozen
class Tile:
    """rows: of queries in a program, heads that share a K/V head counted. keys: in a block of
    context. warps, stages: of a program, and of its pipeline of loads."""

    rows: int
    keys: int
    warps: int
    stages: int


def block_dim(dim: int) -> int:
    """Width of a block that holds `dim` channels: a power of two, 16 at least."""
    return max(16, 1 << (dim - 1).bit_length())


def tiles(backend: str, dim: int, itemsize: int) -> tuple[Tile, ...]:
    """Those for one kind of chip, by number of rows. backend: "cuda" or "hip"."""
    return _TILES[backend, itemsize > 2][max(64, block_dim(dim))]


def choose(backend: str, dim: int, itemsize: int, rows: int) -> Tile:
    """The tile with which `rows` cost least: padded rows are multiplied, and each tile loads all
    the keys."""

    def cost(tile: Tile) -> int:
        return -(-rows // tile.rows) * (tile.rows + LOAD)

    return min(tiles(backend, dim, itemsize), key=cost)


# By block width: half precision, and float32, whose products run on cores that pipelining starves
# of registers on NVIDIA.
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
