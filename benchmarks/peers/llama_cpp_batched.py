"""One row of llama-batched-bench through llama-cpp-python's C API. Runs in an
environment of its own (see benchmarks/peers/environment.py), prints one JSON object.

Same steps as the original: warm-up of 16 tokens, random tokens, memory cleared before
timing, logits for the last prompt token and every generated one; with --pps the prompt is
decoded once and copied with seq_cp in the unified pool.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import resource
import time
from typing import Any

import llama_cpp as lc

TYPES = {"f32": lc.GGML_TYPE_F32, "f16": lc.GGML_TYPE_F16, "q8_0": lc.GGML_TYPE_Q8_0}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--npp", type=int, required=True)
    parser.add_argument("--ntg", type=int, required=True)
    parser.add_argument("--npl", type=int, required=True)
    parser.add_argument("--pps", action="store_true")
    parser.add_argument("-b", "--batch-size", type=int, default=2048)
    parser.add_argument("-ctk", "--cache-type-k", default="f16", choices=TYPES)
    parser.add_argument("-ctv", "--cache-type-v", default="f16", choices=TYPES)
    parser.add_argument("-t", "--threads", type=int, default=2)
    return parser.parse_args()


class Peer:
    """A llama.cpp context with one unified pool."""

    def __init__(self, args: argparse.Namespace) -> None:
        lc.llama_backend_init()
        lc.llama_log_set(self._quiet(), ctypes.c_void_p(0))
        self.model = lc.llama_model_load_from_file(
            args.model.encode(), lc.llama_model_default_params()
        )
        params = lc.llama_context_default_params()
        prompt = args.npp if args.pps else args.npp * args.npl
        params.n_ctx = prompt + args.npl * args.ntg + 32
        params.n_batch = args.batch_size
        params.n_ubatch = min(512, args.batch_size)
        params.n_seq_max = args.npl
        params.kv_unified = True
        params.type_k = TYPES[args.cache_type_k]
        params.type_v = TYPES[args.cache_type_v]
        params.n_threads = params.n_threads_batch = args.threads
        self.context = lc.llama_init_from_model(self.model, params)
        if not self.context:
            raise SystemExit("llama.cpp could not create a context")
        self.memory = lc.llama_get_memory(self.context)
        self.batch_size = args.batch_size
        vocab = lc.llama_model_get_vocab(self.model)
        self.vocab_size = lc.llama_vocab_n_tokens(vocab)
        self.batch = lc.llama_batch_init(args.batch_size, 0, 1)

    def _quiet(self) -> Any:
        self._callback = lc.llama_log_callback(lambda level, text, data: None)
        return self._callback

    def decode(self, rows: list[tuple[int, int, int, bool]]) -> None:
        """rows of (token, position, sequence, wants logits)."""
        for start in range(0, len(rows), self.batch_size):
            part = rows[start : start + self.batch_size]
            self.batch.n_tokens = len(part)
            for i, (token, position, sequence, logits) in enumerate(part):
                self.batch.token[i] = token
                self.batch.pos[i] = position
                self.batch.n_seq_id[i] = 1
                self.batch.seq_id[i][0] = sequence
                self.batch.logits[i] = 1 if logits else 0
            if lc.llama_decode(self.context, self.batch) != 0:
                raise SystemExit("llama_decode failed")
        lc.llama_synchronize(self.context)

    def token(self) -> int:
        return random.randrange(self.vocab_size)


def main() -> None:
    args = arguments()
    random.seed(1)
    peer = Peer(args)
    peer.decode([(peer.token(), i, 0, i == 15) for i in range(16)])
    lc.llama_memory_clear(peer.memory, False)

    prompts = 1 if args.pps else args.npl
    rows = [
        (peer.token(), i, s, i == args.npp - 1) for s in range(prompts) for i in range(args.npp)
    ]
    begin = time.perf_counter()
    peer.decode(rows)
    t_pp = time.perf_counter() - begin
    if args.pps:
        for sequence in range(1, args.npl):
            lc.llama_memory_seq_cp(peer.memory, 0, sequence, -1, -1)
    begin = time.perf_counter()
    for i in range(args.ntg):
        peer.decode([(peer.token(), args.npp + i, s, True) for s in range(args.npl)])
    t_tg = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"t_pp": t_pp, "t_tg": t_tg, "peak_rss_bytes": peak}))


if __name__ == "__main__":
    main()
