"""Whether the ports are free, and who holds those that are not."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from pykv._core import Error
from pykv.cli.checks import Finding
from pykv.cli.output import visible
from pykv.listen import listen

_LISTEN = "0A"  # state in /proc/net/tcp


def check_port(name: str, host: str, port: int, flag: str, root: Path = Path("/")) -> Finding:
    """Whether a server could listen there now. `root`: where proc is (tests)."""
    where = f"{host} port {port or 'any'}"
    try:
        listen(host, port, port_flag=flag).close()
    except Error as error:
        holder = holder_of(port, root)
        if holder:
            advice = f"stop it, or choose another with {flag}"
            return Finding(name, "problem", f"{where} is held by {holder}", advice)
        return Finding(name, "problem", str(error), f"choose another with {flag}")
    return Finding(name, "ok", f"{where} is free")


def holder_of(port: int, root: Path = Path("/")) -> str:
    """The process that listens on a port, "" if it cannot be known (another user's)."""
    sockets = _listening(port, root / "proc/net/tcp") | _listening(port, root / "proc/net/tcp6")
    if not sockets:
        return ""
    for process in (root / "proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                if os.readlink(descriptor) in sockets:
                    command = (process / "comm").read_text().strip()
                    return f"{visible(command)} (process {process.name})"
    return ""


def _listening(port: int, table: Path) -> set[str]:
    """Links by which /proc shows the sockets that listen on a port."""
    found = set()
    with contextlib.suppress(OSError):
        for line in table.read_text().splitlines()[1:]:
            fields = line.split()
            address, state, inode = fields[1], fields[3], fields[9]
            if state == _LISTEN and int(address.rpartition(":")[2], 16) == port:
                found.add(f"socket:[{inode}]")
    return found


def reachable(host: str) -> bool:
    """Whether other machines can reach what listens on `host`."""
    try:
        address = socket.getaddrinfo(host, None)[0][4][0]
    except (OSError, UnicodeError):
        return False
    return not str(address).startswith("127.") and address != "::1"
