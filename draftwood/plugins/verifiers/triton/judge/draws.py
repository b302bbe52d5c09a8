"""The draws of `core.randomness`, made on the device from the same keys.

A draw races p(x) / E(x) over tokens, E(x) being exponential noise of token x, and takes the largest
(the Gumbel-max trick). The noise is integer arithmetic up to its logarithm, which wraps alike
everywhere, so that rounding can only swap tokens that nearly tie.
"""

import triton
import triton.language as tl


@triton.jit
def uniform_bits(key: tl.tensor, token: tl.tensor) -> tl.tensor:
    """53 random bits for each token: SplitMix64 (Steele et al. 2014) counting from `key`.

    key: uint64 scalar. token: int32 or int64 block.
    """
    z = (token + 1).to(tl.uint64) * 0x9E3779B97F4A7C15 + key
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return (z ^ (z >> 31)) >> 11


@triton.jit
def log_noise(key: tl.tensor, token: tl.tensor, DOUBLE: tl.constexpr) -> tl.tensor:
    """log E(x) for each token, E = -log U and U = (bits + 1/2) / 2^53.

    In float32 a U near 1 would round to it, and that is where draws are won: there E is the series
    of -log(1 - v) in v = 1 - U, which is exact as an integer. Error: 2e-6, at most.
    """
    bits = uniform_bits(key, token)
    if DOUBLE:
        return tl.log(-tl.log((bits.to(tl.float64) + 0.5) * 1.1102230246251565e-16))
    v = (0x1FFFFFFFFFFFFF - bits).to(tl.float32) + 0.5
    v = v * 1.1102230246251565e-16
    u = (bits.to(tl.float32) + 0.5) * 1.1102230246251565e-16
    series = 1.0 / 7.0
    series = series * v + 1.0 / 6.0
    series = series * v + 1.0 / 5.0
    series = series * v + 1.0 / 4.0
    series = series * v + 1.0 / 3.0
    series = series * v + 1.0 / 2.0
    series = series * v + 1.0
    return tl.log(tl.where(v < 0.125, v * series, -tl.log(tl.minimum(u, 0.9))))
