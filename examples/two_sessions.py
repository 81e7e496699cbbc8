"""Two sessions, one prefix: computed once, stored once. NumPy stands in for a model."""

import numpy as np

from pykv import Cache, CacheConfig, Layer

rng = np.random.default_rng(0)
embed = rng.normal(size=(1000, 4, 64)).astype(np.float32)  # token -> [heads, dim]
cache = Cache(CacheConfig(layers=[Layer(kv_heads=2, k_dim=64, v_dim=64)], cells=4096))


def forward(sequence: int, tokens: list[int]) -> np.ndarray:
    """One step: stores K and V of the new tokens, attends, publishes."""
    plan = cache.plan([(sequence, tokens)])
    assert plan is not None, "the pool is full"
    with cache.step(plan) as step:
        x = embed[tokens]
        step.write(0, k=x[:, :2], v=x[:, 2:])
        return step.attend(0, q=x)


system_prompt = list(range(500))
alice = cache.open(system_prompt + [501, 502])
forward(alice.sequence, (system_prompt + [501, 502])[alice.reused :])  # computes 502 tokens

bob = cache.open(system_prompt + [601])
print(f"bob reuses {bob.reused} of 501 tokens")
out = forward(bob.sequence, [601])  # computes one

branch = cache.fork(bob.sequence)  # shares everything, copies nothing
same = forward(branch, [700])
assert np.array_equal(same, forward(bob.sequence, [700]))
print(f"stored {cache.stats()['cells_active']} cells for three sessions of about 500 tokens")
