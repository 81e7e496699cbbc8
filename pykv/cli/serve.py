"""`pykv serve`: the model behind an HTTP API, with the admin service beside it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import signal
import socket
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NoReturn

from pykv.cli.options import integer

if TYPE_CHECKING:
    from pykv.runtime import Runtime

EXAMPLES = """examples:
  pykv serve                                  the default model on http://127.0.0.1:8080
  pykv serve -m model.gguf -c 65536 -np 32    65,536 cells, 32 requests decoded at a time
  pykv serve -ctk q8_0 -ctv q8_0              about half the memory for each cell
"""

KV_TYPES = ("f32", "f16", "q8_0")
COUNT_MAX = 2**31 - 1
ADMIN_HOST = "127.0.0.1"


def _name(text: str) -> str:
    if not re.fullmatch(r"[\x21-\x7e]{1,256}", text):
        raise argparse.ArgumentTypeError("a name has 1 … 256 printable ASCII characters, no spaces")
    return text


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "serve",
        help="serve a model: OpenAI-compatible API and dashboard",
        description="Serves a GGUF model to many users from one KV pool.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    port, count = integer(0, 65535), integer(0, COUNT_MAX)
    pool_bytes = integer(0, 2**48)
    parallel, batch, threads = integer(1, 4096), integer(1, 8192), integer(0, 1024)
    add("positional_model", nargs="?", metavar="MODEL", help="the same as --model")
    add("-m", "--model", help="model name or GGUF file (smollm2-135m)")
    add("-a", "--alias", type=_name, help="name of the model towards clients")
    add("--host", default="127.0.0.1", help="address of the API (127.0.0.1)")
    add("--port", type=port, default=8080, help="port of the API, 0: any (8080)")
    add("--admin-port", type=port, default=8081, help="port of the dashboard, 0: any (8081)")
    add("-c", "--ctx-size", type=count, default=0, help="cells of the pool (as memory allows)")
    add("--pool-bytes", type=pool_bytes, default=0, help="bytes of the pool (as the cells need)")
    add("-np", "--parallel", type=parallel, default=16, help="sequences decoded in a step (16)")
    add("-b", "--batch-size", type=batch, default=256, help="tokens computed in a step (256)")
    add("-ctk", "--cache-type-k", choices=KV_TYPES, default="f16", help="stored keys (f16)")
    add("-ctv", "--cache-type-v", choices=KV_TYPES, default="f16", help="stored values (f16)")
    add("-t", "--threads", type=threads, default=0, help="threads (all cores)")
    add("-v", "--verbose", action="store_true", help="log each request")
    parser.set_defaults(usage_error=parser.error)


def _check(args: argparse.Namespace) -> None:
    """What no single flag shows. Ends with exit code 2."""
    if args.model is not None and args.positional_model is not None:
        args.usage_error("the model is given twice: as MODEL and with --model")
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
            cache_type_k=args.cache_type_k,
            cache_type_v=args.cache_type_v,
            threads=args.threads,
            pool_bytes=args.pool_bytes,
        )
    )


def _start_admin(runtime: Runtime, port: int, stack: ExitStack) -> None:
    from pykv.dashboard import InProcessClient, start_admin

    admin = start_admin(InProcessClient(runtime), host=ADMIN_HOST, port=port)
    stack.callback(admin.close)
    print(f"Dashboard  {admin.url}", flush=True)
    if admin.password:
        print(f"           first-run password, shown only now: {admin.password}", flush=True)


def _print_example(url: str) -> None:
    print(
        f"API        {url}/v1\n\n"
        f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
        '  -d \'{"messages": [{"role": "user", "content": "What is the capital of France?"}], '
        '"max_tokens": 64}\'\n',
        flush=True,
    )


def _serve(args: argparse.Namespace, model: str, sock: socket.socket, stack: ExitStack) -> None:
    from pykv.server import create_app
    from pykv.server.listen import url_of
    from pykv.server.serving import serve

    level = logging.INFO if args.verbose else logging.WARNING
    form = "%(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=level, stream=sys.stderr, format=form)
    runtime = _open_runtime(args, model)
    stack.callback(runtime.close)
    _say(runtime.describe())
    app = create_app(runtime, alias=args.alias)
    _start_admin(runtime, args.admin_port, stack)
    if args.host not in ("127.0.0.1", "localhost", "::1"):
        _say(f"Note: whoever reaches {args.host} can use the API; it has no login of its own.")
    url = url_of(sock)
    asyncio.run(serve(app, sock, verbose=args.verbose, ready=lambda: _print_example(url)))
    _say("Stopped.")


def run(args: argparse.Namespace) -> int:
    _check(args)
    from pykv import models
    from pykv.server.listen import listen

    # Until the event loop takes over, SIGTERM ends the work as Ctrl-C does.
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        with ExitStack() as stack:
            # What can be wrong is found before the model is loaded.
            model = args.model or args.positional_model or models.DEFAULT_MODEL
            models.resolve(model)
            sock = stack.enter_context(listen(args.host, args.port, port_flag="--port"))
            listen(ADMIN_HOST, args.admin_port, port_flag="--admin-port").close()
            _serve(args, model, sock, stack)
    except KeyboardInterrupt:
        _say("Stopped.")
    finally:
        signal.signal(signal.SIGTERM, previous)
    return 0
