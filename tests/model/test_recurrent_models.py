"""Recurrent and hybrid models: logits against the NumPy forward pass, bit-equal however the work
is cut, shared or taken up again, and clear refusals of what a state cannot do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pykv import _core
from tests.model.cuts import assert_cuts_change_nothing
from tests.model.machine import Machine, random_tokens
from tests.reference.recurrent_files import TinyRecurrent, write_tiny_recurrent
from tests.reference.recurrent_forward import RecurrentReference

SPECS = {
    "mamba2": TinyRecurrent("mamba2", "rrr"),
    "mamba2, one group, own output": TinyRecurrent(
        "mamba2", "rr", groups=1, state_size=16, tied=False
    ),
    "lfm2": TinyRecurrent("lfm2", "rrarra", taps=3),
    "granitehybrid": TinyRecurrent("granitehybrid", "rrar"),
    "granitehybrid that rotates": TinyRecurrent("granitehybrid", "rar", rope=True, scales=False),
    "granitehybrid, quantized": TinyRecurrent(
        "granitehybrid", "rra", width=64, feed_forward=96, ssm_head_dim=16, weight_type="Q8_0"
    ),
}
HYBRID = SPECS["granitehybrid"]
RecurrentPath = Callable[[TinyRecurrent], Path]


@pytest.fixture(scope="module")
def recurrent_path(tmp_path_factory: pytest.TempPathFactory) -> RecurrentPath:
    folder = tmp_path_factory.mktemp("recurrent")
    written: dict[TinyRecurrent, Path] = {}

    def path(spec: TinyRecurrent) -> Path:
        if spec not in written:
            written[spec] = write_tiny_recurrent(folder / f"{len(written)}.gguf", spec)
        return written[spec]

    return path


@pytest.fixture(params=SPECS)
def machine(request: pytest.FixtureRequest, recurrent_path: RecurrentPath) -> Machine:
    return Machine(recurrent_path(SPECS[request.param]))


@pytest.fixture
def hybrid(recurrent_path: RecurrentPath) -> Machine:
    return Machine(recurrent_path(HYBRID))


def relative_error(logits: Any, expected: Any) -> float:
    return float(np.abs(logits - expected).max() / np.abs(expected).max())


def test_logits_equal_the_reference(machine: Machine) -> None:
    tokens = random_tokens(300, machine.vocab, seed=2)
    expected = RecurrentReference(machine.gguf.path).logits(tokens)
    assert relative_error(machine.cold(tokens), expected) <= 1e-4


@pytest.mark.parametrize("isa", _core.Backend.available_isas())
@pytest.mark.parametrize("name", ["mamba2", "lfm2", "granitehybrid"])
def test_every_instruction_set(recurrent_path: RecurrentPath, name: str, isa: str) -> None:
    path = recurrent_path(SPECS[name])
    machine = Machine(path, isa=isa)
    tokens = random_tokens(40, machine.vocab, seed=5)
    expected = RecurrentReference(path).logits(tokens)
    assert relative_error(machine.cold(tokens), expected) <= 1e-4
    fast = Machine(path, isa=isa, precision="fast")
    assert relative_error(fast.cold(tokens), expected) <= 1e-3


def test_bits_do_not_depend_on_how_the_work_is_cut(machine: Machine) -> None:
    assert_cuts_change_nothing(machine)


def test_a_step_that_is_rolled_back_leaves_the_state(machine: Machine) -> None:
    tokens = random_tokens(20, machine.vocab, seed=6)
    alone = machine.cold(tokens)
    seq = machine.cache.create()
    machine.extend(seq, tokens[:12])
    step = machine.begin(seq, tokens[:8])
    machine.model.forward(step, tokens[:8], [7])
    step.rollback()
    machine.cache.check_integrity()
    assert np.array_equal(machine.extend(seq, tokens[12:]), alone[12:])


def test_the_same_prompt_twice(machine: Machine) -> None:
    """C17: no abort, no error, the second run reuses."""
    tokens = random_tokens(60, machine.vocab, seed=7)
    cold = machine.cold(tokens)
    first, reused, *_ = machine.cache.open(tokens)
    assert reused == 0
    machine.extend(first, tokens[:59])  # the end of the prompt but for its last token
    machine.extend(first, tokens[59:])
    second, reused, *_ = machine.cache.open(tokens)
    assert reused == 59
    assert np.array_equal(machine.extend(second, tokens[59:]), cold[59:])
    machine.cache.erase_all()
    third, reused, *_ = machine.cache.open(tokens)
    assert reused == 59
    assert np.array_equal(machine.extend(third, tokens[59:]), cold[59:])
    stats = machine.cache.stats()
    assert stats["resume_points_used"] >= 2 and stats["states"]["slots_resume"] >= 1
    machine.cache.check_integrity()


def test_a_conversation_goes_on_where_it_ended(machine: Machine) -> None:
    tokens = random_tokens(80, machine.vocab, seed=8)
    cold = machine.cold(tokens)
    seq, *_ = machine.cache.open(tokens[:40])
    machine.extend(seq, tokens[:50])
    machine.cache.erase(seq)  # the end of a turn is a resume point
    seq, reused, *_ = machine.cache.open(tokens)
    assert reused == 50
    assert np.array_equal(machine.extend(seq, tokens[50:]), cold[50:])


def test_the_middle_cannot_be_removed(machine: Machine) -> None:
    """C18: refused with an error that says what is possible; nothing changes."""
    tokens = random_tokens(30, machine.vocab, seed=9)
    cold = machine.cold(tokens)
    cache = machine.cache
    seq = cache.create()
    machine.extend(seq, tokens[:16])
    assert cache.mark_resume(seq)
    machine.extend(seq, tokens[16:20])
    with pytest.raises(_core.Unsupported, match=r"rewind\(\) goes back to position 0"):
        cache.remove(seq, (3, 5))
    with pytest.raises(_core.Unsupported, match=r"rewind\(\) goes back to position 16"):
        cache.remove(seq, (18, 20))
    with pytest.raises(_core.Unsupported, match="without the ones from position 16; rewind"):
        cache.remove(seq, (16, 18))  # also where somebody has the state
    with pytest.raises(_core.Unsupported, match="cannot move"):
        cache.shift(seq, (3, 20), 4)
    with pytest.raises(_core.Unsupported, match="cannot move"):
        cache.divide(seq, (0, 20), 2)
    assert np.array_equal(machine.extend(seq, tokens[20:]), cold[20:])
    cache.remove(seq, (16, 30))  # where somebody has the state it is possible
    assert np.array_equal(machine.extend(seq, tokens[16:]), cold[16:])
    cache.check_integrity()


def test_everything_can_be_removed(machine: Machine) -> None:
    """C19."""
    tokens = random_tokens(12, machine.vocab, seed=10)
    cold = machine.cold(tokens)
    cache = machine.cache
    seqs = [cache.create() for _ in range(3)]
    for seq in seqs:
        machine.extend(seq, tokens)
    cache.remove(seqs[0], None)
    cache.clear(seqs[1])
    for seq in seqs[:2]:
        assert np.array_equal(machine.extend(seq, tokens), cold)
    cache.erase_all()
    assert cache.sequences() == []
    cache.reset_prefixes()
    assert cache.stats()["states"]["slots_used"] == 0
    cache.check_integrity()


def test_rewind_goes_to_the_deepest_point(machine: Machine) -> None:
    tokens = random_tokens(40, machine.vocab, seed=11)
    cold = machine.cold(tokens)
    cache = machine.cache
    seq = cache.create()
    for begin, end in ((0, 10), (10, 24), (24, 40)):
        machine.extend(seq, tokens[begin:end])
        cache.mark_resume(seq)
    assert cache.rewind(seq, 40) == 40
    assert cache.rewind(seq, 39) == 24
    assert np.array_equal(machine.extend(seq, tokens[24:]), cold[24:])
    assert cache.rewind(seq, 23) == 10
    assert cache.rewind(seq, 9) == 0
    assert np.array_equal(machine.extend(seq, tokens), cold)
    cache.check_integrity()


def test_a_plan_needs_states_too(recurrent_path: RecurrentPath) -> None:
    machine = Machine(recurrent_path(HYBRID), max_sequences=1, resume_bytes=0)
    cache, tokens = machine.cache, random_tokens(4, machine.vocab, seed=12)
    first, second = cache.create(), cache.create()
    machine.extend(first, tokens)
    assert cache.stats()["states"]["slots"] == 2
    assert cache.plan([(first, tokens), (second, tokens)]) is None
    machine.extend(second, tokens)
    assert cache.plan([(first, tokens)]) is None
    cache.erase(second)
    machine.extend(first, tokens)
    cache.check_integrity()


def test_room_for_states_is_made_of_points(recurrent_path: RecurrentPath) -> None:
    path = recurrent_path(HYBRID)
    slot = Machine(path).cache.stats()["states"]["bytes_per_slot"]
    machine = Machine(path, max_sequences=1, resume_bytes=2 * slot)
    cache, tokens = machine.cache, random_tokens(9, machine.vocab, seed=13)
    for end in (3, 6):
        seq = cache.create()
        machine.extend(seq, tokens[:end])
        cache.erase(seq)
    assert cache.stats()["states"]["slots_resume"] == 2
    seqs = [cache.create() for _ in range(3)]
    assert cache.plan([(seq, tokens) for seq in seqs]) is None
    assert cache.make_room(27) >= 1
    assert cache.plan([(seq, tokens) for seq in seqs]) is not None
    cache.check_integrity()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"ssm_heads": 5, "ssm_head_dim": 16, "groups": 2}, "groups must divide heads"),
    ({"taps": 33}, "allowed is 1 to 32"),
    ({"pattern": "rr"}, "lists no layer with attention"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_sizes_that_do_not_fit(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write_tiny_recurrent(tmp_path / "model.gguf", TinyRecurrent(**changes))
    with pytest.raises((_core.CorruptModel, _core.UnsupportedModel), match=message):
        _core.Model(_core.GgufFile(path), _core.Backend(threads=1))


def test_each_tensor_is_needed(recurrent_path: RecurrentPath, tmp_path: Path) -> None:
    for name in ("mamba2", "lfm2", "granitehybrid"):
        source = recurrent_path(SPECS[name])
        data, broken = source.read_bytes(), tmp_path / "broken.gguf"
        for tensor in _core.GgufFile(source).tensors():
            if tensor.name == "token_embd_norm.weight":
                continue  # output_norm is its other name
            broken.write_bytes(data.replace(tensor.name.encode(), tensor.name[:-1].encode() + b"x"))
            with pytest.raises(_core.CorruptModel, match="is missing"):
                _core.Model(_core.GgufFile(broken), _core.Backend(threads=1))
