"""Password hashing (scrypt, RFC 7914) and the limit on guesses."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from dataclasses import dataclass
from typing import Any

from .clock import Clock


@dataclass(frozen=True)
class ScryptCost:
    """16 MiB and about a fifth of a second; one of OWASP's equivalent settings."""

    n: int = 1 << 14
    r: int = 8
    p: int = 5


class PasswordHash:
    """A salted hash of one password. Safe from any thread."""

    def __init__(self, cost: ScryptCost, salt: bytes, digest: bytes) -> None:
        self._cost = cost
        self._salt = salt
        self._digest = digest
        # Scripts send the password with every request. Once it has been proved, a keyed
        # hash that only this process knows answers instead of scrypt.
        self._key = secrets.token_bytes(32)
        self._proved: bytes | None = None
        self._lock = threading.Lock()  # one scrypt at a time bounds its memory

    @classmethod
    def make(cls, password: str, cost: ScryptCost) -> PasswordHash:
        salt = secrets.token_bytes(16)
        return cls(cost, salt, scrypt(password, salt, cost))

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> PasswordHash:
        """ValueError, KeyError or TypeError if a field is missing or absurd."""
        if fields["algorithm"] != "scrypt":
            raise ValueError(f"password algorithm {fields['algorithm']!r} is unknown")
        cost = ScryptCost(int(fields["n"]), int(fields["r"]), int(fields["p"]))
        power_of_two = cost.n >= 2 and cost.n & (cost.n - 1) == 0
        if not power_of_two or cost.n > 1 << 20 or not 1 <= cost.r <= 32 or not 1 <= cost.p <= 16:
            raise ValueError(f"scrypt cost n={cost.n} r={cost.r} p={cost.p} is out of range")
        salt, digest = bytes.fromhex(fields["salt"]), bytes.fromhex(fields["hash"])
        if len(salt) < 16 or len(digest) != 32:
            raise ValueError("password salt or hash has the wrong length")
        return cls(cost, salt, digest)

    def to_dict(self) -> dict[str, Any]:
        return {
            "algorithm": "scrypt",
            "n": self._cost.n,
            "r": self._cost.r,
            "p": self._cost.p,
            "salt": self._salt.hex(),
            "hash": self._digest.hex(),
        }

    def verify(self, password: str) -> bool:
        fast = hmac.digest(self._key, password.encode("utf-8", "surrogatepass"), "sha256")
        with self._lock:
            if self._proved is not None and hmac.compare_digest(fast, self._proved):
                return True
            digest = scrypt(password, self._salt, self._cost)
            if not hmac.compare_digest(digest, self._digest):
                return False
            self._proved = fast
            return True


def scrypt(password: str, salt: bytes, cost: ScryptCost) -> bytes:
    """32 bytes."""
    return hashlib.scrypt(
        password.encode("utf-8", "surrogatepass"),
        salt=salt,
        n=cost.n,
        r=cost.r,
        p=cost.p,
        maxmem=256 * cost.n * cost.r + (1 << 20),
        dklen=32,
    )


class GuessLimit:
    """At most so many failed guesses per address and over all addresses in a window.

    A guess counts as failed from its start until :meth:`succeeded`, so guesses side by
    side gain nothing. While an address is over the limit even the right password is
    refused, so that an answer tells a guesser nothing.
    """

    PER_ADDRESS = 10
    OVERALL = 100
    WINDOW = 60.0  # seconds

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._guesses: list[tuple[float, str]] = []
        self._lock = threading.Lock()

    def begin(self, address: str) -> float:
        """0 if `address` may guess now; else the seconds to wait, and nothing is counted."""
        with self._lock:
            now = self._clock.monotonic()
            self._guesses = [g for g in self._guesses if g[0] > now - self.WINDOW]
            own = [at for at, who in self._guesses if who == address]
            wait = 0.0
            if len(own) >= self.PER_ADDRESS:
                wait = own[-self.PER_ADDRESS] + self.WINDOW - now
            if len(self._guesses) >= self.OVERALL:
                wait = max(wait, self._guesses[-self.OVERALL][0] + self.WINDOW - now)
            if wait <= 0:
                self._guesses.append((now, address))
            return max(wait, 0.0)

    def succeeded(self, address: str) -> None:
        """The guess of `address` that began last was right: it does not count."""
        with self._lock:
            for index in range(len(self._guesses) - 1, -1, -1):
                if self._guesses[index][1] == address:
                    del self._guesses[index]
                    return
