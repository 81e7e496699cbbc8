"""Between the public description of layers and the core's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pykv import _core
from pykv.arguments import boolean, finite, integer, reals
from pykv.cache_types import Layer, Rope


def core_layers(
    layers: Sequence[Layer], windows: str = "full"
) -> tuple[list[_core.LayerSpec], list[_core.RopeParams]]:
    """The layer table, and the rotary embeddings that its ``rope_id`` count."""
    if windows not in ("own_pool", "full"):
        raise _core.InvalidArgument(
            f"[CacheConfig] windows is {windows!r}, must be 'own_pool' or 'full'"
        )
    if isinstance(layers, Layer) or not isinstance(layers, Iterable):
        raise TypeError(
            f"[CacheConfig] layers must be a sequence of Layer, not {type(layers).__name__}"
        )
    layers = list(layers)
    for index, layer in enumerate(layers):
        if not isinstance(layer, Layer):
            raise TypeError(
                f"[CacheConfig] layers[{index}] must be a Layer, not {type(layer).__name__}"
            )
    ropes: list[Rope] = []
    for layer in layers:
        if layer.rope is not None and layer.rope not in ropes:
            ropes.append(layer.rope)
    specs = [
        # A rope_id beyond the list means unknown.
        _layer_spec(layer, len(ropes) if layer.rope is None else ropes.index(layer.rope))
        for layer in layers
    ]
    if windows == "own_pool":
        specs = _core.with_window_pools(specs)
    return specs, [_rope_params(rope) for rope in ropes]


def core_states(layers: Sequence[Layer]) -> list[tuple[int, int]]:
    """Elements of each layer's state; empty if no layer has one."""
    states = [_state(layer.state) for layer in layers]
    return states if any(state != (0, 0) for state in states) else []


def _state(state: tuple[int, int] | None) -> tuple[int, int]:
    if state is None:
        return 0, 0
    if not isinstance(state, (tuple, list)) or len(state) != 2:
        raise TypeError(f"[Layer] state must be (convolution, scan) or None, not {state!r}")
    return integer("[Layer] state", state[0], 0), integer("[Layer] state", state[1], 0)


def public_layers(core: _core.Cache) -> tuple[Layer, ...]:
    """The layers of a core cache, as they would be described to make it."""
    ropes = [
        Rope(r.dims, r.base, r.interleaved, tuple(r.frequencies), r.offset) for r in core.ropes
    ]
    states = core.recurrent or [(0, 0)] * len(core.layers)
    return tuple(
        _public_layer(spec, ropes, None if state == (0, 0) else state)
        for spec, state in zip(core.layers, states, strict=True)
    )


def _public_layer(
    spec: _core.LayerSpec, ropes: Sequence[Rope], state: tuple[int, int] | None
) -> Layer:
    if spec.kv_heads == 0:
        return Layer(0, 0, 0, state=state)
    return Layer(
        kv_heads=spec.kv_heads,
        k_dim=spec.k_dim,
        v_dim=spec.v_dim,
        window=None if spec.window_size == 0 else (spec.window_kind, spec.window_size),
        rope=ropes[spec.rope_id] if spec.rope_id < len(ropes) else None,
        sinks=spec.sinks,
        v_view_of_k=spec.v_view_of_k,
        kv_from_layer=spec.kv_from_layer,
        state=state,
    )


def _layer_spec(layer: Layer, rope_id: int) -> _core.LayerSpec:
    if layer.state is not None and layer.kv_heads == 0:
        if replace(layer, state=None) != Layer(0, 0, 0):
            raise _core.InvalidArgument(
                "[Layer] kv_heads is 0; without K and V it is Layer.recurrent(convolution, scan)"
            )
        return _core.LayerSpec(kv_heads=0, k_dim=0)
    kind, size = _window(layer.window)
    source = layer.kv_from_layer
    return _core.LayerSpec(
        kv_heads=integer("[Layer] kv_heads", layer.kv_heads, 1),
        k_dim=integer("[Layer] k_dim", layer.k_dim, 1),
        v_dim=integer("[Layer] v_dim", layer.v_dim, 1),
        v_view_of_k=boolean("[Layer] v_view_of_k", layer.v_view_of_k),
        kv_from_layer=None if source is None else integer("[Layer] kv_from_layer", source, 0),
        window_kind=kind,
        window_size=size,
        rope_id=rope_id,
        sinks=boolean("[Layer] sinks", layer.sinks),
    )


def _window(window: tuple[str, int] | None) -> tuple[str, int]:
    if window is None:
        return "none", 0
    if not isinstance(window, (tuple, list)) or len(window) != 2 or not isinstance(window[0], str):
        raise TypeError(f"[Layer] window must be (kind, size) or None, not {window!r}")
    if window[0] == "none":
        raise _core.InvalidArgument("[Layer] window kind is 'none'; write window=None")
    return window[0], integer("[Layer] window size", window[1], 1)


def _rope_params(rope: Rope) -> _core.RopeParams:
    if not isinstance(rope, Rope):
        raise TypeError(f"[Layer] rope must be a Rope or None, not {type(rope).__name__}")
    return _core.RopeParams(
        dims=integer("[Rope] dims", rope.dims, 0),
        base=finite("[Rope] base", rope.base),
        interleaved=boolean("[Rope] interleaved", rope.interleaved),
        frequencies=reals("[Rope] frequencies", rope.frequencies),
        offset=integer("[Rope] offset", rope.offset, 0),
    )
