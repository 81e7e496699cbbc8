"""An open step of a :class:`pykv.Cache`: shapes and types between NumPy and the core."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from pykv import _core
from pykv.arguments import real

if TYPE_CHECKING:
    from pykv.cache_types import Layer

Floats = npt.NDArray[np.float32]


class Step:
    """Made by :meth:`pykv.Cache.step`; use it in a ``with`` statement.

    Rows are the new tokens of all requests, in the order of the plan. Arrays are
    token-major: ``k [rows, kv_heads, k_dim]``, ``v [rows, kv_heads, v_dim]``,
    ``q [rows, heads, k_dim]``; float32, float16, float64 or bfloat16 (of ``ml_dtypes``), any
    strides.
    """

    __slots__ = ("_cache", "_layers", "_plan", "_rolled_back", "_step")

    def __init__(self, core: _core.Cache, layers: Sequence[Layer], plan: _core.Plan) -> None:
        self._cache = core
        self._layers = layers
        self._plan = plan
        self._step: _core.Step | None = None
        self._rolled_back = False

    def __enter__(self) -> Step:
        if self._step is not None:
            raise _core.InvalidArgument("[Step] a step is entered once; plan another one")
        self._step = self._cache.commit(self._plan)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        step = self._open("__exit__")
        try:
            if kind is None and not self._rolled_back:
                step.finish()
        finally:
            step.rollback()

    @property
    def rows(self) -> int:
        """New tokens of this step."""
        return self._plan.tokens

    @property
    def positions(self) -> npt.NDArray[np.int32]:
        """Position of each row in its sequence, int32 ``[rows]`` (for rotary embedding)."""
        return self._open("positions").positions

    @property
    def slices(self) -> list[slice]:
        """Rows of each request, in the order of the plan."""
        return [slice(first, first + count) for first, count in self._open("slices").groups]

    def write(self, layer: int, k: npt.ArrayLike, v: npt.ArrayLike | None = None) -> None:
        """Stores K and V of all rows in ``layer``, in the cache's types.

        ``v`` is left out for a layer with ``v_view_of_k``; one with ``kv_from_layer`` is not
        written. Raises ``InvalidArgument`` for wrong shapes, ``TypeError`` for arrays that are
        not floats.
        """
        step = self._open("write")
        spec = self._kv_layer(layer, "write")
        k_rows = _rows(k, (self.rows, spec.kv_heads, spec.k_dim), "[Step.write] k")
        if spec.v_view_of_k or spec.kv_from_layer is not None:
            v_rows = None if v is None else np.empty((self.rows, 1), np.float32)  # refused there
        elif v is None:
            raise _core.InvalidArgument(f"[Step.write] layer {layer} stores V; give v")
        else:
            v_rows = _rows(v, (self.rows, spec.kv_heads, spec.v_dim), "[Step.write] v")
        step.write(layer, k_rows, v_rows)

    def import_rows(
        self,
        layer: int,
        k: npt.NDArray[np.uint8],
        v: npt.NDArray[np.uint8],
    ) -> None:
        """Stores rows that :meth:`pykv.Cache.export_rows` gave, instead of :meth:`write`.

        uint8 ``[rows, row bytes]``, from a cache with the same types and transforms, for tokens
        at the same positions. Nothing but the number of bytes is checked. In a step that
        :meth:`pykv.Cache.restore` makes a layer has as many rows as its pool keeps.
        """
        step = self._open("import_rows")
        self._layer(layer, "import_rows")
        for name, rows in (("k", k), ("v", v)):
            if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8:
                raise TypeError(f"[Step.import_rows] {name} must be an array of uint8")
        step.import_rows(layer, np.ascontiguousarray(k), np.ascontiguousarray(v))

    def attend(
        self,
        layer: int,
        q: npt.ArrayLike,
        scale: float | None = None,
        softcap: float = 0.0,
        sinks: npt.ArrayLike | None = None,
        alibi_slopes: npt.ArrayLike | None = None,
        precision: str = "exact",
        only: npt.ArrayLike | None = None,
    ) -> Floats:
        """Attention of every row over its own sequence, this step's earlier rows included.

        ``q [rows, heads, k_dim]``, ``heads`` a multiple of the layer's ``kv_heads``; returns
        float32 ``[rows, heads, v_dim]``: softmax of the scores of what the layer's window lets a
        row see, times V. A score is ``scale * q @ k`` (by default ``1 / sqrt(k_dim)``); with
        ``softcap`` above 0, ``softcap * tanh(score / softcap)``; with ``alibi_slopes [heads]``,
        plus ``slope * (key position - query position)``. ``sinks [heads]`` are one more score per
        head in the softmax that weighs no V; a layer with ``sinks=True`` needs them, others
        refuse them. ``precision="fast"`` may round the factors of both products to integers of 13
        to 16 bits, ``"fastest"`` to bf16, on machines that multiply those faster (AVX-512 VNNI
        and AVX2; AVX-512 BF16). With ``only``, ascending numbers of rows of the step, ``q`` and the
        result have those rows alone, with the same bits: what a last layer needs of a prompt.
        ``write`` of the layer that stores K and V must come first.

        Raises ``InvalidArgument`` for wrong shapes and numbers that are not finite, ``TypeError``
        for arrays that are not floats.
        """
        step = self._open("attend")
        spec = self._kv_layer(layer, "attend")
        heads = _heads(q, spec.kv_heads)
        numbers = None if only is None else _row_numbers(only)
        rows = self.rows if numbers is None else len(numbers)
        q_rows = _rows(q, (rows, heads, spec.k_dim), "[Step.attend] q")
        if rows == 0:
            return np.empty((0, heads, spec.v_dim), np.float32)
        out = step.attend(
            layer,
            q_rows,
            heads,
            1.0 / math.sqrt(spec.k_dim) if scale is None else real("[Step.attend] scale", scale),
            real("[Step.attend] softcap", softcap),
            _per_head(sinks, heads, "sinks"),
            _per_head(alibi_slopes, heads, "alibi_slopes"),
            precision,
            numbers,
        )
        return out.reshape(rows, heads, spec.v_dim)

    def read_states(self, layer: int) -> Floats:
        """States of a recurrent ``layer`` at the beginning of the step.

        float32 ``[requests, elements]`` in the order of the plan, the convolution's elements
        before the scan's; zeros for a sequence without tokens.
        """
        step = self._open("read_states")
        elements = self._state_elements(layer, "read_states")
        return step.read_states(layer, len(step.groups), elements)

    def write_states(self, layer: int, states: npt.ArrayLike) -> None:
        """States at the end of the step, float ``[requests, elements]``; once for each such layer.

        Raises ``InvalidArgument`` for wrong shapes, ``TypeError`` for what is no float.
        """
        step = self._open("write_states")
        shape = [len(step.groups), self._state_elements(layer, "write_states")]
        array = _floats(states, "[Step.write_states] states")
        if list(array.shape) != shape:
            raise _core.InvalidArgument(
                f"[Step.write_states] states has shape {list(array.shape)}, must be {shape}"
            )
        step.write_states(layer, np.ascontiguousarray(array, dtype=np.float32))

    def _state_elements(self, layer: int, method: str) -> int:
        state = self._layer(layer, method).state
        if state is None:
            raise _core.InvalidArgument(f"[Step.{method}] layer {layer} is not recurrent")
        return sum(state)

    def rollback(self) -> None:
        """Takes everything back; the ``with`` block then ends without publishing."""
        self._open("rollback").rollback()
        self._rolled_back = True

    def _open(self, method: str) -> _core.Step:
        if self._step is None:
            raise _core.InvalidArgument(
                f"[Step.{method}] the step is not open; use it in 'with cache.step(plan) as step:'"
            )
        return self._step

    def _layer(self, layer: int, method: str) -> Layer:
        if isinstance(layer, bool) or not hasattr(layer, "__index__"):
            raise TypeError(f"[Step.{method}] layer must be an int, not {type(layer).__name__}")
        index = layer.__index__()
        if not 0 <= index < len(self._layers):
            raise _core.InvalidArgument(
                f"[Step.{method}] layer is {index}, must be 0 to {len(self._layers) - 1}"
            )
        return self._layers[index]

    def _kv_layer(self, layer: int, method: str) -> Layer:
        spec = self._layer(layer, method)
        if spec.kv_heads == 0:
            raise _core.InvalidArgument(f"[Step.{method}] layer {layer} has no K and V")
        return spec

    def __repr__(self) -> str:
        return f"<pykv.Step of {self.rows} rows{'' if self._step else ', not entered'}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "[Step] a step is an open change of a cache and cannot be pickled or copied"
        )


def _heads(q: npt.ArrayLike, kv_heads: int) -> int:
    shape = np.shape(q)
    if len(shape) == 3 and shape[1] > 0 and shape[1] % kv_heads == 0:
        return int(shape[1])
    raise _core.InvalidArgument(
        f"[Step.attend] q has shape {list(shape)}, must be [rows, heads, k_dim] with heads a "
        f"multiple of kv_heads = {kv_heads}"
    )


def _row_numbers(only: npt.ArrayLike) -> npt.NDArray[Any]:
    array = np.asarray(only)
    if array.ndim != 1 or (array.size != 0 and array.dtype.kind not in "iu"):
        raise TypeError(
            f"[Step.attend] only is an array of {array.dtype} of shape {list(array.shape)}, "
            "must be numbers of rows"
        )
    return array


def _per_head(values: npt.ArrayLike | None, heads: int, name: str) -> list[float]:
    if values is None:
        return []
    array = _floats(values, f"[Step.attend] {name}")
    if array.shape != (heads,):
        raise _core.InvalidArgument(
            f"[Step.attend] {name} has shape {list(array.shape)}, must be [{heads}], one per head"
        )
    return [float(value) for value in array.astype(np.float32)]


def _floats(values: npt.ArrayLike, what: str) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = np.asarray(values)
    # bfloat16 of ml_dtypes has kind 'V' and a name; NumPy's own floats have kind 'f'.
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        raise TypeError(
            f"{what} is an array of {array.dtype}, must be float32, float16, float64 or bfloat16"
        )
    return array


def _rows(values: npt.ArrayLike, shape: tuple[int, int, int], what: str) -> Floats:
    """``values`` as contiguous float32 ``[rows, width]``."""
    array = _floats(values, what)
    if array.shape != shape:
        raise _core.InvalidArgument(f"{what} has shape {list(array.shape)}, must be {list(shape)}")
    return np.ascontiguousarray(array, dtype=np.float32).reshape(shape[0], shape[1] * shape[2])
