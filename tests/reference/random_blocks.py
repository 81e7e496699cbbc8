"""Random blocks of every storage type of weights, and what the `gguf` package reads in them."""

from __future__ import annotations

import gguf
import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

# Bytes of a block, and where its f16 scales lie.
BLOCKS: dict[str, tuple[int, tuple[int, ...]]] = {
    "q8_0": (34, (0,)), "q4_0": (18, (0,)), "q4_1": (20, (0, 2)), "q5_0": (22, (0,)),
    "q5_1": (24, (0, 2)), "iq4_nl": (18, (0,)), "q2_k": (84, (80, 82)), "q3_k": (110, (108,)),
    "q4_k": (144, (0, 2)), "q5_k": (176, (0, 2)), "q6_k": (210, (208,)),
}  # fmt: skip
BLOCK_ELEMENTS = {kind: 256 if kind.endswith("_k") else 32 for kind in BLOCKS}
WEIGHT_TYPES = ("f32", "f16", "bf16", *BLOCKS)


def random_blocks(
    rng: np.random.Generator, kind: str, count: int, scales: npt.NDArray[np.float16] | None = None
) -> Bytes:
    """Blocks of a quantized type with random bytes; their f16 scales are drawn from `scales`,
    by default normal ones."""
    size, places = BLOCKS[kind]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for place in places:
        drawn = rng.normal(0, 0.1, count) if scales is None else rng.choice(scales, count)
        blocks[:, place : place + 2] = drawn.astype(np.float16).reshape(-1, 1).view(np.uint8)
    return blocks.reshape(-1)


def peer_decode(kind: str, data: Bytes) -> F32:
    """What the `gguf` package reads."""
    raw = data.view({"f32": np.float32, "f16": np.float16}.get(kind, np.uint8))
    values = gguf.dequantize(raw, gguf.GGMLQuantizationType[kind.upper()])
    return values.astype(np.float32).reshape(-1)
