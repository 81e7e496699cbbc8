"""Sequences that leave a cache and come back, in that one or another with the same layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pykv import _core

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pykv.cache import Cache
    from pykv.cache_types import Layer

    Bytes = npt.NDArray[np.uint8]
    Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Saved:
    """What :meth:`Cache.save` gave: NumPy arrays and numbers, to be kept where you like."""

    count: int
    """Tokens."""
    exact: bool
    """Whether a cold run of these tokens would give the same; else they are never matched."""
    layers: tuple[Layer, ...]
    types: tuple[str, str]
    transforms: tuple[tuple[int, int], ...]
    rows: tuple[tuple[Bytes, Bytes] | None, ...]
    """Of each layer K and V of the tokens it keeps; ``None`` where it stores none."""
    states: tuple[Floats | None, ...]
    """Of each recurrent layer its state after the last token."""


class Restored(NamedTuple):
    """What :meth:`Cache.restore` made."""

    sequence: int
    reusable: int
    """Tokens that others can continue from, now: all of them, or 0 if no ids were given."""


def save(cache: Cache, sequence: int) -> Saved:
    core = cache.core
    count = cache.bounds(sequence).end
    held = sum(run.length for run in cache.runs(sequence))
    if count == 0 or held != count:
        raise _core.InvalidArgument(
            f"[Cache.save] sequence {sequence} has {held} tokens up to position {count}; it must "
            "have one at each position from 0 on, and one at least"
        )
    specs = core.layers
    return Saved(
        count,
        exact=core.exact_upto(sequence) == count,
        rows=tuple(
            core.export_rows(sequence, layer, (_kept_from(spec, count), count))
            if _stores(spec)
            else None
            for layer, spec in enumerate(specs)
        ),
        states=tuple(
            None if layer.state is None else core.export_state(sequence, index)
            for index, layer in enumerate(cache.layers)
        ),
        layers=cache.layers,
        types=(core.type_k, core.type_v),
        transforms=_transforms(cache),
    )


def restore(cache: Cache, saved: Saved, tokens: Any, namespace: int) -> Restored:
    _check_fits(cache, saved, tokens)
    sequence = cache.create(namespace)
    try:
        plan = cache.core.plan_import(sequence, saved.count, tokens)
        with cache.step(plan) as step:
            for layer, spec in enumerate(cache.core.layers):
                rows, state = saved.rows[layer], saved.states[layer]
                if rows is not None:
                    unseen = len(rows[0]) - (saved.count - _kept_from(spec, saved.count))
                    step.import_rows(layer, rows[0][unseen:], rows[1][unseen:])
                if state is not None:
                    step.write_states(layer, state[None])
        if tokens is None:
            return Restored(sequence, 0)
        cache.mark_resume(sequence)
        return Restored(sequence, cache.match(tokens, namespace))
    except BaseException:
        cache.erase(sequence)
        raise


def _check_fits(cache: Cache, saved: Saved, tokens: Any) -> None:
    if not isinstance(saved, Saved):
        raise TypeError(
            f"[Cache.restore] what save() gave is needed, a Saved, not {type(saved).__name__}"
        )
    _check_same("number of layers", len(saved.layers), len(cache.layers))
    for layer, (was, own) in enumerate(zip(saved.layers, cache.layers, strict=True)):
        _check_same(f"layer {layer}", was, own)
    _check_same("types of K and V", saved.types, (cache.core.type_k, cache.core.type_v))
    _check_same("transforms", saved.transforms, _transforms(cache))
    for layer, (spec, rows) in enumerate(zip(cache.core.layers, saved.rows, strict=True)):
        kept = saved.count - _kept_from(spec, saved.count)
        if rows is not None and len(rows[0]) < kept:
            raise _core.InvalidArgument(
                f"[Cache.restore] of layer {layer} {len(rows[0])} tokens were saved, this cache "
                f"keeps {kept} (CacheConfig.windows)"
            )
    if tokens is None:
        return
    if not saved.exact:
        raise _core.InvalidArgument(
            "[Cache.restore] what was saved is not what a cold run of its tokens gives (it was "
            "edited, or appended without ids); give no tokens"
        )
    if len(tokens) != saved.count:
        raise _core.InvalidArgument(
            f"[Cache.restore] {len(tokens)} tokens were given, {saved.count} were saved"
        )


def _check_same(what: str, was: Any, own: Any) -> None:
    if was != own:
        raise _core.InvalidArgument(
            f"[Cache.restore] {what}: saved was {was}, this cache has {own}; restore into a cache "
            "of the same model and types"
        )


def _transforms(cache: Cache) -> tuple[tuple[int, int], ...]:
    return tuple(cache.core.transforms(layer) for layer in range(len(cache.layers)))


def _stores(spec: _core.LayerSpec) -> bool:
    return spec.kv_heads > 0 and spec.kv_from_layer is None


def _kept_from(spec: _core.LayerSpec, end: int) -> int:
    """The first of `end` tokens that a cache must have of a layer to go on; `end`: none."""
    if spec.pool == 0:
        return 0
    if spec.window_kind == "standard":
        return max(0, end - spec.window_size + 1)
    return end // spec.window_size * spec.window_size
