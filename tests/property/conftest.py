"""How much the property tests try: `pytest tests/property --hypothesis-profile=long` for more."""

from hypothesis import HealthCheck, settings

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile(
    "ordinary", max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=SLOW
)
settings.register_profile(
    "long", max_examples=1000, stateful_step_count=150, deadline=None, suppress_health_check=SLOW
)
settings.load_profile("ordinary")
