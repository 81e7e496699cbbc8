"""How many cells a pool gets: what is asked for, or what the memory allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pykv import _core

# Default pool: this share of what is free after the weights, and at most so many contexts.
POOL_SHARE = 0.60
POOL_CONTEXTS = 64


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """The part of RuntimeOptions that bounds the pool; 0 means as memory allows."""

    ctx_size: int = 0
    pool_bytes: int = 0


def bytes_per_cell(
    layers: Sequence[_core.LayerSpec], backend: _core.Backend, type_k: str, type_v: str
) -> int:
    """K and V of one token in all layers, stored in these types."""
    probe = _core.Cache(layers=layers, backend=backend, cells=1, type_k=type_k, type_v=type_v)
    per_cell: int = probe.stats()["bytes_per_cell"]
    return per_cell


def pool_cells(request: PoolRequest, per_cell: int, context: int, free: int) -> int:
    """Cells of the pool.

    Args:
        per_cell: bytes of one cell.
        context: tokens of the model's context.
        free: bytes that may be used, beside the weights.

    Raises:
        pykv.InvalidArgument: it does not fit; the message names the flag to change.
    """
    if request.pool_bytes > free:
        raise _refusal(
            f"--pool-bytes {request.pool_bytes} is more than the {free} bytes that are free"
        )
    if request.ctx_size == 0:
        return _default_cells(request, per_cell, context, free)
    needed = request.ctx_size * per_cell
    if not request.pool_bytes and needed > free:
        raise _refusal(
            f"--ctx-size {request.ctx_size} needs {needed} bytes of memory and {free} are free; "
            f"use at most --ctx-size {max(free // per_cell, 1)}, or a smaller --cache-type-k "
            "and --cache-type-v"
        )
    return request.ctx_size


def _default_cells(request: PoolRequest, per_cell: int, context: int, free: int) -> int:
    budget = request.pool_bytes or int(free * POOL_SHARE)
    cells = budget // per_cell
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
