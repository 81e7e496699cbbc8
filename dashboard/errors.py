"""The error family of the admin service."""

from __future__ import annotations

from typing import Any

from pykv._core import Error


class AdminError(Error):
    """The admin service cannot start or keep its state; the message says the way out."""


class InvalidValue(AdminError):
    """A request names a field, a value or a combination that is not allowed."""

    def __init__(self, message: str, *, field: str, value: Any = None, limit: str = "") -> None:
        super().__init__(message)
        self.field = field
        self.value = value
        self.limit = limit
