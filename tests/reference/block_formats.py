"""The storage types of K, V and weights, in NumPy: encoders and decoders by the rules of
quant.h, written from its text. Roundings are part of the definition, so arithmetic is
float32 where the rule says so; nothing of pykv is used.
"""

# NumPy's stubs type many operators as Any.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Codes = npt.NDArray[np.int32]

MAX_F16 = np.float32(65504)
IQ4_NL = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
BLOCK_BYTES = {"q8_0": 34, "q4_0": 18, "q4_1": 20, "q5_0": 22, "q5_1": 24, "iq4_nl": 18}
KV_TYPES = ("f32", "f16", "bf16", *BLOCK_BYTES)


def encode(kind: str, values: F32) -> Bytes:
    """float32 values -> bytes in GGUF's row layout."""
    flat = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
    with np.errstate(all="ignore"):
        if kind == "f32":
            return flat.view(np.uint8).copy()
        if kind == "f16":
            return flat.astype(np.float16).view(np.uint8)
        if kind == "bf16":
            return _encode_bf16(flat).view(np.uint8)
        return _ENCODERS[kind](flat.reshape(-1, 32)).reshape(-1)


def decode(kind: str, data: Bytes) -> F32:
    """Bytes in GGUF's row layout -> the float32 values they stand for."""
    raw = np.ascontiguousarray(data, dtype=np.uint8).reshape(-1)
    if kind == "f32":
        return raw.view(np.float32).copy()
    if kind == "f16":
        return raw.view(np.float16).astype(np.float32)
    if kind == "bf16":
        return (raw.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    blocks = raw.reshape(-1, BLOCK_BYTES[kind])
    d = _f16(blocks[:, :2])
    if kind == "q8_0":
        return (d * blocks[:, 2:].view(np.int8).astype(np.float32)).reshape(-1)
    codes = _codes(kind, blocks)
    if kind == "iq4_nl":
        return (d * IQ4_NL[codes]).reshape(-1)
    if kind.endswith("_1"):
        return (d * codes.astype(np.float32) + _f16(blocks[:, 2:4])).reshape(-1)
    zero = 8 if kind == "q4_0" else 16
    return (d * (codes - zero).astype(np.float32)).reshape(-1)


def _f16(two_bytes: Bytes) -> F32:
    return two_bytes.copy().view(np.float16).astype(np.float32)


def _codes(kind: str, blocks: Bytes) -> Codes:
    nibbles = blocks[:, -16:].astype(np.int32)
    codes = np.concatenate([nibbles & 15, nibbles >> 4], axis=1)
    if kind.startswith("q5"):
        fifth = np.unpackbits(blocks[:, -20:-16], axis=1, bitorder="little")
        codes += fifth.astype(np.int32) << 4
    return codes


def _pack(codes: Codes, *heads: F32) -> Bytes:
    """f16 heads, the fifth bits if there are any (5-bit types), nibbles."""
    parts = [head.astype(np.float16).view(np.uint8) for head in heads]
    nibbles = codes & 15
    return np.concatenate(
        [*parts, (nibbles[:, :16] | nibbles[:, 16:] << 4).astype(np.uint8)], axis=1
    )


def _pack5(codes: Codes, *heads: F32) -> Bytes:
    four = _pack(codes, *heads)
    fifth = np.packbits((codes >> 4).astype(np.uint8), axis=1, bitorder="little")
    at = 2 * len(heads)
    return np.concatenate([four[:, :at], fifth, four[:, at:]], axis=1)


def _encode_bf16(flat: F32) -> npt.NDArray[np.uint16]:
    bits = flat.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(flat), quiet, rounded).astype(np.uint16)


def _clean(blocks: F32, limit: np.float32) -> F32:
    zeroed = np.where(np.isnan(blocks), np.float32(0), blocks) + np.float32(0)  # no -0
    return np.clip(zeroed, -limit, limit)


def _peak(x: F32) -> F32:
    return np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)


def _reciprocal(d: F32) -> F32:
    inverse = np.float32(1) / d
    return np.where(np.isfinite(inverse), inverse, np.float32(0)).astype(np.float32)


def _encode_q8_0(blocks: F32) -> Bytes:
    x = _clean(blocks, np.float32(127) * MAX_F16)
    d = np.abs(_peak(x)) / np.float32(127)
    q = np.rint(x * _reciprocal(d)).astype(np.int8)
    return np.concatenate([d.astype(np.float16).view(np.uint8), q.view(np.uint8)], axis=1)


def _symmetric(zero: int, pack: Callable[..., Bytes]) -> Callable[[F32], Bytes]:
    def encoder(blocks: F32) -> Bytes:
        x = _clean(blocks, np.float32(zero) * MAX_F16)
        d = _peak(x) / np.float32(-zero)
        code = x * _reciprocal(d) + np.float32(zero + 0.5)
        return pack(np.trunc(np.minimum(code, 2 * zero - 1)).astype(np.int32), d)

    return encoder


def _offset(most: int, pack: Callable[..., Bytes]) -> Callable[[F32], Bytes]:
    def encoder(blocks: F32) -> Bytes:
        x = _clean(blocks, MAX_F16)
        least = np.take_along_axis(x, x.argmin(axis=1)[:, None], axis=1)
        d = (x.max(axis=1, keepdims=True) - least) / np.float32(most)
        code = (x - least) * _reciprocal(d) + np.float32(0.5)
        return pack(np.trunc(np.minimum(code, most)).astype(np.int32), d, least)

    return encoder


def _encode_iq4_nl(blocks: F32) -> Bytes:
    x = _clean(blocks, np.float32(127) * MAX_F16)
    peak = _peak(x)
    tiny = np.abs(peak) < np.float32(1e-15)
    inverse = np.where(tiny, np.float32(0), np.float32(1) / (peak / np.float32(-127)))
    halfway = (IQ4_NL[1:] + IQ4_NL[:-1]) / 2
    codes = np.searchsorted(halfway, inverse * x, side="right").astype(np.int32)
    q = IQ4_NL[codes]
    weighted = x * x * q
    product = np.zeros((len(x), 1), np.float32)
    square = np.zeros((len(x), 1), np.float32)
    for i in range(32):  # in the order of the elements
        product += (weighted * x)[:, i : i + 1]
        square += (weighted * q)[:, i : i + 1]
    d = np.clip(product / square, -MAX_F16, MAX_F16)
    return _pack(codes, np.where(tiny, np.float32(0), d).astype(np.float32))


_ENCODERS: dict[str, Callable[[F32], Bytes]] = {
    "q8_0": _encode_q8_0,
    "q4_0": _symmetric(8, _pack),
    "q4_1": _offset(15, _pack),
    "q5_0": _symmetric(16, _pack5),
    "q5_1": _offset(31, _pack5),
    "iq4_nl": _encode_iq4_nl,
}
