"""What a model file says of itself, and how much memory it needs, without its weights.

facts = ModelFacts(_core.GgufFile(path))
facts.memory_plan(backend, free=free_bytes())
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pykv import _core
from pykv.pool_size import PoolRequest, bytes_beside, bytes_per_cell, memory_plan, pool_cells

_MAX_LAYERS = 1024
_MAX_HEADS = 1 << 16


@dataclass(frozen=True, slots=True)
class TensorTypes:
    """The tensors of one type; `bytes` is None for a type that this build cannot read."""

    type: str
    tensors: int
    parameters: int
    bytes: int | None


@dataclass(frozen=True, slots=True)
class KvPlan:
    """The memory of a cache with K and V of one type.

    Attributes:
        bytes_per_token: of the layers that keep all tokens.
        context_bytes: of one whole context, in all layers.
        pools: what is reserved with `default_cells`, or for one context if that is 0, as in
            `Cache.stats()["pools"]`.
        states: likewise the slots for recurrent states, as in `Cache.stats()["states"]`.
        resume_bytes: of both for resume points.
        bytes_reserved: in pools and slots.
        default_cells: of the pool that `pykv serve` makes by default; 0 if it refuses to.
        refusal: why, and which flag to change; "" if it fits.
    """

    type_k: str
    type_v: str
    bytes_per_token: int
    context_bytes: int
    default_cells: int
    refusal: str
    pools: list[dict[str, Any]]
    states: dict[str, int]
    resume_bytes: int
    bytes_reserved: int
    contexts: dict[int, int]  # bytes by tokens of one sequence


class ModelFacts:
    """Facts of an open GGUF file. Architectures that the engine does not support are
    described by their metadata.

    Attributes:
        architecture: `general.architecture`.
        unsupported: why the engine cannot run it, "" if it can.
        estimated: whether `layers` was read from the metadata only: windows and shared
            layers, which need less, are counted in full.
        layers: K and V of each layer; empty if the metadata does not say.
        recurrent: elements of the states of each layer; empty if no layer has one.
        context: tokens it was trained for, 0 if unknown.
        parameters: numbers in all tensors.
        weight_bytes: what its tensors take in the file.
    """

    def __init__(self, gguf: _core.GgufFile) -> None:
        self.gguf = gguf
        self.architecture = str(gguf.scalar("general.architecture") or "")
        self.context = self._number("context_length") or 0
        self.unsupported, self.estimated = "", False
        self.recurrent: list[tuple[int, int]] = []
        try:
            self.layers = _core.read_layer_table(gguf)
            self.recurrent = _core.read_recurrent_table(gguf)
        except (_core.UnsupportedModel, _core.CorruptModel) as error:
            self.unsupported, self.estimated = str(error), True
            self.layers = self._layers()
        tensors = gguf.tensors()
        self.parameters = sum(math.prod(tensor.shape) for tensor in tensors)
        self.weight_bytes = sum(tensor.nbytes for tensor in tensors)
        if any(tensor.nbytes == 0 for tensor in tensors):
            self.weight_bytes = gguf.size
            kinds = sorted({tensor.type_name for tensor in tensors if tensor.nbytes == 0})
            self.unsupported = self.unsupported or (
                f"[Model.load] tensors of type {', '.join(kinds)} cannot be read by this build"
            )

    def metadata(self) -> dict[str, Any]:
        """Every key: its value, or for arrays their number of elements as `[n]`."""
        found: dict[str, Any] = {}
        for key in self.gguf.keys():  # noqa: SIM118
            count = self.gguf.array_size(key)
            found[key] = self.gguf.scalar(key) if count is None else [count]
        return found

    def tensor_types(self) -> list[TensorTypes]:
        """One entry per type, most parameters first."""
        count: Counter[str] = Counter()
        parameters: Counter[str] = Counter()
        size: Counter[str] = Counter()
        for tensor in self.gguf.tensors():
            count[tensor.type_name] += 1
            parameters[tensor.type_name] += math.prod(tensor.shape)
            size[tensor.type_name] += tensor.nbytes
        return [
            TensorTypes(kind, count[kind], total, size[kind] or None)
            for kind, total in parameters.most_common()
        ]

    def kv_plan(
        self,
        type_k: str,
        type_v: str,
        *,
        free: int,
        request: PoolRequest | None = None,
        contexts: Sequence[int] = (),
    ) -> KvPlan | None:
        """What pools of these types take when `free` bytes are free beside the weights, and what
        one sequence of so many tokens does. None if the file does not say enough."""
        if not self.layers or not self.context:
            return None
        request = replace(request or PoolRequest(), recurrent=tuple(self.recurrent))
        of = self.layers, request, type_k, type_v
        per_token = bytes_per_cell(*of)
        cells, refusal = 0, ""
        try:
            cells = pool_cells(request, per_token, self.context, max(0, free), bytes_beside(*of))
        except _core.InvalidArgument as error:
            refusal = str(error)
        lengths = {n: self._sequence_bytes(*of, n) for n in (*contexts, self.context)}
        plan = memory_plan(*of, cells or self.context)
        return KvPlan(
            type_k=type_k,
            type_v=type_v,
            bytes_per_token=per_token,
            context_bytes=lengths[self.context],
            default_cells=cells,
            refusal=refusal,
            pools=plan["pools"],
            states=plan["states"],
            resume_bytes=plan["resume_bytes_budget"],
            bytes_reserved=plan["bytes_reserved"],
            contexts=lengths,
        )

    @staticmethod
    def _sequence_bytes(
        layers: Sequence[_core.LayerSpec],
        request: PoolRequest,
        type_k: str,
        type_v: str,
        tokens: int,
    ) -> int:
        """K and V of one sequence, in pools of windows what its next token sees, and its state."""
        plan = memory_plan(layers, request, type_k, type_v, tokens)
        total: int = plan["states"]["bytes_per_slot"]
        for pool in plan["pools"]:
            seen = tokens if pool["window"] is None else min(tokens, pool["window"][1])
            total += seen * pool["bytes_per_cell"]
        return total

    def _number(self, name: str) -> int | None:
        """An integer of the architecture, or the largest of an array."""
        key = f"{self.architecture}.{name}"
        value = self.gguf.scalar(key)
        if value is None and self.gguf.array_size(key):
            value = max(map(int, self.gguf.integer_array(key)))
        valid = isinstance(value, int) and not isinstance(value, bool) and value > 0
        return value if valid else None

    def _layers(self) -> list[_core.LayerSpec]:
        count, heads = self._number("block_count"), self._number("attention.head_count")
        width = self._number("embedding_length")
        kv_heads = self._number("attention.head_count_kv") or heads
        by_width = width // heads if width and heads else None
        k_dim = self._number("attention.key_length") or by_width
        v_dim = self._number("attention.value_length") or by_width
        if not (count and kv_heads and k_dim and v_dim):
            return []
        if count > _MAX_LAYERS or kv_heads > _MAX_HEADS:
            return []
        try:
            spec = _core.LayerSpec(kv_heads=kv_heads, k_dim=k_dim, v_dim=v_dim)
        except (ValueError, TypeError):  # beyond what a layer can have
            return []
        return [spec] * count
