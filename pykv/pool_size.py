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
    """The part of RuntimeOptions that bounds the pools; 0 means as memory allows."""

    ctx_size: int = 0
    pool_bytes: int = 0
    parallel: int = 16
    batch_size: int = 256
    swa_full: bool = False
    recurrent: Sequence[tuple[int, int]] = ()  # states of the model's layers


def pool_layers(
    layers: Sequence[_core.LayerSpec], request: PoolRequest
) -> Sequence[_core.LayerSpec]:
    """The layers of a model in pools: those of a window have one of their own, unless they are
    to keep all tokens."""
    return layers if request.swa_full else _core.with_window_pools(layers)


def pool_plan(
    layers: Sequence[_core.LayerSpec], request: PoolRequest, type_k: str, type_v: str, cells: int
) -> list[dict[str, Any]]:
    """The pools that a cache of so many cells has, as in ``Cache.stats()["pools"]``."""
    return _core.pool_plan(
        layers=pool_layers(layers, request),
        cells=cells,
        type_k=type_k,
        type_v=type_v,
        max_sequences=request.parallel,
        step_tokens=request.batch_size,
        recurrent=list(request.recurrent),
    )


def bytes_per_cell(
    layers: Sequence[_core.LayerSpec], request: PoolRequest, type_k: str, type_v: str
) -> int:
    """K and V of one token in the layers that keep all tokens, stored in these types."""
    per_cell: int = pool_plan(layers, request, type_k, type_v, 1)[0]["bytes_per_cell"]
    return per_cell


def window_bytes(
    layers: Sequence[_core.LayerSpec], request: PoolRequest, type_k: str, type_v: str
) -> Callable[[int], int]:
    """Bytes of the other pools, which keep what windows reach, by the cells of the first."""

    def size(cells: int) -> int:
        plan = pool_plan(layers, request, type_k, type_v, max(1, min(cells, MAX_PLANNED)))
        return sum(pool["bytes_reserved"] for pool in plan[1:])

    return size


def pool_cells(
    request: PoolRequest,
    per_cell: int,
    context: int,
    free: int,
    windows: Callable[[int], int] = lambda cells: 0,
) -> int:
    """Cells of the pool.

    Args:
        per_cell: bytes of one cell.
        context: tokens of the model's context.
        free: bytes that may be used, beside the weights.
        windows: bytes of the pools of windows, by the cells of the pool.

    Raises:
        pykv.InvalidArgument: it does not fit; the message names the flag to change.
    """
    if request.pool_bytes > free:
        raise _refusal(
            f"--pool-bytes {request.pool_bytes} is more than the {free} bytes that are free"
        )
    if request.ctx_size == 0:
        return _default_cells(request, per_cell, context, free, windows)
    needed = request.ctx_size * per_cell + windows(request.ctx_size)
    if per_cell and not request.pool_bytes and needed > free:
        raise _refusal(
            f"--ctx-size {request.ctx_size} needs {needed} bytes of memory and {free} are free; "
            f"use at most --ctx-size {max(_affordable(free, per_cell, windows), 1)}, or a smaller "
            "--cache-type-k "
            "and --cache-type-v"
        )
    return request.ctx_size


def _affordable(budget: int, per_cell: int, windows: Callable[[int], int]) -> int:
    """The most cells that fit, with the pools of windows, which grow with them."""
    low, high = 0, budget // per_cell
    if windows(1) == 0:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if middle * per_cell + windows(middle) <= budget:
            low = middle
        else:
            high = middle - 1
    return low


def _default_cells(
    request: PoolRequest, per_cell: int, context: int, free: int, windows: Callable[[int], int]
) -> int:
    if per_cell == 0:  # cells that only count tokens
        return max(context, POOL_CELLS_WITHOUT_KV)
    budget = request.pool_bytes or int(free * POOL_SHARE)
    cells = _affordable(budget, per_cell, windows)
    if cells < context:
        what = (
            f"--pool-bytes {budget}"
            if request.pool_bytes
            else f"{POOL_SHARE:.0%} of the free memory ({budget} bytes)"
        )
        raise _refusal(
            f"{what} holds {cells} cells of {per_cell} bytes, not one context of {context} "
            "tokens; free memory, raise --pool-bytes, use --cache-type-k q8_0 and "
            f"--cache-type-v q8_0, or set --ctx-size {max(cells, 1)} for shorter requests"
        )
    return min(cells, POOL_CONTEXTS * context)


def _refusal(message: str) -> _core.InvalidArgument:
    return _core.InvalidArgument(f"[Runtime.open] {message}")
