"""llama.cpp through llama-cpp-python's C API, as a worker (see worker.py).

    {"do": "logits", "tokens": [...], "cache_type_k", "cache_type_v", "file"}
        writes float32 [tokens, vocab] to `file` (.npy) -> {}; "flash_attention": false turns it
        off, which rounds less
    {"do": "run", "prompt", "generate", "sessions", "cache_type_k", "cache_type_v"}
        the steps of llama-batched-bench with -pps -> {"t_pp", "t_tg", "peak_rss_bytes"}

Steps of a run as in the original: random tokens, memory cleared before timing, logits for
the last prompt token and every generated one; the prompt is decoded once and copied with
seq_cp in the unified pool.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import resource
import time
from typing import Any

import llama_cpp as lc
import numpy as np
from serve_requests import serve

TYPES = {
    name: getattr(lc, f"GGML_TYPE_{name.upper()}")
    for name in ("f32", "f16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")
}
BATCH = 2048
MICRO_BATCH = 512  # llama.cpp's default
WARM_UP_TOKENS = 16


class Peer:
    """One model; each request has a context of its own."""

    def __init__(self, path: str, threads: int) -> None:
        lc.llama_backend_init()
        self._quiet = lc.llama_log_callback(lambda level, text, data: None)
        lc.llama_log_set(self._quiet, ctypes.c_void_p(0))
        self.model = lc.llama_model_load_from_file(path.encode(), lc.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        self.threads = threads
        self.vocab_size = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(self.model))
        self.batch = lc.llama_batch_init(BATCH, 0, 1)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "logits":
            return self.logits(request)
        if request["do"] == "run":
            return self.run(request)
        raise ValueError(f"nothing is called {request['do']!r}")

    def open(self, request: dict[str, Any], cells: int, sessions: int) -> Any:
        params = lc.llama_context_default_params()
        params.n_ctx = cells
        params.n_batch = BATCH
        params.n_ubatch = MICRO_BATCH
        params.n_seq_max = sessions
        params.kv_unified = True
        params.type_k = TYPES[request["cache_type_k"]]
        params.type_v = TYPES[request["cache_type_v"]]
        if not request.get("flash_attention", True):
            params.flash_attn_type = lc.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.n_threads = params.n_threads_batch = self.threads
        context = lc.llama_init_from_model(self.model, params)
        if not context:
            raise RuntimeError("llama.cpp could not create a context")
        return context

    def decode(self, context: Any, rows: list[tuple[int, int, int, bool]]) -> None:
        """rows of (token, position, sequence, wants logits)."""
        for start in range(0, len(rows), BATCH):
            part = rows[start : start + BATCH]
            self.batch.n_tokens = len(part)
            for i, (token, position, sequence, logits) in enumerate(part):
                self.batch.token[i] = token
                self.batch.pos[i] = position
                self.batch.n_seq_id[i] = 1
                self.batch.seq_id[i][0] = sequence
                self.batch.logits[i] = 1 if logits else 0
            if lc.llama_decode(context, self.batch) != 0:
                raise RuntimeError("llama_decode failed")
        lc.llama_synchronize(context)

    def logits(self, request: dict[str, Any]) -> dict[str, Any]:
        tokens = request["tokens"]
        context = self.open(request, len(tokens) + 32, 1)
        rows = np.empty((len(tokens), self.vocab_size), dtype=np.float32)
        for start in range(0, len(tokens), BATCH):
            part = tokens[start : start + BATCH]
            self.decode(context, [(token, start + i, 0, True) for i, token in enumerate(part)])
            for i in range(len(part)):
                row = lc.llama_get_logits_ith(context, i)
                rows[start + i] = np.ctypeslib.as_array(row, shape=(self.vocab_size,))
        lc.llama_free(context)
        np.save(request["file"], rows)
        return {}

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        prompt, generate, sessions = (request[k] for k in ("prompt", "generate", "sessions"))
        rng = random.Random(1)
        context = self.open(request, prompt + sessions * generate + 32, sessions)
        memory = lc.llama_get_memory(context)

        def token() -> int:
            return rng.randrange(self.vocab_size)

        self.decode(context, [(token(), i, 0, i == 15) for i in range(WARM_UP_TOKENS)])
        lc.llama_memory_clear(memory, False)
        rows = [(token(), i, 0, i == prompt - 1) for i in range(prompt)]
        begin = time.perf_counter()
        self.decode(context, rows)
        t_pp = time.perf_counter() - begin
        for sequence in range(1, sessions):
            lc.llama_memory_seq_cp(memory, 0, sequence, -1, -1)
        begin = time.perf_counter()
        for i in range(generate):
            self.decode(context, [(token(), prompt + i, s, True) for s in range(sessions)])
        t_tg = time.perf_counter() - begin
        lc.llama_free(context)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"t_pp": t_pp, "t_tg": t_tg, "peak_rss_bytes": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-t", "--threads", type=int, default=2)
    args = parser.parse_args()
    serve(Peer(args.model, args.threads).answer)


if __name__ == "__main__":
    main()
