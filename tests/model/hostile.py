"""Opens a model file with every header field set to every absurd value, one at a time.

Run as a program with the path of a valid file and a scratch path; prints JSON: how many
variants were opened, the refusals (field, offset, value, message), by how many bytes the
peak memory of the process grew, and the longest time that one of them took, in seconds of
the processor.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from pykv import _core
from tests.reference.gguf_files import Field, header_fields, patched

ABSURD = (0, 1, 2, 31, 64, 255, 65536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40,
          (1 << 61) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 32, (1 << 64) - 1)  # fmt: skip


def variants(data: bytes) -> Iterator[tuple[Field, int, bytes]]:
    for field in header_fields(data):
        old = int.from_bytes(data[field.offset : field.offset + field.width], "little")
        limit = 1 << 8 * field.width
        values = {value % limit for value in ABSURD} | {(old + 1) % limit, max(old - 1, 0)}
        for value in sorted(values - {old}):
            yield field, value, patched(data, field, value)


def read_everything(path: Path) -> None:
    """Whatever a program would ask of the file, up to the loaded model."""
    file = _core.GgufFile(path)
    names = file.keys()
    for key in names:
        file.scalar(key)
        if file.array_size(key) is None:
            continue
        for read in (file.string_array, file.integer_array, file.float_array):
            try:
                read(key)
            except _core.CorruptModel:
                continue
    _core.Model(file, _core.Backend(threads=1))


def main(source: Path, scratch: Path) -> None:
    data = source.read_bytes()
    read_everything(source)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    opened, refused, slowest = 0, [], 0.0
    for field, value, content in variants(data):
        scratch.write_bytes(content)
        begin = time.process_time()
        try:
            read_everything(scratch)
            opened += 1
        except _core.Error as error:
            refused.append([field.what, field.offset, value, str(error)])
        slowest = max(slowest, time.process_time() - begin)
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    result = {"opened": opened, "refused": refused, "growth": growth, "slowest": slowest}
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
