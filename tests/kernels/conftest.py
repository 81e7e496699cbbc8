"""Every kernel test runs on every instruction-set tier of the machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pykv import _core


@pytest.fixture(params=_core.Backend.available_isas())
def backend(request: pytest.FixtureRequest) -> Any:
    made = _core.Backend(threads=2, isa=request.param)
    assert made.isa == request.param, "another tier would be tested"
    return made


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240229)
