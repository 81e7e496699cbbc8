"""From a request's `cache_salt` to the small integer that the prefix tree compares."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from pykv.server.errors import ApiError

_LAST_NUMBER = 2**32 - 1


class Namespaces:
    """Numbers for salts. Requests share cached prefixes only within one number.

    At most `capacity` salts are remembered; beyond that the least recently used one is
    forgotten. Its number is never given out again, so forgetting costs a recomputation
    and never lets two salts share. Number 0 is for requests without a salt.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._numbers: OrderedDict[bytes, int] = OrderedDict()
        self._next = 1

    def number(self, salt: str | None) -> int:
        if salt is None:
            return 0
        key = hashlib.sha256(salt.encode()).digest()  # fixed size, and no salt kept in memory
        known = self._numbers.get(key)
        if known is not None:
            self._numbers.move_to_end(key)
            return known
        if self._next > _LAST_NUMBER:
            raise ApiError(503, "No namespace is left; restart the server.", code="salts_used_up")
        number = self._next
        self._next += 1
        self._numbers[key] = number
        if len(self._numbers) > self._capacity:
            self._numbers.popitem(last=False)
        return number

    def __len__(self) -> int:
        return len(self._numbers)
