"""Elementary functions of float32 that keep their last digits on every target, and the steps of online softmax.

Triton's own `exp` is exp2 of a rounded product: its relative error grows with the argument. And `log1p` and
`tanh` exist only in vendors' libraries, which Triton's interpreter cannot call.
"""

import triton
import triton.language as tl


@triton.jit
def exp(x):
    """Return e^x; 0 below -110, where float32 has nothing left.

    With p = fl(x log2(e)) and r = x log2(e) - p, e^x = 2^p (1 + r ln 2) up to r^2 < 2^-40.
    """
    # Also takes minus infinity out, whose r would be NaN. NaN itself stays: it compares as false.
    x = tl.where(x < -110.0, -110.0, x)
    # log2(e) as a float32 and what that leaves.
    product = x * 1.44269502162933349609375
    rest = tl.fma(x, 1.44269502162933349609375, -product) + x * 1.92596299e-8
    power = tl.exp2(product)
    return tl.fma(power, rest * 0.693147182464599609375, power)


@triton.jit
def log1p(x):
    """Return log(1 + x) for x >= 0: what 1 + x loses of x is put back by x / ((1 + x) - 1)."""
    above = 1.0 + x
    kept = above - 1.0
    logarithm = tl.log(above)
    # Where nothing is kept, and at infinity, there is nothing to put back.
    exact = (kept > 0.0) & (kept < float("inf"))
    return tl.where(exact, logarithm * (x / tl.where(exact, kept, 1.0)), tl.where(kept == 0.0, x, logarithm))


@triton.jit
def tanh(x):
    """Return tanh(x): near zero an odd polynomial (weighted minimax fit, 5e-9), elsewhere 1 - 2 / (e^2|x| + 1)."""
    square = x * x
    series = tl.fma(square, -0.005704986397, 0.020639086142)
    series = tl.fma(square, series, -0.053739715368)
    series = tl.fma(square, series, 0.133314415812)
    series = tl.fma(square, series, -0.333332806826)
    near = tl.fma(x * square, series, x)
    size = tl.abs(x)
    # Beyond 10 it is 1 in float32, and e^2|x| stays finite.
    far = 1.0 - 2.0 / (exp(2.0 * tl.where(size > 10.0, 10.0, size)) + 1.0)
    return tl.where(size < 0.625, near, tl.where(x < 0.0, -far, far))


@triton.jit
def peak_and_rest(x, axis: tl.constexpr):
    """Return the maximum m of `x` along `axis` and the sum of e^(x - m) over all but one that attains it."""
    peak = tl.max(x, axis=axis)
    least = tl.expand_dims(peak, axis) if len(x.shape) > 1 else peak
    at_peak = x == least
    rest = tl.sum(tl.where(at_peak, 0.0, exp(x - least)), axis=axis)
    ties = tl.sum(at_peak.to(tl.int32), axis=axis)
    return peak, rest + (ties - 1).to(tl.float32)


@triton.jit
def merge(peak, rest, other_peak, other_rest):
    """Return `peak_and_rest` of the union of two sets; (-inf, -1) stands for the empty set."""
    ours = peak >= other_peak
    # Equal peaks are at no distance, infinite ones too. A NaN peak was not at its own place: its rest is NaN.
    gap = tl.where(peak == other_peak, 0.0, tl.where(ours, other_peak - peak, peak - other_peak))
    moved = (1.0 + tl.where(ours, other_rest, rest)) * exp(gap)
    return tl.where(ours, peak, other_peak), tl.where(ours, rest, other_rest) + moved


@triton.jit
def narrow(x, dtype: tl.constexpr, INTERPRETED: tl.constexpr):
    """Return float32 `x` in `dtype`, rounded to nearest, ties to even; Triton's interpreter truncates to bfloat16."""
    if INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.int32, bitcast=True)
        rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) & -0x10000
        x = tl.where(x == x, rounded.to(tl.float32, bitcast=True), x)
    return x.to(dtype)
