"""How far each operation may be from the float64 truth, by operation and dtype of its inputs.

Raising a number here needs a reason in the commit that does it.

Sums are bounded relative to the sum of the magnitudes of their terms, never to the result, which may cancel.
"""

from __future__ import annotations

import torch

EPS = 2.0**-24  # half a unit in the last place of float32

# |value - truth| <= TOLERANCES[op, dtype] * EPS * sum |terms|
SUMS: dict[tuple[str, torch.dtype], float] = {
    ("per_example_grad", torch.float32): 8.0,
    ("per_example_grad", torch.bfloat16): 8.0,
    ("per_example_grad", torch.float16): 8.0,
    ("projection", torch.float32): 8.0,
    # A logit: h W^T + bias, scaled; and what its softcap adds, relative to the softcap.
    ("linear_cross_entropy", torch.float32): 8.0,
    ("linear_cross_entropy", torch.bfloat16): 8.0,
    ("linear_cross_entropy", torch.float16): 8.0,
    ("query_dots", torch.float32): 8.0,
    ("query_dots", torch.float16): 8.0,
    ("query_dots", torch.bfloat16): 8.0,
    ("gram", torch.float32): 8.0,
    ("gram", torch.float16): 8.0,
    ("gram", torch.bfloat16): 8.0,
}

# |score_j - truth| <= DATAINF * EPS * (1 / lambda) sum_d [ |q_d| + sum_i |c_i| |g_id| ] |g_jd|, the magnitudes of
# all terms of the score, c_i = <g_i, q> / (n (lambda + ||g_i||^2)) being the true coefficient of row i. The sum
# over rows alone, R_d = sum_i float32(s_i D_i) g_id, is held to the same number of EPS of
# sum_i |s_i| (sum_d |g_id q_d|) |g_id|: its weights inherit the error of the dots.
DATAINF = 4.0

# |loss - truth| <= CROSS_ENTROPY_ULPS units in the last place of max(truth, CROSS_ENTROPY_FLOOR): below the
# floor one exp decides, itself good to one unit, of a difference that was rounded before it.
CROSS_ENTROPY_ULPS: dict[torch.dtype, float] = {torch.float32: 2.0, torch.bfloat16: 2.0, torch.float16: 2.0}
CROSS_ENTROPY_FLOOR = 0.5

# Largest |gradient - truth| of ours over that of torch's own cross entropy in the same dtype.
CROSS_ENTROPY_GRADIENT_RATIO = 1.0

# Per example and block: ||g - oracle|| <= this * ||oracle||, the oracle being autograd on a batch of one.
# float32: rounding through the layers, amplified by large random weights (in float64 it is 1e-14). bfloat16:
# the loop's gradient of bfloat16 parameters is itself rounded to them, half a unit being 2^-9 an element.
STRATEGIES: dict[torch.dtype, float] = {torch.float32: 2e-5, torch.bfloat16: 1e-2}

# Smallest cosine between a row's gradient by unsloth's kernels and by the plain model, both in bfloat16, whose
# rounding alone is 2^-9 a product. A first guess: no GPU has run it yet.
UNSLOTH_COSINE = 0.99
