"""Benchmarks that anyone can run: `pykv bench …`."""
