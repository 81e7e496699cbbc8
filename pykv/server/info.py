"""What the server says about itself: /health, /v1/models, /props, /slots; and what it has not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pykv.server.errors import ApiError, shown, stopping
from pykv.server.frame import FINGERPRINT
from pykv.server.llama import default_settings
from pykv.server.service import Service

if TYPE_CHECKING:
    from pykv.tokenizer import Tokenizer

UNSUPPORTED = {
    "/v1/responses": "use /v1/chat/completions",
    "/v1/embeddings": "embeddings are not supported",
    "/embedding": "embeddings are not supported",
    "/embeddings": "embeddings are not supported",
    "/v1/rerank": "reranking is not supported",
    "/rerank": "reranking is not supported",
    "/infill": "infilling is not supported",
    "/lora-adapters": "adapters are not supported",
    "/slots/{id}": "requests share one pool, nothing is kept by slot",
    "/metrics": "the admin service has /metrics, on its own port",
    "/v1/images/generations": "images are not supported",
    "/v1/audio/speech": "audio is not supported",
    "/v1/audio/transcriptions": "audio is not supported",
    "/v1/moderations": "moderation is not supported",
}
"""Paths that other servers have, and what to do instead (501)."""


async def unsupported(request: Request) -> Response:
    if "id" in request.path_params:
        _check_slot(request)
    instead = UNSUPPORTED[request.scope["route"].path]
    raise ApiError(
        501, f"{shown(request.url.path)} is not supported: {instead}.", code="unsupported"
    )


def _check_slot(request: Request) -> None:
    """Raises 404 for what `/slots` does not list: -1, 99, a name."""
    service: Service = request.app.state.service
    count = service.runtime.engine.snapshot()["limits"]["parallel"]
    name = request.path_params["id"]
    if name not in map(str, range(count)):
        message = f"There is no slot {shown(name)}; /slots lists 0 to {count - 1}."
        raise ApiError(404, message, code="not_found")


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


def _text(tokenizer: Tokenizer, token: int | None) -> str:
    return "" if token is None else tokenizer.token_text(token)


async def props(request: Request) -> Response:
    service: Service = request.app.state.service
    snapshot = service.runtime.engine.snapshot()
    cache = snapshot["cache"]
    tokenizer = service.tokenizer
    defaults = default_settings(service.limits, service.context)
    return JSONResponse(
        {
            "default_generation_settings": {"n_ctx": service.context, "params": defaults},
            "total_slots": snapshot["limits"]["parallel"],
            "model_alias": service.model_id,
            "model_path": service.model_file,
            "chat_template": service.runtime.template.source,
            "bos_token": _text(tokenizer, tokenizer.bos_id),
            "eos_token": _text(tokenizer, tokenizer.eos_id),
            "modalities": {"vision": False, "audio": False},
            "endpoint_slots": True,
            "endpoint_props": False,
            "endpoint_metrics": False,
            "is_sleeping": False,
            "build_info": FINGERPRINT,
            "kv_pools": [_pool(pool) for pool in cache["pools"]],
            "states": cache["states"],
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


def _slot(index: int, session: dict[str, Any] | None, context: int, draft: bool) -> dict[str, Any]:
    """One of the places of a step, with the request that has it."""
    slot = {
        "id": index,
        "n_ctx": context,
        "speculative": draft,
        "is_processing": session is not None,
    }
    if session is None:
        return slot
    prompt, cached = session["prompt_tokens"], session["cached_tokens"]
    return slot | {
        "id_task": session["request"],
        "n_prompt_tokens": prompt,
        "n_prompt_tokens_processed": session["computed_tokens"],
        "n_prompt_tokens_cache": cached,
        "next_token": [{"has_next_token": True, "n_decoded": session["generated_tokens"]}],
    }


async def slots(request: Request) -> Response:
    """Requests that are being computed, as llama-server shows them. There are no slots here:
    a place says nothing about what is cached."""
    service: Service = request.app.state.service
    snapshot = service.runtime.engine.snapshot()
    limits = snapshot["limits"]
    running = [each for each in snapshot["sessions"] if each["state"] != "waiting"]
    if request.query_params.get("fail_on_no_slot") and len(running) >= limits["parallel"]:
        message = "All sequences of a step are taken; requests wait their turn."
        raise ApiError(503, message, code="no_slot", retry_after=1)
    free = [None] * (limits["parallel"] - len(running))
    draft = limits["draft_max"] > 0
    return JSONResponse(
        [
            _slot(index, session, service.context, draft)
            for index, session in enumerate([*running, *free])
        ]
    )
