"""Sockets to listen on, opened before anything slow is done."""

from __future__ import annotations

import errno
import socket

from pykv._core import Error


class CannotListen(Error):
    """The address is taken, not ours, or not an address; the message says what to do."""


_REASONS = {
    errno.EADDRINUSE: "another program is listening there",
    errno.EACCES: "ports below 1024 need privileges",
    errno.EADDRNOTAVAIL: "this machine does not have that address",
}


def listen(host: str, port: int, *, port_flag: str, host_flag: str = "--host") -> socket.socket:
    """A listening TCP socket; port 0 takes any free one. CannotListen names the flag."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise CannotListen(
            f"{host_flag} {host}: not an address of this machine ({error})"
        ) from None
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(2048)
    except OSError as error:
        sock.close()
        reason = _REASONS.get(error.errno or 0, error.strerror)
        flag = host_flag if error.errno == errno.EADDRNOTAVAIL else port_flag
        raise CannotListen(
            f"port {port} on {host} cannot be used: {reason}; choose another with {flag}"
        ) from None
    return sock


def url_of(sock: socket.socket) -> str:
    """http://host:port, as one would type it on this machine."""
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
