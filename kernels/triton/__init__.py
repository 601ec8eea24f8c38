"""Gradian's Triton kernels, one file an operation; installed as `gradian.kernels`.

Only `gradian/ops/_dispatch.py` imports this package. Each module keeps to pointers and sizes: what an operation
means, and which inputs it takes, is written beside its reference in `gradian/ops/`.
"""

import triton as triton
