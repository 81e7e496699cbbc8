"""OpenVINO GenAI's ContinuousBatchingPipeline as a worker (see worker.py).

    {"do": "run", "prompt", "generate", "sessions"} -> {"t_pp", "t_tg", "peak_rss_bytes"}

Random prompts that no earlier request had, so that nothing of them is in the prefix cache.
t_pp is the time to the first token of a request alone. Then `sessions` requests continue
that prompt, each after a token of its own; t_tg is the time of `generate` tokens of each once
all have their first. K and V are in its own default, u8.
"""

from __future__ import annotations

import argparse
import random
import resource
import time
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai
from serve_requests import serve

CACHE_GIB = 2


class Peer:
    """One pipeline; prefixes stay cached between requests, as its users have it."""

    def __init__(self, path: str, threads: int, batch: int) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.enable_prefix_caching = True
        scheduler.cache_size = CACHE_GIB
        scheduler.max_num_batched_tokens = batch
        properties = {"INFERENCE_NUM_THREADS": threads}
        self.pipeline = genai.ContinuousBatchingPipeline(path, scheduler, "CPU", properties)
        self.vocab_size = len(self.pipeline.get_tokenizer().get_vocab())
        self.rng = random.Random(1)
        self.next_id = 0
        self.warm: set[int] = set()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] != "run":
            raise ValueError(f"nothing is called {request['do']!r}")
        if request["prompt"] not in self.warm:  # shapes are compiled at first sight
            self.warm.add(request["prompt"])
            self.run(request["prompt"], 1, request["sessions"])
        t_pp, t_tg = self.run(request["prompt"], request["generate"], request["sessions"])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"t_pp": t_pp, "t_tg": t_tg, "peak_rss_bytes": peak}

    def submit(self, tokens: list[int], generate: int) -> Any:
        config = genai.GenerationConfig()
        config.max_new_tokens = generate
        config.ignore_eos = True
        config.do_sample = False
        self.next_id += 1
        ids = ov.Tensor(np.array([tokens], dtype=np.int64))
        return self.pipeline.add_request(self.next_id, ids, config)

    def run(self, prompt: int, generate: int, sessions: int) -> tuple[float, float]:
        def token() -> int:
            return self.rng.randrange(self.vocab_size)

        tokens = [token() for _ in range(prompt)]
        begin = time.perf_counter()
        first = self.submit(tokens, 1)  # held: a dropped handle cancels its request
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
        t_pp = time.perf_counter() - begin
        assert first.can_read()
        handles = [self.submit([*tokens, token()], 1 + generate) for _ in range(sessions)]
        while not all(handle.can_read() for handle in handles):
            self.pipeline.step()
        early = sum(len(handle.read()[0].generated_ids) for handle in handles)
        begin = time.perf_counter()
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
        t_tg = time.perf_counter() - begin
        made = sessions * (1 + generate) - early  # some had more than one token by then
        return t_pp, t_tg * generate * sessions / made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-b", "--batch-size", type=int, default=4096)
    args = parser.parse_args()
    serve(Peer(args.model, args.threads, args.batch_size).answer)


if __name__ == "__main__":
    main()
