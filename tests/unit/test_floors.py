"""A floor uses lower floors only (ARCHITECTURE.md, "Floors")."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

FLOOR_OF_HEADER = {
    "types.h": 1, "errors.h": 1, "dtype.h": 1, "layer_table.h": 1, "block_layout.h": 1,
    "cell_map.h": 1, "run_list.h": 1, "prefix_tree.h": 1, "policy.h": 1, "quant.h": 1,
    "rope.h": 1, "build_info.h": 1, "precision.h": 1, "backend.h": 2, "cache.h": 3, "gguf.h": 4,
    "model.h": 4, "sampling.h": 4, "engine.h": 5, "state_layout.h": 1,
}  # fmt: skip

FLOOR_OF_FOLDER = {
    "core": 1, "policy": 1, "quant": 1, "kernels": 1, "backend_cpu": 2, "cache": 3,
    "model": 4, "engine": 5,
}  # fmt: skip

# Folders of one floor that must not know each other: kernels know no cells, policies
# no tensors.
FORBIDDEN = {
    "kernels": {"cell_map.h", "run_list.h", "prefix_tree.h", "policy.h", "layer_table.h"},
    "policy": {"block_layout.h", "dtype.h", "layer_table.h", "quant.h"},
    "core": {"quant.h"},
}

FLOOR_OF_PACKAGE = {
    "pykv.tokenizer": 7, "pykv.server": 8, "pykv.bench": 8, "pykv.dashboard": 9, "pykv.cli": 10,
    "pykv.__main__": 10,
}  # fmt: skip


def includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.MULTILINE)


def floor_of_include(name: str) -> tuple[int, str] | None:
    if name.startswith("pykv/"):
        header = name.removeprefix("pykv/")
        return FLOOR_OF_HEADER[header], header
    folder = name.split("/")[0]
    return (FLOOR_OF_FOLDER[folder], name) if folder in FLOOR_OF_FOLDER else None


def cpp_sources() -> list[Path]:
    return sorted(p for p in (ROOT / "cpp/src").rglob("*") if p.suffix in {".cpp", ".h"})


def test_every_public_header_has_a_floor() -> None:
    headers = {p.name for p in (ROOT / "cpp/include/pykv").glob("*.h")}
    assert headers == set(FLOOR_OF_HEADER)


@pytest.mark.parametrize("header", sorted(FLOOR_OF_HEADER))
def test_headers_include_lower_floors_only(header: str) -> None:
    own = FLOOR_OF_HEADER[header]
    for name in includes(ROOT / "cpp/include/pykv" / header):
        found = floor_of_include(name)
        assert found is not None, f"{header} includes {name}: public headers use public headers"
        assert found[0] <= own, f"{header} (floor {own}) includes {name} (floor {found[0]})"


def test_sources_include_lower_floors_only() -> None:
    for path in cpp_sources():
        folder = path.relative_to(ROOT / "cpp/src").parts[0]
        own = FLOOR_OF_FOLDER[folder]
        for name in includes(path):
            found = floor_of_include(name)
            if found is None:
                continue
            assert found[0] <= own, f"{path} (floor {own}) includes {name} (floor {found[0]})"
            assert found[1] not in FORBIDDEN.get(folder, set()), f"{path} includes {name}"


def floor_of_module(module: str) -> int:
    for package, floor in FLOOR_OF_PACKAGE.items():
        if module == package or module.startswith(package + "."):
            return floor
    return 6 if module == "pykv._core" else 7


def imported_modules(path: Path) -> set[str]:
    """Modules of pykv that a file imports at its top level (lazy imports are visible
    too: a floor is a floor)."""
    text = path.read_text()
    found = set(re.findall(r"^\s*import\s+(pykv[\w.]*)", text, re.MULTILINE))
    for base, names in re.findall(
        r"^\s*from\s+(pykv[\w.]*)\s+import\s+([^\n(]+|\([^)]*\))", text, re.MULTILINE
    ):
        found.add(base)
        found.update(
            f"{base}.{n.split(' as ')[0].strip()}" for n in names.strip("()\n ").split(",")
        )
    return found


def python_modules() -> list[tuple[str, Path]]:
    own = [("pykv", p, ROOT / "pykv") for p in (ROOT / "pykv").rglob("*.py")]
    board = [("pykv.dashboard", p, ROOT / "dashboard") for p in (ROOT / "dashboard").rglob("*.py")]
    modules = []
    for prefix, path, base in own + board:
        if prefix == "pykv" and "dashboard" in path.relative_to(base).parts:
            continue  # the development symlink
        parts = path.relative_to(base).with_suffix("").parts
        modules.append((".".join([prefix, *(p for p in parts if p != "__init__")]), path))
    return modules


def test_python_imports_lower_floors_only() -> None:
    for module, path in python_modules():
        own = floor_of_module(module)
        for other in imported_modules(path):
            assert floor_of_module(other) <= own, f"{module} (floor {own}) imports {other}"
