"""POST /v1/chat/completions, POST /v1/completions and llama-server's POST /completion."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pykv.server.answer import Answer, close_all, collect_all, merge, open_answers, unless_gone
from pykv.server.frame import ChatFrame, CompletionFrame, Frame
from pykv.server.llama import LlamaFrame, parse_llama
from pykv.server.service import Service
from pykv.server.settings import Settings, parse_chat, parse_completion
from pykv.server.sse import EventStream


async def _stream(answers: Sequence[Answer], frame: Frame) -> AsyncGenerator[bytes, None]:
    for data in frame.opening(len(answers)):
        yield data
    async with aclosing(merge(answers)) as parts:
        async for index, part in parts:
            yield frame.event(index, answers[index], part)
    for data in frame.closing(answers):
        yield data


async def _reply(
    request: Request,
    frame: Frame,
    settings: Settings,
    open_all: Callable[[], Awaitable[list[Answer]]],
) -> Response:
    if settings.stream:
        answers = await unless_gone(request.receive, open_all)
        events = _stream(answers, frame)
        return EventStream(events, lambda: close_all(answers))

    async def whole() -> Any:
        answers = await open_all()
        return frame.whole(answers, await collect_all(answers))

    return JSONResponse(await unless_gone(request.receive, whole))


async def chat_completions(request: Request) -> Response:
    service: Service = request.app.state.service
    parsed = parse_chat(await service.bodies.read_object(request), service.limits)
    settings = parsed.settings
    service.check_model(settings.model)

    async def open_all() -> list[Answer]:
        text = await service.render(parsed.messages)
        prompt = await service.chat_tokens(text, "messages", settings)
        return await open_answers(service, [prompt], settings)

    return await _reply(request, ChatFrame(service, settings), settings, open_all)


async def completions(request: Request) -> Response:
    service: Service = request.app.state.service
    body = await service.bodies.read_object(request)
    parsed = parse_completion(body, service.limits, service.vocab)
    settings = parsed.settings
    service.check_model(settings.model)

    async def open_all() -> list[Answer]:
        prompts = [await service.prompt_tokens(each, "prompt") for each in parsed.prompts]
        return await open_answers(service, prompts, settings)

    return await _reply(request, CompletionFrame(service, settings), settings, open_all)


async def llama_completion(request: Request) -> Response:
    service: Service = request.app.state.service
    body = await service.bodies.read_object(request)
    parsed = parse_llama(body, service.limits, service.vocab)
    settings = parsed.settings
    service.check_model(settings.model)

    async def open_all() -> list[Answer]:
        prompts = [await service.mixed_tokens(each, "prompt", settings) for each in parsed.prompts]
        return await open_answers(service, prompts, settings)

    return await _reply(request, LlamaFrame(service, parsed), settings, open_all)
