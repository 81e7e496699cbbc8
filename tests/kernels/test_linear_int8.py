"""Linear layers on 8-bit activations: the integers, and the layer against its definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pykv import _core
from tests.kernels.arrays import F32, Bytes, assert_same_bits, normal, stored_matrix
from tests.reference import kernels as reference

TYPES = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")
K_TYPES = ("q4_k", "q5_k", "q6_k")
SHAPES = [(2, 32), (15, 96), (16, 64), (33, 160), (100, 576), (129, 32)]  # outputs, inputs
K_SHAPES = [(2, 256), (33, 512), (100, 768)]
CASES = [(kind, shape) for kind in TYPES for shape in SHAPES]
CASES += [(kind, shape) for kind in K_TYPES for shape in K_SHAPES]
MOST_ROWS = 33


class FastLayer:
    """A weight whose activations are rounded to 8 bits."""

    def __init__(self, backend: Any, kind: str, shape: tuple[int, int], data: Bytes) -> None:
        self.backend, self.kind, self.shape, self.data = backend, kind, shape, data
        self.handle = backend.create_weight(kind, *shape, data, precision="fast")

    @classmethod
    def random(
        cls, backend: Any, rng: np.random.Generator, kind: str, shape: tuple[int, int]
    ) -> FastLayer:
        return cls(backend, kind, shape, stored_matrix(rng, kind, *shape)[0])

    def __call__(self, x: F32) -> F32:
        out: F32 = self.backend.linear(self.handle, self.shape[0], x)
        return out


def bytes_of_q8_0(d: Any, integers: Any) -> Bytes:
    """GGUF blocks from scales [n] and integers [n, 32]."""
    blocks = np.empty((len(integers), 34), np.uint8)
    blocks[:, :2] = np.asarray(d, np.float16).reshape(-1, 1).view(np.uint8)
    blocks[:, 2:] = np.asarray(integers, np.int8).view(np.uint8)
    return blocks.reshape(-1)


def bytes_of_q4_1(d: Any, m: Any, integers: Any) -> Bytes:
    blocks = np.empty((len(integers), 20), np.uint8)
    scales = np.stack([np.asarray(d, np.float16), np.asarray(m, np.float16)], axis=1)
    blocks[:, :4] = scales.view(np.uint8)
    nibbles = np.asarray(integers, np.uint8)
    blocks[:, 4:] = nibbles[:, :16] | nibbles[:, 16:] << 4
    return blocks.reshape(-1)


@pytest.mark.parametrize(("kind", "shape"), CASES)
def test_every_row_count_equals_the_definition(
    backend: Any, rng: np.random.Generator, kind: str, shape: tuple[int, int]
) -> None:
    layer = FastLayer.random(backend, rng, kind, shape)
    x = normal(rng, MOST_ROWS, shape[1]) * np.exp2(rng.integers(-9, 9, (MOST_ROWS, 1)))
    x = x.astype(np.float32)
    expected, scale = reference.linear_int8(kind, layer.data, shape, x)
    together = layer(x)
    # Each block adds two terms (of halves, or a minimum), and each term is two or three roundings.
    steps = 2 * shape[1] // 32 + 3
    assert (np.abs(together - expected) <= steps * 2.0**-24 * scale * (1 + 1e-6)).all()
    for rows in range(1, MOST_ROWS):
        assert_same_bits(layer(x[:rows]), together[:rows])
        assert_same_bits(layer(x[rows:]), together[rows:])


def test_activations_are_rounded_as_defined(backend: Any, rng: np.random.Generator) -> None:
    """Rows of the unit matrix give back scale * q of every element, unrounded."""
    unit = FastLayer(backend, "q8_0", (64, 64), bytes_of_q8_0(np.ones(128), unit_blocks(64)))
    x = normal(rng, 40, 64)
    x[1] = 0
    x[2] = np.float32(1e-44)  # no finite reciprocal: stands for zeros
    x[3, 0] = np.float32(3e38)
    x[4] = np.arange(64) - 31.5  # ties
    x[5] = np.float32(-0.0)
    scale, q = reference.quantize_activations(x)
    expected = np.repeat(scale, 32, axis=1) * q.reshape(x.shape).astype(np.float32)
    np.testing.assert_array_equal(unit(x), expected)


def unit_blocks(n: int) -> Any:
    return np.eye(n, dtype=np.int8).reshape(-1, 32)


def test_what_is_not_finite_stays_visible_in_its_row(
    backend: Any, rng: np.random.Generator
) -> None:
    for kind in (*TYPES, *K_TYPES):
        layer = FastLayer.random(backend, rng, kind, (48, 256))
        x = normal(rng, 5, 256)
        clean = layer(x)
        for columns in (slice(40, 41), slice(0, 256)):
            for row, value in ((1, np.nan), (3, np.inf), (4, -np.inf)):
                x[row, columns] = value
            marked = layer(x)
            assert not np.isfinite(marked[[1, 3, 4]]).any()
            assert_same_bits(marked[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("sign", [1, -1])
def test_extreme_nibbles_do_not_saturate(backend: Any, sign: int) -> None:
    """Every nibble against every place of a block of largest activations."""
    integers = np.repeat(np.arange(16), 32).reshape(16, 32)
    data = bytes_of_q4_1(np.ones(16), np.zeros(16), integers)
    layer = FastLayer(backend, "q4_1", (16, 32), data)
    x = np.full((3, 32), sign * 127, np.float32)  # scale 1
    np.testing.assert_array_equal(layer(x), np.tile(sign * 127 * 32 * np.arange(16), (3, 1)))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("kind", "integer"), [("q5_0", -16), ("q5_0", 15), ("q5_1", 31)])
def test_extreme_codes_of_five_bits_do_not_saturate(
    backend: Any, kind: str, integer: int, sign: int
) -> None:
    code = integer + (16 if kind == "q5_0" else 0)
    scales = np.array([1, 0][: 2 if kind == "q5_1" else 1], np.float16).view(np.uint8)
    fifth, nibble = np.full(4, 255 * (code >> 4)), np.full(16, (code & 15) * 17)
    block = np.concatenate([scales, fifth, nibble]).astype(np.uint8)
    layer = FastLayer(backend, kind, (16, 32), np.tile(block, 16))
    x = np.full((5, 32), sign * 127, np.float32)
    np.testing.assert_array_equal(layer(x), np.full((5, 16), sign * 127 * 32 * integer))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("integer", [-32, 31])
def test_extreme_codes_of_six_bits_do_not_saturate(backend: Any, integer: int, sign: int) -> None:
    code = integer + 32
    low, high = np.full(128, (code & 15) * 17), np.full(64, (code >> 4) * 85)
    scales = np.tile([-128, 127], 8).astype(np.int8).view(np.uint8)
    d = np.ones(1, np.float16).view(np.uint8)
    block = np.concatenate([low, high, scales, d]).astype(np.uint8)
    layer = FastLayer(backend, "q6_k", (16, 256), np.tile(block, 16))
    x = np.full((5, 256), sign * 127, np.float32)
    expected = 8 * sign * 127 * 16 * integer * (127 - 128)
    np.testing.assert_array_equal(layer(x), np.full((5, 16), expected))


@pytest.mark.parametrize("sign", [1, -1])
def test_extreme_bytes_do_not_saturate(backend: Any, sign: int) -> None:
    """All 256 integers, 32 times each, against activations of 127, also alternating."""
    values = np.arange(-128, 128)
    data = bytes_of_q8_0(np.ones(256), np.repeat(values, 32).reshape(256, 32))
    layer = FastLayer(backend, "q8_0", (256, 32), data)
    x = np.full((2, 32), sign * 127, np.float32)
    np.testing.assert_array_equal(layer(x), np.tile(sign * 127 * 32 * values, (2, 1)))
    x[:, ::2] *= -1
    np.testing.assert_array_equal(layer(x), np.zeros((2, 256)))


def test_every_integer_times_every_integer(backend: Any) -> None:
    """Products 256 * 255 of weights and activations, one at a time, in all 32 places."""
    for place in range(32):
        integers = np.zeros((256, 32), np.int64)
        integers[:, place] = np.arange(-128, 128)
        layer = FastLayer(backend, "q8_0", (256, 32), bytes_of_q8_0(np.ones(256), integers))
        activations = np.arange(-127, 128)
        x = np.zeros((255, 32), np.float32)
        x[:, place] = activations
        x[:, (place + 1) % 32] = 127  # keeps the scale at 1; the weight there is 0
        expected = activations[:, None] * integers[:, place]
        np.testing.assert_array_equal(layer(x), expected)


@pytest.mark.parametrize("kind", [*TYPES, *K_TYPES])
def test_threads_do_not_change_bits(backend: Any, rng: np.random.Generator, kind: str) -> None:
    layer = FastLayer.random(backend, rng, kind, (700, 512))
    for rows in (1, 9, 100, 600):
        x = normal(rng, rows, 512)
        results = []
        for threads in (1, 2, 3, 7):
            backend.set_threads(threads)
            results.append(layer(x))
        for other in results[1:]:
            assert_same_bits(other, results[0])


def test_tiers_round_activations_alike(rng: np.random.Generator) -> None:
    """Integer sums are exact, so with one block only the last products may differ."""
    shape = (40, 32)
    data = bytes_of_q8_0(np.ones(40), rng.integers(-128, 128, (40, 32)))
    x = normal(rng, 20, 32)
    outputs = []
    for isa in _core.Backend.available_isas():
        backend = _core.Backend(threads=1, isa=isa)
        outputs.append(FastLayer(backend, "q8_0", shape, data)(x))
    for other in outputs[1:]:
        assert_same_bits(other, outputs[0])


def test_several_weights_on_one_input(backend: Any, rng: np.random.Generator) -> None:
    """Fast and exact ones together: the bits of one after the other."""
    widths, kinds = (70, 16, 200, 1), ("q4_1", "q8_0", "f16", "f32")
    handles = []
    for width, kind in zip(widths, kinds, strict=True):
        data, _ = stored_matrix(rng, kind, width, 96)
        handles.append(backend.create_weight(kind, width, 96, data, precision="fast"))
    for rows in (1, 5, 16, 70):
        x = normal(rng, rows, 96)
        together = backend.linears(handles, widths, x)
        for handle, width, out in zip(handles, widths, together, strict=True):
            assert_same_bits(out, backend.linear(handle, width, x))


def test_precise_rows_have_16_bits(backend: Any, rng: np.random.Generator) -> None:
    """Their outputs are those of what 8 bits hold and of what they leave; others keep theirs.
    Exact weights are as they are, and rows do not matter to each other."""
    shape = (70, 96)
    layers = [FastLayer.random(backend, rng, kind, shape) for kind in TYPES]
    data, _ = stored_matrix(rng, "q4_1", *shape)
    handles = [layer.handle for layer in layers]
    handles.append(backend.create_weight("q4_1", *shape, data, precision="exact"))
    x = normal(rng, 40, shape[1])
    plain = backend.linears(handles, [shape[0]] * len(handles), x)
    scale, q = reference.quantize_activations(x)
    rest = x - np.repeat(scale, 32, axis=1) * q.reshape(x.shape).astype(np.float32)
    for precise in ([0], [39], [0, 7, 8, 31], list(range(40))):
        given = backend.linears(handles, [shape[0]] * len(handles), x, precise)
        others = [row for row in range(40) if row not in precise]
        for layer, rounded, out in zip(layers, plain, given, strict=False):
            assert_same_bits(out[precise], rounded[precise] + layer(rest)[precise])
            assert_same_bits(out[others], rounded[others])
        assert_same_bits(given[-1], plain[-1])
    with pytest.raises(_core.InvalidArgument, match="row 40 of 40"):
        backend.linears(handles, [shape[0]] * len(handles), x, [40])


def test_wrong_calls_are_refused(backend: Any, rng: np.random.Generator) -> None:
    layer = FastLayer.random(backend, rng, "q4_1", (16, 32))
    with pytest.raises(_core.InvalidArgument, match="exact, fast or fastest"):
        backend.create_weight("q4_1", 16, 32, layer.data, precision="quick")
    x = normal(rng, 2, 32)
    with pytest.raises(_core.InvalidArgument, match="0 weights"):
        backend.linears([], [], x)
    with pytest.raises(_core.InvalidArgument, match="9 weights"):
        backend.linears([layer.handle] * 9, [16] * 9, x)
    with pytest.raises(_core.InvalidArgument, match="1 weights and 2 outputs"):
        backend.linears([layer.handle], [16, 16], x)
    with pytest.raises(_core.InvalidArgument, match="out has width 15, needed is 16"):
        backend.linears([layer.handle] * 2, [16, 15], x)
