"""Core objects in a forked child: refused by name, and no obstacle to the child's end."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, sys
import numpy as np
from pykv import _core

backend = _core.Backend(threads=2)
weight = backend.create_weight("f32", 64, 8, np.zeros(64 * 8 * 4, np.uint8))
layer = _core.LayerSpec(kv_heads=1, k_dim=8)
cache = _core.Cache(layers=[layer], backend=backend, cells=128)
step = cache.commit(cache.plan([(cache.create(), 3)]))
child = os.fork()
if child == 0:
    values = np.zeros((3, 8), np.float32)
    for call in (
        cache.stats, cache.create, step.finish, step.rollback,
        lambda: step.write(0, values, values), lambda: backend.set_threads(1),
        lambda: backend.linear(weight, 64, values),
    ):
        try:
            call()
        except _core.Unsupported as error:
            assert "this is a fork" in str(error), error
        else:
            sys.exit("not refused")
    own = _core.Backend(threads=2)
    own.linear(own.create_weight("f32", 64, 8, np.zeros(64 * 8 * 4, np.uint8)), 64, values)
    sys.exit(0)  # destroys everything
step.rollback()
assert cache.stats()["sequences"] == 1
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_is_refused_and_can_end() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SCRIPT],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
