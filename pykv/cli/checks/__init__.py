"""What `pykv doctor` looks at. Each check is a function that returns findings and never
raises for what it finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `advice` says what to do; "" where there is nothing to."""

    name: str
    state: State
    found: str
    advice: str = ""
