"""How many cells a pool gets: what is asked for, or what the memory allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pykv import _core

# Default pool: this share of what is free after the weights, and at most so many contexts.
POOL_SHARE = 0.60
POOL_CONTEXTS = 64
MAX_PLANNED = 1 << 27  # cells of a cache at most
POOL_CELLS_WITHOUT_KV = 1 << 20


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """The part of RuntimeOptions that bounds the pools; 0 means as memory allows, None of
    `resume_bytes` a tenth of the pool."""

    ctx_size: int = 0
    pool_bytes: int = 0
    parallel: int = 16
    batch_size: int = 256
    swa_full: bool = False
    resume_bytes: int | None = None
    recurrent: Sequence[tuple[int, int]] = ()  # states of the model's layers


def pool_layers(
    layers: Sequence[_core.LayerSpec], request: PoolRequest
) -> Sequence[_core.LayerSpec]:
    """The layers of a model in pools: those of a window have one of their own, unless they are
    to keep all tokens."""
    return layers if request.swa_full else _core.with_window_pools(layers)


def memory_plan(
    layers: Sequence[_core.LayerSpec], request: PoolRequest, type_k: str, type_v: str, cells: int
) -> dict[str, Any]:
    """What ``Cache.stats()`` of a new cache of so many cells says: its pools, its slots for
    recurrent states, its budget of resume points."""
    plan: dict[str, Any] = _core.memory_plan(
        layers=pool_layers(layers, request),
        cells=cells,
        type_k=type_k,
        type_v=type_v,
        max_sequences=request.parallel,
        step_tokens=request.batch_size,
        resume_bytes=request.resume_bytes,
        recurrent=list(request.recurrent),
    )
    return plan


def bytes_per_cell(
    layers: Sequence[_core.LayerSpec], request: PoolRequest, type_k: str, type_v: str
) -> int:
    """K and V of one token in the layers that keep all tokens, stored in these types."""
    per_cell: int = memory_plan(layers, request, type_k, type_v, 1)["bytes_per_cell"]
    return per_cell


def bytes_beside(
    layers: Sequence[_core.LayerSpec], request: PoolRequest, type_k: str, type_v: str
) -> Callable[[int], int]:
    """Bytes beside the pool of all tokens, by its cells: of what windows reach, of recurrent
    states and of the resume points of both."""

    def size(cells: int) -> int:
        plan = memory_plan(layers, request, type_k, type_v, max(1, min(cells, MAX_PLANNED)))
        total: int = plan["bytes_reserved"] - plan["pools"][0]["bytes_reserved"]
        return total

    return size


def pool_cells(
    request: PoolRequest,
    per_cell: int,
    context: int,
    free: int,
    beside: Callable[[int], int] = lambda cells: 0,
) -> int:
    """Cells of the pool.

    Args:
        per_cell: bytes of one cell.
        context: tokens of the model's context.
        free: bytes that may be used, beside the weights.
        beside: bytes of windows and states, by the cells of the pool.

    Raises:
        pykv.InvalidArgument: it does not fit; the message names the flag to change.
    """
    if request.pool_bytes > free:
        raise _refusal(
            f"--pool-bytes {request.pool_bytes} is more than the {free} bytes that are free"
        )
    if per_cell == 0:
        return _counting_cells(request, context, free, beside)
    if request.ctx_size == 0:
        return _default_cells(request, per_cell, context, free, beside)
    needed = request.ctx_size * per_cell + beside(request.ctx_size)
    if not request.pool_bytes and needed > free:
        raise _refusal(
            f"--ctx-size {request.ctx_size} needs {needed} bytes of memory and {free} are free; "
            f"use at most --ctx-size {max(_affordable(free, per_cell, beside), 1)}, or a smaller "
            "--cache-type-k "
            "and --cache-type-v"
        )
    return request.ctx_size


def _affordable(budget: int, per_cell: int, beside: Callable[[int], int]) -> int:
    """The most cells that fit, with what is beside them, which grows with them."""
    low, high = 0, budget // per_cell
    if beside(1) == 0:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if middle * per_cell + beside(middle) <= budget:
            low = middle
        else:
            high = middle - 1
    return low


def _default_cells(
    request: PoolRequest, per_cell: int, context: int, free: int, beside: Callable[[int], int]
) -> int:
    what, budget = _budget(request, free)
    cells = _affordable(budget, per_cell, beside)
    if cells < context:
        fewer = "lower --parallel or --resume-bytes, " if beside(context) else ""
        shorter = f", or set --ctx-size {cells} for shorter requests" if cells else ""
        raise _refusal(
            f"{what} holds {cells} cells of {per_cell} bytes, not one context of {context} "
            f"tokens; free memory, raise --pool-bytes, {fewer}use --cache-type-k q8_0 and "
            f"--cache-type-v q8_0{shorter}"
        )
    return min(cells, POOL_CONTEXTS * context)


def _counting_cells(
    request: PoolRequest, context: int, free: int, beside: Callable[[int], int]
) -> int:
    """Of a model without K and V, whose cells only count tokens and take no memory."""
    cells = request.ctx_size or max(context, POOL_CELLS_WITHOUT_KV)
    what, budget = _budget(request, free)
    if beside(cells) > budget:
        raise _refusal(
            f"the states of {request.parallel} sequences and their resume points take "
            f"{beside(cells)} bytes, more than {what}; free memory, raise --pool-bytes, or lower "
            "--parallel or --resume-bytes"
        )
    return cells


def _budget(request: PoolRequest, free: int) -> tuple[str, int]:
    """Bytes that a pool may take, and what they are called."""
    if request.pool_bytes:
        return f"--pool-bytes {request.pool_bytes}", request.pool_bytes
    budget = int(free * POOL_SHARE)
    return f"{POOL_SHARE:.0%} of the free memory ({budget} bytes)", budget


def _refusal(message: str) -> _core.InvalidArgument:
    return _core.InvalidArgument(f"[Runtime.open] {message}")
