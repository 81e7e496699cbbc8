"""llama.cpp's seq_cp and seq_rm through llama-cpp-python's C API, in a unified pool. Runs in
the peer's environment, prints one JSON object a line; started by benchmarks/control_plane.py.

The model is a random llama of one layer, written here; a part of 500 tokens is computed once
and restored as often as the pool has room for it (what is in the cells does not change the
time), each copy at the positions behind the one before, as one sequence of the whole pool.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp as lc

WIDTH, VOCABULARY, PART = 32, 16, 500
WHOLE, COPY, LOADER = 0, 1, 2


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def write_model(path: Path) -> None:
    """GGUF: key-value pairs, then tensors of float32, aligned to 32 bytes."""
    numbers = {
        "block_count": 1, "context_length": 1 << 20, "embedding_length": WIDTH,
        "feed_forward_length": WIDTH, "attention.head_count": 1, "vocab_size": VOCABULARY,
    }  # fmt: skip
    pairs = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    pairs += [text("tokenizer.ggml.model") + struct.pack("<I", 8) + text("none")]
    pairs += [text(f"llama.{k}") + struct.pack("<II", 4, v) for k, v in numbers.items()]
    pairs += [text("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", 6, 1e-5)]
    square = [WIDTH, WIDTH]
    shapes = {"token_embd.weight": [WIDTH, VOCABULARY], "output.weight": [WIDTH, VOCABULARY]}
    shapes |= {"output_norm.weight": [WIDTH]}
    shapes |= {f"blk.0.{n}_norm.weight": [WIDTH] for n in ("attn", "ffn")}
    shapes |= {f"blk.0.attn_{n}.weight": square for n in ("q", "k", "v", "output")}
    shapes |= {f"blk.0.ffn_{n}.weight": square for n in ("gate", "up", "down")}
    infos, data = b"", b""
    for name, shape in shapes.items():
        infos += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data))
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        data += struct.pack(f"<{count}f", *(random.gauss(0, 0.1) for _ in range(count)))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(pairs)) + b"".join(pairs) + infos
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data)


class Peer:
    """A context whose pool of `cells` cells is all one sequence, WHOLE."""

    def __init__(self, model: Any, cells: int) -> None:
        params = lc.llama_context_default_params()
        params.n_ctx = cells + PART
        params.n_batch = params.n_ubatch = PART
        params.n_seq_max = 3
        params.kv_unified = True
        params.n_threads = params.n_threads_batch = 1
        self.context = lc.llama_init_from_model(model, params)
        if not self.context:
            raise SystemExit("llama.cpp could not create a context")
        self.memory = lc.llama_get_memory(self.context)
        self.decode()
        size = lc.llama_state_seq_get_size(self.context, LOADER)
        state = (ctypes.c_uint8 * size)()
        lc.llama_state_seq_get_data(self.context, state, size, LOADER)
        for begin in range(0, cells, PART):
            self.move_to_whole(begin)
            read = lc.llama_state_seq_set_data(self.context, state, size, LOADER)
            if read == 0:
                raise SystemExit("llama.cpp could not restore a sequence")
        lc.llama_memory_seq_rm(self.memory, LOADER, -1, -1)

    def decode(self) -> None:
        batch = lc.llama_batch_init(PART, 0, 1)
        batch.n_tokens = PART
        for i in range(PART):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = i % VOCABULARY, i, 1
            batch.seq_id[i][0] = LOADER
            batch.logits[i] = 0
        if lc.llama_decode(self.context, batch) != 0:
            raise SystemExit("llama_decode failed")

    def move_to_whole(self, begin: int) -> None:
        lc.llama_memory_seq_add(self.memory, LOADER, 0, -1, begin)
        lc.llama_memory_seq_cp(self.memory, LOADER, WHOLE, -1, -1)
        lc.llama_memory_seq_rm(self.memory, LOADER, -1, -1)

    def copy(self) -> None:
        lc.llama_memory_seq_cp(self.memory, WHOLE, COPY, -1, -1)

    def remove(self, end: int = -1) -> None:
        lc.llama_memory_seq_rm(self.memory, COPY, 0, end)


def median(
    before: Callable[[], None], timed: Callable[[], None], after: Callable[[], None]
) -> float:
    times = []
    for _ in range(21):
        before()
        begin = time.perf_counter()
        timed()
        times.append(time.perf_counter() - begin)
        after()
    return statistics.median(times) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", default="8000,60000,200000")
    args = parser.parse_args()
    quiet = lc.llama_log_callback(lambda level, message, data: None)
    lc.llama_log_set(quiet, ctypes.c_void_p(0))
    lc.llama_backend_init()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.gguf"
        write_model(path)
        params = lc.llama_model_default_params()
        model = lc.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise SystemExit("llama.cpp could not load the model")
    for cells in map(int, args.cells.split(",")):
        peer = Peer(model, cells)

        def nothing() -> None: ...

        rows = {
            "seq_cp of all": median(nothing, peer.copy, peer.remove),
            "seq_rm of all": median(peer.copy, peer.remove, nothing),
            "seq_rm of 4096": median(peer.copy, lambda p=peer: p.remove(4096), peer.remove),
        }
        if lc.llama_memory_seq_pos_max(peer.memory, WHOLE) != cells - 1:
            raise SystemExit("the pool is not one sequence")
        for row, us in rows.items():
            print(json.dumps({"cells": cells, "row": row, "us": us}), flush=True)
        lc.llama_free(peer.context)


if __name__ == "__main__":
    main()
