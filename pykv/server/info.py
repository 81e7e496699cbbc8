"""What the server says about itself: /health, /v1/models, /props; and what it has not."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pykv.server.errors import ApiError, stopping
from pykv.server.frame import FINGERPRINT
from pykv.server.service import Service

UNSUPPORTED = {
    "/v1/responses": "use /v1/chat/completions",
    "/v1/embeddings": "embeddings are not supported",
    "/embedding": "embeddings are not supported",
    "/embeddings": "embeddings are not supported",
    "/v1/rerank": "reranking is not supported",
    "/rerank": "reranking is not supported",
    "/completion": "use /v1/completions",
    "/infill": "infilling is not supported",
    "/lora-adapters": "adapters are not supported",
    "/slots": "requests share one pool; the admin service shows its sessions",
    "/metrics": "the admin service has /metrics, on its own port",
    "/v1/images/generations": "images are not supported",
    "/v1/audio/speech": "audio is not supported",
    "/v1/audio/transcriptions": "audio is not supported",
    "/v1/moderations": "moderation is not supported",
}
"""Paths that other servers have, and what to do instead (501)."""


async def unsupported(request: Request) -> Response:
    instead = UNSUPPORTED[request.url.path]
    raise ApiError(501, f"{request.url.path} is not supported: {instead}.", code="unsupported")


async def health(request: Request) -> Response:
    service: Service = request.app.state.service
    if service.stopping:
        raise stopping()
    return JSONResponse({"status": "ok"})


def _model(service: Service) -> dict[str, Any]:
    model = service.runtime.model
    return {
        "id": service.model_id,
        "object": "model",
        "created": service.created,
        "owned_by": "pykv",
        "meta": {
            "n_vocab": service.vocab,
            "n_ctx": service.context,
            "n_ctx_train": service.model_context,
            "n_params": model.parameters,
            "size": model.weight_bytes,
        },
    }


async def models(request: Request) -> Response:
    return JSONResponse({"object": "list", "data": [_model(request.app.state.service)]})


async def model(request: Request) -> Response:
    service: Service = request.app.state.service
    service.check_model(request.path_params["name"])
    return JSONResponse(_model(service))


def _pool(pool: dict[str, Any]) -> dict[str, Any]:
    """One pool of KV cells: what its layers see, and its cells by state."""
    names = ("layers", "bytes_per_cell", "bytes_reserved", "bytes_committed")
    states = {key: value for key, value in pool.items() if key.startswith("cells_")}
    return {"window": pool["window"], **{name: pool[name] for name in names}, **states}


async def props(request: Request) -> Response:
    service: Service = request.app.state.service
    snapshot = service.runtime.engine.snapshot()
    cache = snapshot["cache"]
    return JSONResponse(
        {
            "default_generation_settings": {"n_ctx": service.context},
            "total_slots": snapshot["limits"]["parallel"],
            "model_alias": service.model_id,
            "modalities": {"vision": False, "audio": False},
            "build_info": FINGERPRINT,
            "kv_pools": [_pool(pool) for pool in cache["pools"]],
            "resume_points": {
                name: cache[key]
                for name, key in (
                    ("count", "resume_points"),
                    ("bytes", "resume_bytes"),
                    ("bytes_budget", "resume_bytes_budget"),
                )
            },
        }
    )
