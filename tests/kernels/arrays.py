"""Small helpers of the kernel tests: random arrays, stored matrices, bit comparison."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tests.reference.block_formats import encode
from tests.reference.random_blocks import BLOCK_ELEMENTS, BLOCKS, peer_decode, random_blocks

F32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


def normal(rng: np.random.Generator, *shape: int) -> F32:
    return rng.normal(size=shape).astype(np.float32)


def stored_matrix(rng: np.random.Generator, kind: str, rows: int, cols: int) -> tuple[Bytes, F32]:
    """Random bytes of a weight in GGUF's row layout, and the values they stand for."""
    if kind in BLOCKS:
        data = random_blocks(rng, kind, rows * cols // BLOCK_ELEMENTS[kind])
    else:
        data = encode(kind, normal(rng, rows * cols))
    return data, peer_decode(kind, data).reshape(rows, cols)


def assert_same_bits(actual: Any, expected: Any) -> None:
    """Equal as bit patterns: -0 is not 0, and a NaN equals itself."""
    a, b = np.ascontiguousarray(actual), np.ascontiguousarray(expected)
    assert a.shape == b.shape and a.dtype == b.dtype == np.float32
    np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))
