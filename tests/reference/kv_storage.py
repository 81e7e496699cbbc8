"""What a cache stores of K and V and gives back, in NumPy: bit for bit what pykv does, from
the rules of quant.h and block_layout.h. Nothing of pykv is used.
"""

# NumPy's stubs type many operators as Any.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Literal

import numpy as np

from tests.reference.block_formats import BLOCK_BYTES, F32, decode, encode


def transform_size(side: Literal["k", "v"], kind: str, dim: int) -> int:
    """How many elements of a head are transformed together; 0 for none."""
    if kind not in BLOCK_BYTES or dim % 64:
        return 0
    return 64 if side == "v" else 64 * ((dim // 64) & -(dim // 64))


def hadamard(x: F32, size: int) -> F32:
    """The orthonormal Walsh-Hadamard transform of blocks of `size` elements of the last axis,
    in Sylvester's order: float32 butterflies at distances 1, 2, 4, … size / 2."""
    values = x.astype(np.float32).reshape(-1, size)
    distance = 1
    while distance < size:
        pairs = values.reshape(len(values), -1, 2, distance)
        a, b = pairs[:, :, 0], pairs[:, :, 1]
        values = np.stack([a + b, a - b], axis=2).reshape(len(values), size)
        distance *= 2
    scale = np.float32(1) / np.sqrt(np.float32(size))
    return (values * scale).reshape(x.shape)


def encoded(kind: str, x: F32, transform: int = 0) -> np.ndarray:
    """Bytes of rows x [..., dim] as they are stored."""
    return encode(kind, hadamard(x, transform) if transform else x)


def stored(kind: str, x: F32, transform: int = 0) -> F32:
    """x [..., dim] after a stay in the cache."""
    values = decode(kind, encoded(kind, x, transform)).reshape(x.shape)
    return hadamard(values, transform) if transform else values


def rounded_query(x: F32, transform: int) -> F32:
    """Queries [n, k_dim] as fast scores meet K of q8_0 and q4_0: transformed as K, then integers
    up to 127 times a float32 for each block of 32."""
    stored = hadamard(x, transform) if transform else x
    blocks = stored.reshape(-1, 32)
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    factors = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest != 0)
    rounded = (np.rint(blocks * factors) * (largest / np.float32(127))).reshape(x.shape)
    return hadamard(rounded, transform) if transform else rounded
