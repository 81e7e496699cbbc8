"""Values of options: flag before environment before file before default."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from pykv import _core
from pykv.cli import config, main, options


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder for the configuration."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def show(home: Path, capsys: Any) -> Any:
    def printed(*arguments: str) -> dict[str, tuple[Any, str]]:
        assert main.main([*arguments, "--print-config", "--json"]) == 0
        return {
            k: (v["value"], v["origin"]) for k, v in json.loads(capsys.readouterr().out).items()
        }

    return printed


def write(home: Path, text: str) -> Path:
    path = home / "pykv" / "config.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_defaults(show: Any) -> None:
    values = show("serve")
    assert values["port"] == (8080, "default")
    assert values["model"] == (None, "default")
    assert values["verbose"] == (False, "default")
    assert show("bench", "batched")["npl"] == ([1, 4, 16], "default")
    assert show("bench", "batched")["batch_size"] == (512, "default")


def test_flag_before_environment_before_table_before_top_before_default(
    show: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(home, "port = 1\nthreads = 3\n[serve]\nport = 2\n[generate]\nthreads = 4\n")
    assert show("serve")["port"] == (2, f"{path}: [serve] port")
    assert show("serve")["threads"] == (3, f"{path}: threads")
    assert show("doctor")["port"] == (1, f"{path}: port")
    monkeypatch.setenv("PYKV_PORT", "5")
    assert show("serve")["port"] == (5, "environment PYKV_PORT")
    assert show("serve", "--port", "6")["port"] == (6, "command line")
    monkeypatch.setenv("PYKV_PORT", "")  # empty: as if it were not set
    assert show("serve")["port"] == (2, f"{path}: [serve] port")


def test_every_kind_of_value(show: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home, 'temp = 0\ntop-p = 0.5\nmodel = "x.gguf"\n[bench]\nnpp = [1, 2]\nntg = "3,4"\n'
                "[serve]\nverbose = true\n")  # fmt: skip
    assert show("generate")["temp"][0] == 0
    assert show("generate")["top_p"][0] == 0.5
    bench = show("bench", "batched")
    assert (bench["model"][0], bench["npp"][0], bench["ntg"][0]) == ("x.gguf", [1, 2], [3, 4])
    assert show("serve")["verbose"][0] is True
    assert show("serve", "--no-verbose")["verbose"] == (False, "command line")
    monkeypatch.setenv("PYKV_VERBOSE", "no")
    assert show("serve")["verbose"] == (False, "environment PYKV_VERBOSE")


def test_the_model_as_an_argument_goes_before_the_environment(
    show: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYKV_MODEL", "b.gguf")
    assert show("serve", "a.gguf")["model"] == ("a.gguf", "command line")
    assert show("info")["model"] == ("b.gguf", "environment PYKV_MODEL")


def test_the_table(home: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYKV_THREADS", "2")
    assert main.main(["tokenize", "--print-config"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"model +– +default", out[2])  # noqa: RUF001
    assert main.main(["doctor", "--print-config"]) == 0
    assert re.search(r"^threads +2 +environment PYKV_THREADS$", capsys.readouterr().out, re.M)


def test_files_by_name(show: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, port in (("a.toml", 1), ("b.toml", 2)):
        (home / name).write_text(f"port = {port}")
    write(home, "port = 3")
    assert show("serve")["port"][0] == 3
    monkeypatch.setenv("PYKV_CONFIG", str(home / "a.toml"))
    assert show("serve")["port"][0] == 1
    assert show("serve", "--config", str(home / "b.toml"))["port"][0] == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port = 70000", "config.toml: port: 70000 is not in 0 … 65535"),
        ("port = 1.5", "'1.5' is not a whole number"),
        ("port = true", "'true' is not a whole number"),
        ("port = 2024-01-01", "a date is not a value"),
        ("npp = [1, true]", "a list is not a value"),
        ("[serve]\nverbose = 3", r"[serve] verbose: '3' is not true or false"),
        ("[serve]\nprot = 1", r"[serve]: nothing is called 'prot'; did you mean port?"),
        ("colour = 1", "nothing is called 'colour'"),
        ("serve = 1", "serve must be a table: [serve]"),
        ("[port]\nx = 1", "port must be a value: tables are for commands"),
        ("[serve.port]\nx = 1", "[serve] port: a table is not a value"),
        ("pool-bytes = 1\npool_bytes = 2", "pool_bytes stands twice"),
        ("port = ", "config.toml: "),
        ("cache_type_k = \"q3\"", "'q3' is not one of f32, f16"),
        ("port = '\xff'".encode("latin-1").decode("latin-1"), "'ÿ' is not a whole number"),
    ],
)  # fmt: skip
def test_wrong_files_are_wrong_usage(home: Path, capsys: Any, text: str, message: str) -> None:
    write(home, text)
    command = "bench batched" if "npp" in text else "serve"
    with pytest.raises(SystemExit) as caught:
        main.main([*command.split(), "--print-config"])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_files_that_are_no_text_or_too_large_or_missing(home: Path, capsys: Any) -> None:
    path = write(home, "")
    too_large = b"#" * (1 << 20) + b"\n"
    for data, message in ((b"a\xff", "not UTF-8: byte 1 is 255"), (too_large, "larger than")):
        path.write_bytes(data)
        with pytest.raises(SystemExit):
            main.main(["serve", "--print-config"])
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main.main(["serve", "--config", str(home / "none.toml")])
    assert "there is no configuration file" in capsys.readouterr().err
    assert main.main(["serve", "--config", str(home), "--print-config"]) == 1
    assert "Is a directory" in capsys.readouterr().err


def test_no_file_at_all(show: Any, home: Path) -> None:
    write(home, "port = 1")
    assert show("serve", "--config", "/dev/null")["port"] == (8080, "default")


def test_wrong_variables_are_wrong_usage(
    home: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYKV_CTX_SIZE", "many")
    with pytest.raises(SystemExit) as caught:
        main.main(["serve"])
    assert caught.value.code == 2
    assert "PYKV_CTX_SIZE: 'many' is not a whole number" in capsys.readouterr().err


def test_python_without_a_toml_reader_names_the_package(
    home: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.10 has none; the server's extra brings one."""
    write(home, "port = 1")
    for name in ("tomllib", "tomli"):
        monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    assert main.main(["serve", "--print-config"]) == 1
    assert "'tomli' is missing; pip install 'pykv-cache[server]'" in capsys.readouterr().err


def test_no_home_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(config.Path, "home", homeless)
    assert config._path(None, {}) is None


def test_kv_types_are_those_of_the_core() -> None:
    assert list(options.KV_TYPES) == _core.kv_types()


def test_names_are_unique_and_flags_spell_them() -> None:
    keys = [option.key for option in options.ALL]
    assert len(set(keys)) == len(keys)
    assert not {f"PYKV_{name}" for name in ("MODELS", "DEBUG", "CONFIG")} & {
        option.variable for option in options.ALL
    }
    for option in options.ALL:
        assert option.parse is None or option.unset or option.default is not None
