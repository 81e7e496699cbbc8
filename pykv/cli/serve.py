"""`pykv serve`: the model behind an HTTP API, with the admin service beside it."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import socket
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NoReturn

from pykv.cli import config
from pykv.cli.options import (
    ADMIN_PORT,
    ALIAS,
    BATCH_SIZE,
    DEFAULT_PRIORITY,
    DEFAULT_TIMEOUT,
    DRAFT_MAX,
    HOST,
    MODEL,
    PARALLEL,
    POOL,
    PORT,
    PRECISION,
    RESUME_SPACING,
    THREADS,
    VERBOSE,
)

if TYPE_CHECKING:
    from pykv.runtime import Runtime

EXAMPLES = """examples:
  pykv serve                                  the default model on http://127.0.0.1:8080
  pykv serve -m model.gguf -c 65536 -np 32    65,536 cells, 32 requests decoded at a time
  pykv serve -ctk q8_0 -ctv q8_0              about half the memory for each cell
  pykv serve --draft-max 8                    guess ahead where texts repeat themselves
  pykv serve --host 0.0.0.0 --port 9000       for other machines; the dashboard stays local
  pykv serve --config pykv.toml --print-config  where each value comes from, without serving
"""

ADMIN_HOST = "127.0.0.1"


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "serve",
        help="serve a model: OpenAI-compatible API and dashboard",
        description="Serves a GGUF model to many users from one KV pool.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    config.declare(
        parser,
        {
            "": (MODEL, ALIAS, PRECISION, THREADS, VERBOSE),
            "addresses": (HOST, PORT, ADMIN_PORT),
            "requests": (PARALLEL, BATCH_SIZE, DRAFT_MAX, DEFAULT_PRIORITY, DEFAULT_TIMEOUT),
            "KV cache": (*POOL, RESUME_SPACING),
        },
        json_help="print addresses and pool as one line of JSON when ready",
        positional="the same as --model",
    )


def _check(args: argparse.Namespace) -> None:
    """What no single flag shows. Ends with exit code 2."""
    if args.batch_size < args.parallel:
        args.usage_error(
            f"--batch-size {args.batch_size} is below --parallel {args.parallel}: each "
            "generating request needs one token of every step"
        )
    same_address = args.host in (ADMIN_HOST, "localhost", "0.0.0.0", "::")
    if args.port == args.admin_port != 0 and same_address:
        args.usage_error(f"--port and --admin-port are both {args.port}")


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _open_runtime(args: argparse.Namespace, model: str) -> Runtime:
    from pykv.runtime import Runtime, RuntimeOptions

    _say(f"Loading {model} …")
    return Runtime.open(
        RuntimeOptions(
            model=model,
            ctx_size=args.ctx_size,
            parallel=args.parallel,
            batch_size=args.batch_size,
            draft_max=args.draft_max,
            cache_type_k=args.cache_type_k,
            cache_type_v=args.cache_type_v,
            precision=args.precision,
            threads=args.threads,
            pool_bytes=args.pool_bytes,
            swa_full=args.swa_full,
            resume_bytes=args.resume_bytes,
            resume_spacing=args.resume_spacing,
        )
    )


def _start_admin(runtime: Runtime, args: argparse.Namespace, stack: ExitStack) -> dict[str, Any]:
    """Starts the dashboard; returns its address, and its password on the first run."""
    from pykv.dashboard import InProcessClient, start_admin

    admin = start_admin(InProcessClient(runtime), host=ADMIN_HOST, port=args.admin_port)
    stack.callback(admin.close)
    if not args.json:
        print(f"Dashboard  {admin.url}", flush=True)
        if admin.password:
            print(f"           first-run password, shown only now: {admin.password}", flush=True)
    return {"dashboard": admin.url, "first_password": admin.password}


def _print_example(url: str) -> None:
    print(
        f"API        {url}/v1\n\n"
        f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
        '  -d \'{"messages": [{"role": "user", "content": "Why is the sky blue?"}], '
        '"max_tokens": 64}\'\n',
        flush=True,
    )


def _serve(args: argparse.Namespace, model: str, sock: socket.socket, stack: ExitStack) -> None:
    from pykv.listen import url_of
    from pykv.server import create_app
    from pykv.server.serving import serve
    from pykv.server.settings import Defaults

    level = logging.INFO if args.verbose else logging.WARNING
    form = "%(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=level, stream=sys.stderr, format=form)
    runtime = _open_runtime(args, model)
    stack.callback(runtime.close)
    _say(runtime.describe())
    defaults = Defaults(args.default_priority, args.default_timeout or None)
    app = create_app(runtime, defaults=defaults, alias=args.alias)
    facts = {"api": url_of(sock), "model": app.state.service.model_id}
    facts |= _start_admin(runtime, args, stack)
    facts["cells"] = runtime.pool_facts().cells
    if args.host not in ("127.0.0.1", "localhost", "::1"):
        _say(f"Note: whoever reaches {args.host} can use the API; it has no login of its own.")

    def ready() -> None:
        if args.json:
            print(json.dumps(facts), flush=True)
        else:
            _print_example(facts["api"])

    asyncio.run(serve(app, sock, verbose=args.verbose, ready=ready))
    _say("Stopped.")


def run(args: argparse.Namespace) -> int:
    _check(args)
    from pykv import models
    from pykv.dashboard import check_state_dir
    from pykv.listen import listen

    # Until the event loop takes over, SIGTERM ends the work as Ctrl-C does.
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        with ExitStack() as stack:
            # What can be wrong is found before the model is loaded.
            model = args.model or models.DEFAULT_MODEL
            models.resolve(model)
            sock = stack.enter_context(listen(args.host, args.port, port_flag="--port"))
            listen(ADMIN_HOST, args.admin_port, port_flag="--admin-port").close()
            check_state_dir()
            _serve(args, model, sock, stack)
    except KeyboardInterrupt:
        _say("Stopped.")
    finally:
        signal.signal(signal.SIGTERM, previous)
    return 0
