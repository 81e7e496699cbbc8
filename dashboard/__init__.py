"""The admin service: web page, JSON API and Prometheus metrics, on a port of its own.

It runs in threads of the process that owns the engine and reads the engine's
snapshots only through an :class:`~pykv.dashboard.client.EngineClient`.
"""

from .client import EngineClient, InProcessClient
from .errors import AdminError
from .server import AdminServer, check_state_dir, start_admin

__all__ = [
    "AdminError",
    "AdminServer",
    "EngineClient",
    "InProcessClient",
    "check_state_dir",
    "start_admin",
]
