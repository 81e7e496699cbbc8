"""`pykv tokenize` and `info`."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pykv import _core
from pykv.cli import info, main, output
from pykv.model_facts import ModelFacts
from tests.reference.gguf_files import TinyModel, vocabulary, write_tiny_model

MIB = 1 << 20


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


@pytest.fixture
def run(capsys: Any) -> Any:
    def printed(*arguments: str, code: int = 0) -> str:
        assert main.main(arguments) == code
        out: str = capsys.readouterr().out
        return out

    return printed


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(data: bytes) -> None:
        source = SimpleNamespace(buffer=SimpleNamespace(read=lambda: data))
        monkeypatch.setattr("sys.stdin", source)

    return use


# --- tokenize --------------------------------------------------------------------


def test_tokens_as_a_table(run: Any, tiny: str) -> None:
    assert run("tokenize", "-m", tiny, "the é\n") == (
        " id  type    piece\n"
        "---  ------  -----\n"
        "119  normal  \"t\"\n"
        "260  normal  \"he\"\n"
        " 35  normal  \" \"\n"
        "198  normal  \\xc3\n"
        "172  normal  \\xa9\n"
        " 13  normal  \"\\n\"\n"
    )  # fmt: skip


def test_ids_count_and_json(run: Any, tiny: str) -> None:
    ids = [int(word) for word in run("tokenize", "-m", tiny, "--ids", "the cat").split()]
    assert run("tokenize", "-m", tiny, "--count", "the cat") == f"{len(ids)}\n"
    report = json.loads(run("tokenize", "-m", tiny, "--json", "the é"))
    assert report["count"] == len(report["ids"]) == len(report["tokens"])
    assert report["tokens"][0] == {"id": report["ids"][0], "type": "normal", "piece": "t"}
    assert report["tokens"][-1]["bytes"] == [0xA9]
    assert (report["model"], report["pre"], report["vocab_size"]) == ("gpt2", "smollm", 294)


def test_specials(run: Any, tiny: str, tmp_path: Path) -> None:
    end = vocabulary().index("<|im_end|>")
    assert str(end) not in run("tokenize", "-m", tiny, "--ids", "<|im_end|>").split()
    assert run("tokenize", "-m", tiny, "--ids", "--parse-special", "<|im_end|>") == f"{end}\n"


def test_begin_tokens(run: Any, gemma3_path: Path) -> None:
    model = ("-m", str(gemma3_path))
    assert run("tokenize", *model, "--ids", "hi") == "2 2202\n"
    assert run("tokenize", *model, "--ids", "--no-special", "hi") == "2202\n"
    assert json.loads(run("tokenize", *model, "--json", "hi"))["model"] == "llama"


def test_stdin_and_back(run: Any, tiny: str, stdin: Any, capsys: Any) -> None:
    text = "the cat é \t世\n"
    stdin(text.encode())
    ids = run("tokenize", "-m", tiny, "--ids")
    stdin(f"[{ids.strip().replace(' ', ', ')}]\n".encode())
    assert run("tokenize", "-m", tiny, "--decode") == text + "\n"
    assert json.loads(run("tokenize", "-m", tiny, "--decode", "--json", "119 260")) == {
        "ids": [119, 260], "text": "the",
    }  # fmt: skip
    stdin(b"\xff")
    assert main.main(["tokenize", "-m", tiny, "-"]) == 1
    assert "stdin is not UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["1 x", "-1", "", "1.5", "9" * 30])
def test_what_is_no_id(tiny: str, text: str, capsys: Any) -> None:
    assert main.main(["tokenize", "-m", tiny, "--decode", "--", text]) == 1
    assert "takes token ids" in capsys.readouterr().err
    assert main.main(["tokenize", "-m", tiny, "--decode", "294"]) == 1
    assert "token id 294 is not in the vocabulary" in capsys.readouterr().err


# --- info ------------------------------------------------------------------------


def test_facts_of_a_model_that_runs(smollm2_gguf: Any) -> None:
    facts = ModelFacts(smollm2_gguf)
    assert (facts.architecture, facts.context, facts.unsupported) == ("llama", 8192, "")
    assert facts.parameters == 134_515_008
    assert facts.weight_bytes == 96_576_768
    assert [(t.type, t.tensors, t.bytes) for t in facts.tensor_types()] == [
        ("Q4_1", 210, 66_355_200), ("Q8_0", 1, 30_081_024), ("F32", 61, 140_544),
    ]  # fmt: skip
    plan = facts.kv_plan("f16", "f16", free=10_000 * 23_040 * 2)
    assert plan is not None
    assert plan.bytes_per_token == 30 * 3 * (64 + 64) * 2
    assert plan.context_bytes == 8192 * plan.bytes_per_token
    assert plan.default_cells == 12_000  # 60 %
    small = facts.kv_plan("f16", "f16", free=100)
    assert small is not None and small.default_cells == 0
    assert "--cache-type-k q8_0" in small.refusal


def test_facts_of_gemma3(gemma3_gguf: Any) -> None:
    facts = ModelFacts(gemma3_gguf)
    assert facts.architecture == "gemma3"
    assert facts.parameters == 268_098_176
    assert len(facts.layers) == 18
    layer = facts.layers[0]
    assert (layer.kv_heads, layer.k_dim, layer.v_dim) == (1, 256, 256)


def test_info_for_people(run: Any, smollm2_path: Path) -> None:
    out = run("info", str(smollm2_path), "--metadata")
    for text in (
        "architecture   llama", "runs here      yes", "parameters     134,515,008",
        "weights        92.1 MiB", "tokenizer      byte-level BPE, smollm, 49,152 tokens",
        "tokenizer.ggml.tokens", "[49,152 elements]", "Fits: ",
    ):  # fmt: skip
        assert text in out
    for kind in _core.kv_types():
        assert f"\n{kind} " in out


def test_info_as_json(run: Any, smollm2_path: Path) -> None:
    report = json.loads(run("info", str(smollm2_path), "--json", "-ctk", "q8_0"))
    assert report["supported"] is True and report["reason"] is None
    assert [each["type_k"] for each in report["kv_types"]] == _core.kv_types()
    assert (report["plan"]["type_k"], report["plan"]["type_v"]) == ("q8_0", "f16")
    assert "metadata" not in report


def test_what_does_not_fit_fails_the_check(
    run: Any, smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pykv.memory.free_bytes", lambda: 400 * MIB)
    assert "default pool" in run("info", str(smollm2_path))
    out = run("info", str(smollm2_path), "-c", "20000", code=3)
    assert "Does not fit: " in out and "use at most --ctx-size" in out
    assert "Fits: 20,000 cells, K q8_0" in run(
        "info", str(smollm2_path), "-c", "20000", "-ctk", "q8_0", "-ctv", "q8_0"
    )
    out = run("info", str(smollm2_path), "--pool-bytes", str(1 << 40), "--json", code=3)
    assert "--pool-bytes" in json.loads(out)["plan"]["refusal"]
    monkeypatch.setattr("pykv.memory.free_bytes", lambda: 50 * MIB)  # not even the weights
    assert "does not fit" in run("info", str(smollm2_path), code=3)


class Gguf:
    """A GGUF file that says what the test says."""

    path, size, version = "x.gguf", 1000, 3

    def __init__(self, values: dict[str, Any], tensors: list[Any]) -> None:
        self.values, self._tensors = values, tensors

    def scalar(self, key: str) -> Any:
        value = self.values.get(key)
        return None if isinstance(value, list) else value

    def array_size(self, key: str) -> int | None:
        value = self.values.get(key)
        return len(value) if isinstance(value, list) else None

    def integer_array(self, key: str) -> Any:
        return self.values[key]

    def keys(self) -> list[str]:
        return list(self.values)

    def tensors(self) -> list[Any]:
        return self._tensors


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Facts of a file of an architecture that nobody knows."""

    def refuse(gguf: Any) -> Any:
        raise _core.UnsupportedModel("[Model.load] has architecture 'x', supported are: llama")

    monkeypatch.setattr(_core, "read_layer_table", refuse)

    def make(values: dict[str, Any]) -> ModelFacts:
        named = {"general.architecture": "x"} | {f"x.{key}": v for key, v in values.items()}
        return ModelFacts(Gguf(named, []))

    return make


WHOLE = {"block_count": 4, "attention.head_count": 8, "embedding_length": 512}


@pytest.mark.parametrize(
    ("values", "layers"),
    [
        (WHOLE, (4, 8, 64, 64)),
        (WHOLE | {"attention.head_count_kv": 2}, (4, 2, 64, 64)),
        (WHOLE | {"attention.head_count_kv": [1, 2, 2, 1]}, (4, 2, 64, 64)),
        (WHOLE | {"attention.key_length": 128, "attention.value_length": 96}, (4, 8, 128, 96)),
        ({}, None),
        (WHOLE | {"block_count": 0}, None),
        (WHOLE | {"block_count": -1}, None),
        (WHOLE | {"block_count": 2**40}, None),
        (WHOLE | {"block_count": "many"}, None),
        (WHOLE | {"attention.key_length": 2**62}, None),
        (WHOLE | {"attention.head_count": True}, None),
    ],
)
def test_layers_by_the_metadata(unknown: Any, values: dict[str, Any], layers: Any) -> None:
    facts = unknown(values)
    assert facts.estimated
    found = facts.layers
    shape = (len(found), found[0].kv_heads, found[0].k_dim, found[0].v_dim) if found else None
    assert shape == layers


def test_nothing_known_is_said(unknown: Any, capsys: Any) -> None:
    facts = unknown({})
    assert facts.kv_plan("f16", "f16", free=1) is None
    assert "does not say" in info.plan_text(facts, [])


def test_names_in_files_cannot_move_the_cursor(unknown: Any) -> None:
    facts = unknown({})
    facts.gguf.values["general.name"] = "\x1b[2Jok\nruns here  yes"
    assert "name           \\x1b[2Jok\\nruns here  yes" in info._overview(facts)
    facts.gguf.values["\x1bkey"] = "\x9b1m" * 99
    table = info._metadata_table(facts)
    assert "\x1b" not in table and "\x9b" not in table and "…" in table


def test_tables_count_columns_as_a_terminal_does() -> None:
    assert output.table(("a", "b"), [("世界", "1"), ("e\u0301", "22")], right=(1,)) == (
        "a      b\n----  --\n世界   1\ne\u0301     22"
    )


def test_sizes() -> None:
    assert [output.size(n) for n in (0, 1023, 1024, 3 << 19, 5 << 40)] == [
        "0 B", "1,023 B", "1.0 KiB", "1.5 MiB", "5,120.0 GiB",
    ]  # fmt: skip


def test_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    assert output.paint("x", "red") == "x"  # not a terminal
    monkeypatch.setattr("sys.stdout", SimpleNamespace(isatty=lambda: True))
    assert output.paint("x", "red") == "\x1b[31mx\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert output.paint("x", "red") == "x"
    monkeypatch.setenv("NO_COLOR", "")
    monkeypatch.setenv("TERM", "dumb")
    assert output.paint("x", "red") == "x"


def test_tiny_models_are_described(run: Any, tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "q.gguf", TinyModel(weight_type="Q8_0"))
    report = json.loads(run("info", "--model", str(path), "--json"))
    assert {each["type"] for each in report["tensor_types"]} == {"F32", "Q8_0"}
    assert report["tokenizer"] == {"kind": "byte-level BPE", "pre": "smollm", "reason": None}
