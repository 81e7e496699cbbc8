"""Starts and stops the admin service: waitress in threads of this process."""

from __future__ import annotations

import ipaddress
import logging
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from waitress import create_server  # type: ignore[import-untyped]

from .app import LOOPBACK_NAMES, MAX_BODY_BYTES, AppOptions, create_app
from .client import EngineClient
from .context import KEY, AdminContext
from .errors import AdminError
from .secrets_store import SecretsStore, default_state_dir

_THREADS = 8
logging.getLogger("waitress").addHandler(logging.NullHandler())  # a library does not print


class AdminServer:
    """A running admin service. Made by :func:`start_admin`."""

    def __init__(self, server: Any, sockets: dict[int, Any], context: AdminContext) -> None:
        self._server = server
        self._sockets = sockets  # waitress's map: listener, wake-up pipe, connections
        self._context = context
        self._thread = threading.Thread(target=server.run, name="pykv-admin", daemon=True)
        host = server.effective_host
        self.host: str = host
        self.port: int = int(server.effective_port)
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"

    @property
    def user(self) -> str:
        return self._context.store.user

    @property
    def password(self) -> str | None:
        """In clear, only if this start made it (first run); print it once."""
        return self._context.store.first_password

    @property
    def metrics_token_file(self) -> Path:
        """The file that prometheus.yml's `credentials_file` names."""
        return self._context.store.metrics_token_file

    def start(self) -> None:
        self._context.history.start()
        self._thread.start()

    def close(self) -> None:
        """Ends open connections and joins all threads. May be called twice."""
        self._context.history.close()
        if self._thread.is_alive():
            self._server.trigger.pull_trigger(self._close_sockets)
            self._thread.join()
        self._server.task_dispatcher.shutdown()

    def _close_sockets(self) -> None:
        """In waitress's own thread: its loop ends when the map is empty."""
        for handler in list(self._sockets.values()):
            handler.close()

    def __enter__(self) -> AdminServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_state_dir(state_dir: str | Path | None = None) -> None:
    """Raises AdminError if `start_admin` could not use the folder for its state."""
    SecretsStore.check(Path(state_dir) if state_dir else default_state_dir())


def start_admin(
    client: EngineClient,
    *,
    host: str = "127.0.0.1",
    port: int = 8081,
    state_dir: str | Path | None = None,
    allow_remote: bool = False,
    allowed_hosts: Sequence[str] = (),
) -> AdminServer:
    """Starts the service and returns when it listens (`port` 0: any free one).

    `host` beyond loopback needs `allow_remote`; the service speaks plain HTTP, so put it
    behind a TLS proxy there and name the proxy's host in `allowed_hosts`.
    Raises AdminError with the way out: port taken, state folder unusable, host refused.
    """
    address = _resolve(host)
    if not ipaddress.ip_address(address).is_loopback and not allow_remote:
        raise AdminError(
            f"[start_admin] host {host!r} is reachable from other machines; use 127.0.0.1 "
            "(and an SSH tunnel), or pass allow_remote if that is meant"
        )
    listener = _listen(address, port)  # first: a first-run password must not get lost
    try:
        store = SecretsStore.open(Path(state_dir) if state_dir else default_state_dir())
        names = {name.lower() for name in (host, address, *allowed_hosts)}
        options = AppOptions(hosts=LOOPBACK_NAMES | names, any_address=allow_remote)
        app = create_app(client, store, options)
    except BaseException:
        listener.close()
        raise
    sockets: dict[int, Any] = {}
    server = create_server(
        app,
        map=sockets,
        sockets=[listener],
        threads=_THREADS,
        ident=None,
        asyncore_use_poll=True,  # select() fails once the process has 1024 open files
        max_request_body_size=MAX_BODY_BYTES,
        max_request_header_size=16 * 1024,
        connection_limit=64,
        channel_timeout=30,
    )
    admin = AdminServer(server, sockets, app.extensions[KEY])
    admin.start()
    return admin


def _resolve(host: str) -> str:
    """One literal address, so that what is checked is what is bound."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise AdminError(f"[start_admin] host {host!r} is unknown: {error}") from error
    return str(found[0][4][0])


def _listen(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise AdminError(
            f"[start_admin] cannot listen on {address} port {port}: "
            f"{getattr(error, 'strerror', None) or error}; choose another port (0: any free one)"
        ) from error
    return listener
