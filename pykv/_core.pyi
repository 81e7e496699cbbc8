"""
C++ core of pykv: KV cache, model and engine.
"""

from __future__ import annotations
import collections.abc
import numpy
import numpy.typing
import os
import pathlib

class Busy(Error): ...
class CorruptModel(Error, ValueError): ...
class Error(Exception): ...
class IntegrityError(Error): ...
class InvalidArgument(Error, ValueError): ...
class OutOfCells(Error, MemoryError): ...
class OutOfMemory(Error, MemoryError): ...
class StalePlan(Error): ...
class Unsupported(Error, NotImplementedError): ...
class UnsupportedModel(Error, ValueError): ...

import typing

__all__: list[str] = [
    "Backend",
    "Busy",
    "Cache",
    "CorruptModel",
    "Engine",
    "EngineEvent",
    "Error",
    "GgufFile",
    "GgufTensor",
    "IntegrityError",
    "InvalidArgument",
    "LayerSpec",
    "Model",
    "OutOfCells",
    "OutOfMemory",
    "Plan",
    "RopeParams",
    "Sampler",
    "StalePlan",
    "Step",
    "Unsupported",
    "UnsupportedModel",
    "abandon",
    "build_info",
    "decode_row",
    "encode_row",
    "kv_types",
    "memory_plan",
    "precisions",
    "read_layer_table",
    "read_model_config",
    "read_recurrent_table",
    "top_logprobs",
    "with_window_pools",
]

class LayerSpec:
    """
    What the cache knows of one layer of a model (layer_table.h).
    """

    __hash__: typing.ClassVar[None] = None
    def __eq__(self, arg0: LayerSpec) -> bool: ...
    def __init__(
        self,
        *,
        kv_heads: typing.SupportsInt | typing.SupportsIndex,
        k_dim: typing.SupportsInt | typing.SupportsIndex,
        v_dim: typing.SupportsInt | typing.SupportsIndex | None = None,
        pool: typing.SupportsInt | typing.SupportsIndex = 0,
        v_view_of_k: bool = False,
        kv_from_layer: typing.SupportsInt | typing.SupportsIndex | None = None,
        window_kind: str = "none",
        window_size: typing.SupportsInt | typing.SupportsIndex = 0,
        rope_id: typing.SupportsInt | typing.SupportsIndex = 0,
        sinks: bool = False,
    ) -> None:
        """
        v_dim defaults to k_dim; both are elements per head.
        """
    def __repr__(self) -> str: ...
    @property
    def k_dim(self) -> int: ...
    @property
    def kv_from_layer(self) -> int | None: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def pool(self) -> int: ...
    @property
    def rope_id(self) -> int: ...
    @property
    def sinks(self) -> bool: ...
    @property
    def v_dim(self) -> int: ...
    @property
    def v_view_of_k(self) -> bool: ...
    @property
    def window_kind(self) -> str: ...
    @property
    def window_size(self) -> int: ...

class RopeParams:
    """
    Rotary position embedding of a head (rope.h).
    """

    __hash__: typing.ClassVar[None] = None
    def __eq__(self, arg0: RopeParams) -> bool: ...
    def __init__(
        self,
        *,
        dims: typing.SupportsInt | typing.SupportsIndex = 0,
        base: typing.SupportsFloat | typing.SupportsIndex = 10000.0,
        interleaved: bool = True,
        frequencies: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex] = [],
        offset: typing.SupportsInt | typing.SupportsIndex = 0,
    ) -> None:
        """
        dims rotated elements from `offset` on (0: K does not depend on positions), by `frequencies` in radians per position, or base^(-2i / dims) where none are given.
        """
    @property
    def base(self) -> float: ...
    @property
    def dims(self) -> int: ...
    @property
    def frequencies(self) -> list[float]: ...
    @property
    def interleaved(self) -> bool: ...
    @property
    def offset(self) -> int: ...

class Backend:
    """
    The machine that computes: kernels, threads, weights and pool memory. Calls from several threads wait for each other.
    """
    @staticmethod
    def available_isas() -> list[str]:
        """
        Instruction-set tiers, best last.
        """
    @staticmethod
    def name() -> str: ...
    def __init__(
        self, threads: typing.SupportsInt | typing.SupportsIndex = 0, isa: str = "auto"
    ) -> None:
        """
        threads: 0 means the cores this process may use; isa: "auto" or one of available_isas().
        """
    def add(
        self,
        a: typing.Annotated[numpy.typing.ArrayLike, numpy.float32],
        x: typing.Annotated[numpy.typing.ArrayLike, numpy.float32],
    ) -> numpy.typing.NDArray[numpy.float32]: ...
    def attend(
        self,
        pool: typing.SupportsInt | typing.SupportsIndex,
        layer: typing.SupportsInt | typing.SupportsIndex,
        q: typing.Annotated[numpy.typing.ArrayLike, numpy.float32],
        *,
        segments: collections.abc.Sequence[
            tuple[
                typing.SupportsInt | typing.SupportsIndex,
                typing.SupportsInt | typing.SupportsIndex,
                typing.SupportsInt | typing.SupportsIndex,
                typing.SupportsInt | typing.SupportsIndex,
                typing.SupportsInt | typing.SupportsIndex,
            ]
        ],
        groups: collections.abc.Sequence[
            tuple[
                typing.SupportsInt | typing.SupportsIndex,
                typing.SupportsInt | typing.SupportsIndex,
                typing.SupportsInt | typing.SupportsIndex,
                typing.SupportsInt | typing.SupportsIndex,
                typing.SupportsInt | typing.SupportsIndex,
                typing.SupportsInt | typing.SupportsIndex,
            ]
        ],
        heads: typing.SupportsInt | typing.SupportsIndex,
        scale: typing.SupportsFloat | typing.SupportsIndex,
        out_width: typing.SupportsInt | typing.SupportsIndex,
        softcap: typing.SupportsFloat | typing.SupportsIndex = 0.0,
        sinks: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex] = [],
        alibi_slopes: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex] = [],
        window: tuple[str, typing.SupportsInt | typing.SupportsIndex] = ("none", 0),
        rope: RopeParams | None = None,
        precision: str = "exact",
    ) -> numpy.typing.NDArray[numpy.float32]:
        """
        segments: (first position, cell, length, rotation, slot); groups: (first row, rows, first position, first segment, segments, first slot). sinks, alibi_slopes: one for each head. window: (kind, size). Returns [n, out_width = heads * v_dim].
        """
    def causal_conv(
        self,
        states: typing.SupportsInt | typing.SupportsIndex,
        offset: typing.SupportsInt | typing.SupportsIndex,
        stretches: collections.abc.Sequence[
            tuple[
                typing.SupportsInt | typing.SupportsIndex,
                typing.SupportsInt | typing.SupportsIndex,
                typing.SupportsInt | typing.SupportsIndex | None,
                typing.SupportsInt | typing.SupportsIndex,
            ]
        ],
        taps: typing.SupportsInt | typing.SupportsIndex,
        bias: typing.SupportsInt | typing.SupportsIndex | None,
        silu: bool,
        x: typing.Annotated[numpy.typing.ArrayLike, numpy.float32],
    ) -> numpy.typing.NDArray[numpy.float32]:
        """
        x [n, channels] -> the same shape. A stretch is (first row, rows, slot to read or None, slot to write).
        """
    def commit_blocks(
        self,
        pool: typing.SupportsInt | typing.SupportsIndex,
        blocks: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32],
    ) -> None: ...
    def commit_slot(
        self,
        states: typing.SupportsInt | typing.SupportsIndex,
        slot: typing.SupportsInt | typing.SupportsIndex,
    ) -> bool:
        """
        False: the system has no memory.
        """
    def copy_cells(
        self,
        pool: typing.SupportsInt | typing.SupportsIndex,
        source: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32],
        target: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32],
    ) -> None:
        """
        K and V of all layers, byte by byte.
        """
    def create_pool(
        self,
        layers: collections.abc.Sequence[LayerSpec],
        type_k: str,
        type_v: str,
        blocks: typing.SupportsInt | typing.SupportsIndex,
        hadamard: bool = True,
    ) -> int:
        """
        Reserves address space for blocks of 64 cells; returns the pool's handle.
        """
    def create_states(
        self,
        slot_bytes: typing.SupportsInt | typing.SupportsIndex,
        slots: typing.SupportsInt | typing.SupportsIndex,
    ) -> int:
        """
        Reserves slots for states of recurrent layers.
        """
    def create_weight(
        self,
        type: str,
        rows: typing.SupportsInt | typing.SupportsIndex,
        cols: typing.SupportsInt | typing.SupportsIndex,
        data: typing.Annotated[numpy.typing.ArrayLike, numpy.uint8],
        precision: str = "fast",
    ) -> int:
        """
        Copies a [rows, cols] matrix, uint8 in GGUF's row layout; returns its handle. precision: "fast" or "exact" multiplication.
        """
    def destroy_pool(self, pool: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def destroy_states(self, states: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def embed(
        self,
        table: typing.SupportsInt | typing.SupportsIndex,
        width: typing.SupportsInt | typing.SupportsIndex,
        tokens: typing.Annotated[numpy.typing.ArrayLike, numpy.int32],
    ) -> numpy.typing.NDArray[numpy.float32]:
        """
        Rows of a table.
        """
    def export_rows(
        self,
        pool: typing.SupportsInt | typing.SupportsIndex,
        layer: typing.SupportsInt | typing.SupportsIndex,
        cells: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32],
        row_bytes: tuple[
            typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex
        ],
    ) -> tuple:
        """
        Rows as they are stored: k uint8 [n, row_bytes[0]], v [n, row_bytes[1]].
        """
    def gather(
        self,
        x: typing.Annotated[numpy.typing.ArrayLike, numpy.float32],
        rows: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32],
    ) -> numpy.typing.NDArray[numpy.float32]: ...
    def gelu_mul(
        self,
        gate: typing.Annotated[numpy.typing.ArrayLike, numpy.float32],
        up: typing.Annotated[numpy.typing.ArrayLike, numpy.float32],
    ) -> numpy.typing.NDArray[numpy.float32]: ...
    def import_rows(
        self,
        pool: typing.SupportsInt | typing.SupportsIndex,
        layer: typing.SupportsInt | typing.SupportsIndex,
        cells: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32],
        k: typing.Annotated[numpy.typing.ArrayLike, numpy.uint8],
        v: typing.Annotated[numpy.typing.ArrayLike, numpy.uint8],
    ) -> None:
        """
        Puts such rows into cells.
        """
    def linear(
        self,
        weight: typing.SupportsInt | typing.SupportsIndex,
        outputs: typing.SupportsInt | typing.SupportsIndex,
        x: typing.Annotated[numpy.typing.ArrayLike, numpy.float32],
    ) -> numpy.typing.NDArray[numpy.float32]:
        """
        x [n, cols] -> [n, outputs]; outputs is the weight's number of rows.
        """
    def linears(
        self,
        weights: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        outputs: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        x: typing.Annotated[numpy.typing.ArrayLike, numpy.float32],
        precise: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] = [],
    ) -> list[numpy.typing.NDArray[numpy.float32]]:
        """
        linear() with several weights on one input: a list of arrays. Rows named in `precise` are rounded to 16 bits where others are to 8.
        """
    def measure_limit(
        self, limit: str, seconds: typing.SupportsFloat | typing.SupportsIndex = 0.2
    ) -> float:
        """
        What all threads reach together, per second: "f32_operations" or "int8_operations" (a multiply-add is two) in registers, or "read_bytes" from memory.
        """
    def multiply(
        self,
        a: typing.Annotated[numpy.typing.ArrayLike, numpy.float32],
        by: typing.Annotated[numpy.typing.ArrayLike, numpy.float32],
    ) -> numpy.typing.NDArray[numpy.float32]: ...
    def read_kv(
        self,
        pool: typing.SupportsInt | typing.SupportsIndex,
        layer: typing.SupportsInt | typing.SupportsIndex,
        cells: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32],
        widths: tuple[
            typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex
        ],
    ) -> tuple:
        """
        Stored values, decoded: k [n, widths[0]], v [n, widths[1]].
        """
    def read_state(
        self,
        states: typing.SupportsInt | typing.SupportsIndex,
        slot: typing.SupportsInt | typing.SupportsIndex,
        offset: typing.SupportsInt | typing.SupportsIndex,
        count: typing.SupportsInt | typing.SupportsIndex,
    ) -> numpy.typing.NDArray[numpy.float32]:
        """
        Elements [offset, offset + count) of a slot, float32.
        """
    def release_blocks(
        self,
        pool: typing.SupportsInt | typing.SupportsIndex,
        blocks: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32],
    ) -> None: ...
    def release_slot(
        self,
        states: typing.SupportsInt | typing.SupportsIndex,
        slot: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    def rewrite_k(
        self,
        pool: typing.SupportsInt | typing.SupportsIndex,
        source: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32],
        target: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32],
        deltas: typing.Annotated[numpy.typing.ArrayLike, numpy.int32],
        ropes: collections.abc.Sequence[RopeParams | None],
    ) -> None:
        """
        K of source[i], moved by deltas[i] positions, into target[i]. ropes: one per layer, None to leave it.
        """
    def rms_norm(
        self,
        x: typing.Annotated[numpy.typing.ArrayLike, numpy.float32],
        gain: typing.SupportsInt | typing.SupportsIndex,
        epsilon: typing.SupportsFloat | typing.SupportsIndex,
        parts: typing.SupportsInt | typing.SupportsIndex = 0,
    ) -> numpy.typing.NDArray[numpy.float32]: ...
    def rope(
        self,
        x: typing.Annotated[numpy.typing.ArrayLike, numpy.float32],
        positions: typing.Annotated[numpy.typing.ArrayLike, numpy.int32],
        *,
        heads: typing.SupportsInt | typing.SupportsIndex,
        rope: RopeParams,
    ) -> numpy.typing.NDArray[numpy.float32]:
        """
        x [n, heads * head_dim] -> the same, row i turned by positions[i].
        """
    def scan(
        self,
        states: typing.SupportsInt | typing.SupportsIndex,
        offset: typing.SupportsInt | typing.SupportsIndex,
        stretches: collections.abc.Sequence[
            tuple[
                typing.SupportsInt | typing.SupportsIndex,
                typing.SupportsInt | typing.SupportsIndex,
                typing.SupportsInt | typing.SupportsIndex | None,
                typing.SupportsInt | typing.SupportsIndex,
            ]
        ],
        sizes: typing.Annotated[
            collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], "FixedSize(4)"
        ],
        weights: typing.Annotated[
            collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], "FixedSize(3)"
        ],
        x_b_c: typing.Annotated[numpy.typing.ArrayLike, numpy.float32],
        dt: typing.Annotated[numpy.typing.ArrayLike, numpy.float32],
    ) -> numpy.typing.NDArray[numpy.float32]:
        """
        sizes: heads, head_dim, groups, state_size; weights: a, d, dt_bias, each [1, heads].
        """
    def set_threads(self, threads: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Results do not change.
        """
    def silu_mul(
        self,
        gate: typing.Annotated[numpy.typing.ArrayLike, numpy.float32],
        up: typing.Annotated[numpy.typing.ArrayLike, numpy.float32],
    ) -> numpy.typing.NDArray[numpy.float32]: ...
    def softcap(
        self,
        x: typing.Annotated[numpy.typing.ArrayLike, numpy.float32],
        cap: typing.SupportsFloat | typing.SupportsIndex,
    ) -> numpy.typing.NDArray[numpy.float32]: ...
    def time_linear(
        self,
        weights: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        outputs: typing.SupportsInt | typing.SupportsIndex,
        x: typing.Annotated[numpy.typing.ArrayLike, numpy.float32],
        repeats: typing.SupportsInt | typing.SupportsIndex,
    ) -> list[float]:
        """
        Seconds of each of `repeats` rounds of linear() through all the weights (handles of equal shape), without copies to and from NumPy.
        """
    def write_kv(
        self,
        pool: typing.SupportsInt | typing.SupportsIndex,
        layer: typing.SupportsInt | typing.SupportsIndex,
        k: typing.Annotated[numpy.typing.ArrayLike, numpy.float32],
        v: typing.Annotated[numpy.typing.ArrayLike, numpy.float32] | None,
        cells: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32],
    ) -> None:
        """
        v: None where V is a view of K.
        """
    def write_state(
        self,
        states: typing.SupportsInt | typing.SupportsIndex,
        slot: typing.SupportsInt | typing.SupportsIndex,
        offset: typing.SupportsInt | typing.SupportsIndex,
        values: typing.Annotated[numpy.typing.ArrayLike, numpy.float32],
    ) -> None: ...
    @property
    def isa(self) -> str:
        """
        Tier in use.
        """
    @property
    def threads(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...

class Cache:
    """
    One KV pool for all sessions; see pykv.Cache.
    """
    def __init__(
        self,
        *,
        layers: collections.abc.Sequence[LayerSpec],
        ropes: collections.abc.Sequence[RopeParams] = [],
        backend: Backend,
        cells: int,
        type_k: str = "f16",
        type_v: str = "f16",
        hadamard: bool = True,
        pool_bytes: int = 0,
        watermarks: tuple[
            typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex
        ] = (0.05, 0.1),
        compact_bytes: int = 4194304,
        edge_hash: str = "default",
        max_sequences: int = 16,
        step_tokens: int = 512,
        window_cells: int = 0,
        resume_bytes: int | None = None,
        resume_spacing: int = 512,
        recurrent: collections.abc.Sequence[
            tuple[
                typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex
            ]
        ] = [],
    ) -> None: ...
    def bounds(self, sequence: int) -> tuple[int, int]: ...
    def check_integrity(self) -> None: ...
    def clear(self, sequence: int) -> None:
        """
        Removes all tokens; the sequence stays.
        """
    def commit(self, plan: Plan) -> Step:
        """
        Opens the step; raises StalePlan, OutOfMemory or Busy.
        """
    def compact(self, budget_bytes: int) -> int:
        """
        Moves cells so that runs become long and blocks free; returns how many.
        """
    def copy(self, sequence: int, span: typing.Any, to: int) -> None:
        """
        Shares a span with another sequence.
        """
    def create(self, namespace: int = 0) -> int:
        """
        A new empty sequence.
        """
    def divide(self, sequence: int, span: typing.Any, divisor: int) -> None:
        """
        Divides the positions of a span.
        """
    def erase(self, sequence: int) -> None:
        """
        Ends the sequence; its exact tokens stay matchable as idle.
        """
    def erase_all(self) -> None:
        """
        Ends every sequence.
        """
    def evict(self, cells: int, reason: str = "request") -> int:
        """
        Evicts idle cells; returns how many became free.
        """
    def exact_upto(self, sequence: int) -> int: ...
    def export_rows(
        self, sequence: int, layer: int, span: typing.Any = None
    ) -> tuple[numpy.typing.NDArray[numpy.uint8], numpy.typing.NDArray[numpy.uint8]]:
        """
        (k, v) as stored, uint8 rows in GGUF's layout.
        """
    def export_state(self, sequence: int, layer: int) -> numpy.typing.NDArray[numpy.float32]:
        """
        A recurrent layer's state at the end, float32 [elements].
        """
    def fork(self, sequence: int) -> int:
        """
        A copy that shares all cells; O(1).
        """
    def keep(self, sequences: collections.abc.Sequence[int]) -> None:
        """
        Ends every other sequence.
        """
    def make_room(self, tokens: int) -> int:
        """
        Frees what a step lacks in each pool; returns how many cells became free.
        """
    def mark_resume(self, sequence: int) -> bool:
        """
        Makes the end of the sequence a resume point.
        """
    def match(self, tokens: typing.Any, namespace: int = 0) -> int:
        """
        How many of the tokens a sequence could start from.
        """
    def next_point(self, sequence: int) -> int:
        """
        Where the next step should end at the latest, for a resume point.
        """
    def open(
        self, tokens: typing.Any, namespace: int = 0, max_reuse: int | None = None
    ) -> tuple[int, int, int, int]:
        """
        (sequence, reused, pending, no_resume_point): a sequence that starts from the longest cached prefix.
        """
    def plan(
        self, requests: typing.Any, counts: typing.Any = None, tokens: typing.Any = None
    ) -> Plan | None:
        """
        Plan for [(sequence, count or token ids), ...], or for arrays of sequences, counts and all token ids one after the other; None if it does not fit.
        """
    def plan_import(self, sequence: int, count: int, tokens: typing.Any = None) -> Plan | None:
        """
        Plan for tokens that another cache has computed, into an empty sequence.
        """
    def prefix_nodes(self) -> list: ...
    def read_rows(
        self, sequence: int, layer: int, span: typing.Any
    ) -> tuple[numpy.typing.NDArray[numpy.float32], numpy.typing.NDArray[numpy.float32]]:
        """
        (k, v) as attention sees them: float32 [n, kv_heads, k_dim] and [n, kv_heads, v_dim].
        """
    def reclaim(self, wanted: int = 0) -> int:
        """
        One reclaim tick; returns how many cells became free.
        """
    def remove(self, sequence: int, span: typing.Any) -> None:
        """
        Removes the positions in a span, or all with None.
        """
    def reset_prefixes(self) -> None:
        """
        Forgets idle prefixes.
        """
    def rewind(self, sequence: int, position: int) -> int:
        """
        Takes tokens off the end until the sequence continues exactly at or before a position.
        """
    def runs(self, sequence: int, pool: int = 0) -> list[tuple[int, int, int, int]]:
        """
        List of (first, cell, length, rotation).
        """
    def sequences(self) -> list[int]: ...
    def set_watermarks(
        self,
        low: typing.SupportsFloat | typing.SupportsIndex,
        high: typing.SupportsFloat | typing.SupportsIndex,
    ) -> None: ...
    def shared_cells(self, sequence: int) -> int: ...
    def shift(self, sequence: int, span: typing.Any, delta: int) -> None:
        """
        Moves a span by delta positions.
        """
    def stats(self) -> dict: ...
    def stored(self, tokens: typing.Any, namespace: int = 0) -> int:
        """
        Length of the longest prefix in the tree.
        """
    def transforms(self, layer: int) -> tuple[int, int]:
        """
        How many elements of K and V are transformed together; 0: none.
        """
    def watermarks(self) -> tuple[float, float]: ...
    @property
    def layers(self) -> list[LayerSpec]: ...
    @property
    def recurrent(self) -> list[tuple[int, int]]:
        """
        Of each layer (elements of the convolution, of the scan) of a state; empty: none is recurrent.
        """
    @property
    def ropes(self) -> list[RopeParams]: ...
    @property
    def type_k(self) -> str: ...
    @property
    def type_v(self) -> str: ...

class Plan:
    """
    Where the tokens of a step will go; valid until the cache changes.
    """
    def __repr__(self) -> str: ...
    @property
    def blocks_to_commit(self) -> int:
        """
        Blocks whose memory is touched for the first time.
        """
    @property
    def tokens(self) -> int:
        """
        Sum of the counts.
        """

class Step:
    """
    An open step; rolled back when it is destroyed unfinished.
    """
    def attend(
        self,
        layer: int,
        q: typing.Annotated[numpy.typing.ArrayLike, numpy.float32],
        heads: int,
        scale: typing.SupportsFloat | typing.SupportsIndex,
        softcap: typing.SupportsFloat | typing.SupportsIndex = 0.0,
        sinks: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex] = [],
        alibi_slopes: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex] = [],
        precision: str = "exact",
        only: typing.Any = None,
    ) -> numpy.typing.NDArray[numpy.float32]:
        """
        q [rows, heads * k_dim] -> float32 [rows, heads * v_dim]. sinks, alibi_slopes: one for each head; only: int rows of the step, ascending, that q has; None or none: all.
        """
    def finish(self) -> None:
        """
        Publishes; every layer must be written.
        """
    def import_rows(
        self,
        layer: int,
        k: typing.Annotated[numpy.typing.ArrayLike, numpy.uint8],
        v: typing.Annotated[numpy.typing.ArrayLike, numpy.uint8],
    ) -> None:
        """
        Stores rows as Cache.export_rows gives them, uint8, instead of write().
        """
    def read_states(
        self,
        layer: int,
        requests: typing.SupportsInt | typing.SupportsIndex,
        elements: typing.SupportsInt | typing.SupportsIndex,
    ) -> numpy.typing.NDArray[numpy.float32]:
        """
        float32 [requests, elements]: a recurrent layer's states at the beginning of the step.
        """
    def rollback(self) -> None:
        """
        Takes everything back; no effect after the end.
        """
    def time_attend(
        self,
        layers: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        q: typing.Annotated[numpy.typing.ArrayLike, numpy.float32],
        heads: int,
        scale: typing.SupportsFloat | typing.SupportsIndex,
        precision: str = "exact",
        repeats: typing.SupportsInt | typing.SupportsIndex = 1,
    ) -> list[float]:
        """
        Seconds of each of `repeats` rounds of attend() over layers of equal width, without copies to and from NumPy.
        """
    def write(
        self,
        layer: int,
        k: typing.Annotated[numpy.typing.ArrayLike, numpy.float32],
        v: typing.Annotated[numpy.typing.ArrayLike, numpy.float32] | None = None,
    ) -> None:
        """
        k [rows, kv_heads * k_dim], v [rows, kv_heads * v_dim] or None for a view of K, float32.
        """
    def write_states(
        self, layer: int, states: typing.Annotated[numpy.typing.ArrayLike, numpy.float32]
    ) -> None:
        """
        Those at its end, float32 [requests, elements].
        """
    @property
    def groups(self) -> list[tuple[int, int]]:
        """
        (first row, rows) of each request.
        """
    @property
    def positions(self) -> numpy.typing.NDArray[numpy.int32]: ...
    @property
    def rows(self) -> int: ...

class GgufTensor:
    """
    Description of one tensor in a GGUF file.
    """
    @property
    def name(self) -> str: ...
    @property
    def nbytes(self) -> int:
        """
        Bytes in the file, 0 for types this build cannot read.
        """
    @property
    def shape(self) -> tuple:
        """
        Extents in GGUF order: shape[0] is the row length.
        """
    @property
    def type_name(self) -> str:
        """
        E.g. "Q4_1"; "type 77" if unknown.
        """

class GgufFile:
    """
    Read-only view of a GGUF file (version 2 or 3), or of all parts of a split model if path is one of them. Raises CorruptModel, UnsupportedModel, or Error if a file cannot be opened.
    """
    def __init__(self, path: os.PathLike | str | bytes) -> None: ...
    def array_size(self, key: str) -> int | None:
        """
        Elements; None if absent or no array.
        """
    def drop_pages(self) -> None:
        """
        Lets the system reuse the mapped memory.
        """
    def float_array(self, key: str) -> numpy.typing.NDArray[numpy.float32]:
        """
        float32 array; CorruptModel if absent or of another kind.
        """
    def integer_array(self, key: str) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 array; CorruptModel if absent or of another kind.
        """
    def keys(self) -> list[str]:
        """
        Metadata keys in file order.
        """
    def scalar(self, key: str) -> typing.Any:
        """
        bool, int, float or str; None if absent or an array.
        """
    def string_array(self, key: str) -> list:
        """
        list[str]; CorruptModel if absent or of another kind.
        """
    def tensors(self) -> list[GgufTensor]:
        """
        Descriptions of all tensors in file order.
        """
    @property
    def path(self) -> pathlib.Path: ...
    @property
    def size(self) -> int:
        """
        Bytes of the file.
        """
    @property
    def version(self) -> int: ...

class Model:
    """
    A decoder that runs on the cache. Raises UnsupportedModel (naming the architecture, feature or tensor type), CorruptModel, OutOfMemory.
    """
    def __init__(
        self,
        gguf: GgufFile,
        backend: Backend,
        *,
        precision: str = "fast",
        context: int = 0,
        progress: collections.abc.Callable | None = None,
    ) -> None:
        """
        precision: "fast" multiplies with 8-bit activations where there are kernels for it, "exact" with float32 ones. context: tokens that no sequence will exceed; 0, or more than trained: the trained context. progress: called with the bytes of weights that are loaded and of all; what it raises ends the loading.
        """
    def forward(
        self, step: Step, tokens: typing.Any, logit_rows: typing.Any
    ) -> numpy.typing.NDArray[numpy.float32]:
        """
        Runs all layers for the rows of an open step. tokens: one id per row; logit_rows: ascending row numbers. Returns their logits, float32 [len(logit_rows), vocab]. Does not finish the step. A second thread waits for its turn. Raises InvalidArgument.
        """
    @property
    def config(self) -> dict:
        """
        Numbers of the model, by the names of ModelConfig.
        """
    @property
    def layer_table(self) -> list[LayerSpec]:
        """
        list[LayerSpec] for a Cache.
        """
    @property
    def parameters(self) -> int: ...
    @property
    def recurrent_table(self) -> list[tuple[int, int]]:
        """
        list[tuple[int, int]], `recurrent` of a Cache: elements of each layer's convolution and scan.
        """
    @property
    def ropes(self) -> list[RopeParams]:
        """
        list[RopeParams] for a Cache.
        """
    @property
    def weight_bytes(self) -> int:
        """
        Resident bytes of all weights.
        """

class Sampler:
    """
    Chooses tokens. Order as in llama.cpp: logit_bias, penalties, top_n_sigma, top_k, typical_p, top_p, min_p, temperature, draw. temperature 0 is greedy; top_k 0, top_p 1, min_p 0, typical_p 1, top_n_sigma 0, penalties 0 and repeat_penalty 1 are off. Raises InvalidArgument.
    """
    def __init__(
        self,
        *,
        temperature: typing.SupportsFloat | typing.SupportsIndex = 0.800000011920929,
        top_k: int = 40,
        top_p: typing.SupportsFloat | typing.SupportsIndex = 0.949999988079071,
        min_p: typing.SupportsFloat | typing.SupportsIndex = 0.05000000074505806,
        typical_p: typing.SupportsFloat | typing.SupportsIndex = 1.0,
        top_n_sigma: typing.SupportsFloat | typing.SupportsIndex = -1.0,
        repeat_penalty: typing.SupportsFloat | typing.SupportsIndex = 1.0,
        repeat_last_n: int = 64,
        presence_penalty: typing.SupportsFloat | typing.SupportsIndex = 0.0,
        frequency_penalty: typing.SupportsFloat | typing.SupportsIndex = 0.0,
        logit_bias: dict = {},
        seed: int = 0,
    ) -> None: ...
    def sample(
        self,
        logits: typing.Annotated[numpy.typing.ArrayLike, numpy.float32],
        tokens: typing.Any = None,
        prompt_tokens: int | None = None,
    ) -> int:
        """
        Token id drawn from float32 logits [vocab]. tokens: what came before, of which the first prompt_tokens (None: all) are the prompt; the draw's number is that of the others. Without tokens nothing was seen and each call is the next draw.
        """

class EngineEvent:
    """
    What happened to one request. Counts and seconds are those so far.
    """
    def __repr__(self) -> str: ...
    @property
    def cached_tokens(self) -> int:
        """
        Prompt tokens that others had computed.
        """
    @property
    def error(self) -> str:
        """
        Reasons "failed" and "timeout": message.
        """
    @property
    def generate_seconds(self) -> float:
        """
        From there to the last token.
        """
    @property
    def generated_tokens(self) -> int: ...
    @property
    def kind(self) -> str:
        """
        "started", "token" or "finished".
        """
    @property
    def logprob(self) -> float:
        """
        Natural log, if logprobs were asked for, else 0.
        """
    @property
    def prompt_seconds(self) -> float:
        """
        From there to the first token.
        """
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def queue_seconds(self) -> float:
        """
        From submit to the first step.
        """
    @property
    def reason(self) -> str:
        """
        Kind "finished": "stop", "length", "cancelled", "timeout" or "failed"; else "none".
        """
    @property
    def request(self) -> int:
        """
        Id that submit() returned.
        """
    @property
    def token(self) -> int:
        """
        Kind "token": its id.
        """
    @property
    def top(self) -> list:
        """
        Most likely (token, logprob), most likely first.
        """

class Engine:
    """
    The step loop: a thread of its own that never takes the GIL. Limits that are None get their defaults. Raises InvalidArgument. Not usable in a forked child.
    """
    def __init__(
        self,
        model: Model,
        cache: Cache,
        *,
        parallel: int | None = None,
        batch_size: int | None = None,
        prefill_chunk: int | None = None,
        queue_length: int | None = None,
        ageing_seconds: typing.SupportsFloat | typing.SupportsIndex | None = None,
        gap_factor: typing.SupportsFloat | typing.SupportsIndex | None = None,
        draft_max: int | None = None,
        context: int = 0,
        event_capacity: int = 65536,
    ) -> None: ...
    def cancel(self, request: int) -> None:
        """
        Takes effect within a step. Unknown or ended requests: no effect.
        """
    def drain(self) -> list[EngineEvent]:
        """
        Events since the last call, oldest first.
        """
    def notify_fd(self) -> int:
        """
        Descriptor that is readable while there are events; at most one wake-up per step.
        """
    def set_limits(
        self,
        *,
        parallel: int | None = None,
        batch_size: int | None = None,
        prefill_chunk: int | None = None,
        queue_length: int | None = None,
        ageing_seconds: typing.SupportsFloat | typing.SupportsIndex | None = None,
        gap_factor: typing.SupportsFloat | typing.SupportsIndex | None = None,
        draft_max: int | None = None,
    ) -> None:
        """
        Changes the given limits between steps; the others keep their value.
        """
    def set_watermarks(
        self,
        low: typing.SupportsFloat | typing.SupportsIndex,
        high: typing.SupportsFloat | typing.SupportsIndex,
    ) -> None:
        """
        Free fractions at which reclaim starts and stops; between steps.
        """
    def snapshot(self) -> dict:
        """
        Counters and gauges as of the end of a step, as a nested dict (names of EngineSnapshot).
        """
    def start(self) -> None:
        """
        Starts the thread; no effect if it runs.
        """
    def step_once(self) -> bool:
        """
        One step in this thread, only while not started. Whether there was anything to do.
        """
    def stop(self) -> None:
        """
        Ends after the current step. Open requests finish as "cancelled"; drain() still gives their events.
        """
    def submit(
        self,
        prompt: typing.Any,
        max_tokens: int,
        *,
        temperature: typing.SupportsFloat | typing.SupportsIndex = 0.800000011920929,
        top_k: int = 40,
        top_p: typing.SupportsFloat | typing.SupportsIndex = 0.949999988079071,
        min_p: typing.SupportsFloat | typing.SupportsIndex = 0.05000000074505806,
        typical_p: typing.SupportsFloat | typing.SupportsIndex = 1.0,
        top_n_sigma: typing.SupportsFloat | typing.SupportsIndex = -1.0,
        repeat_penalty: typing.SupportsFloat | typing.SupportsIndex = 1.0,
        repeat_last_n: int = 64,
        presence_penalty: typing.SupportsFloat | typing.SupportsIndex = 0.0,
        frequency_penalty: typing.SupportsFloat | typing.SupportsIndex = 0.0,
        logit_bias: dict = {},
        seed: int = 0,
        stop_tokens: typing.Any = (),
        logprobs: int | None = None,
        name_space: int = 0,
        tenant: str = "default",
        priority: int = 0,
        use_cache: bool = True,
        choices: int = 1,
        timeout: typing.SupportsFloat | typing.SupportsIndex | None = None,
        draft_max: int | None = None,
    ) -> int:
        """
        Queues a request and returns its id, of several choices that of the first, from which the others' ids and seeds go on. max_tokens is cut to what context and pool allow. timeout: seconds to the last token. Raises InvalidArgument, or Busy if the queue is full or the engine stopped.
        """

def abandon(arg0: typing.Any) -> None:
    """
    Keeps `object` for ever. For a child process after os.fork(), where the worker threads that its destructor would join do not exist.
    """

def build_info() -> dict:
    """
    Version, compiler, build type and backend of this binary, as a dict of strings.
    """

def decode_row(
    type: str, data: typing.Annotated[numpy.typing.ArrayLike, numpy.uint8]
) -> numpy.typing.NDArray[numpy.float32]:
    """
    uint8 array in GGUF's row layout -> float32 values.
    """

def encode_row(
    type: str, values: typing.Annotated[numpy.typing.ArrayLike, numpy.float32]
) -> numpy.typing.NDArray[numpy.uint8]:
    """
    float32 values -> uint8 array in GGUF's row layout, by the rules of quant.h.
    """

def kv_types() -> list[str]:
    """
    Names of the types K and V can be stored in.
    """

def memory_plan(
    *,
    layers: collections.abc.Sequence[LayerSpec],
    cells: int,
    type_k: str = "f16",
    type_v: str = "f16",
    max_sequences: int = 16,
    step_tokens: int = 512,
    resume_bytes: int | None = None,
    recurrent: collections.abc.Sequence[
        tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]
    ] = [],
) -> dict:
    """
    What Cache.stats() of a new cache says. Nothing is reserved.
    """

def precisions() -> list[str]:
    """
    Names of the ways in which linear layers multiply (Model).
    """

def read_layer_table(gguf: GgufFile) -> list[LayerSpec]:
    """
    Model.layer_table of a file, without its weights. Raises as read_model_config.
    """

def read_model_config(gguf: GgufFile) -> dict:
    """
    Model.config of a file, without its weights. Raises UnsupportedModel, CorruptModel.
    """

def read_recurrent_table(gguf: GgufFile) -> list[tuple[int, int]]:
    """
    Model.recurrent_table of a file, without its weights. Raises as read_model_config.
    """

def top_logprobs(
    logits: typing.Annotated[numpy.typing.ArrayLike, numpy.float32], count: int
) -> list[tuple[int, float]]:
    """
    The `count` most likely (token, natural log of its probability) of float32 logits [vocab].
    """

def with_window_pools(layers: collections.abc.Sequence[LayerSpec]) -> list[LayerSpec]:
    """
    The layers, those of each window in a pool of their own, which keeps what the window reaches.
    """
