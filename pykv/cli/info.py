"""`pykv info`: what is in a model file, and what it needs."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING, Any

from pykv.cli import config, output
from pykv.cli.options import KV_TYPES, MODEL, POOL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pykv.model_facts import KvPlan, ModelFacts
    from pykv.pool_size import PoolRequest

EXAMPLES = """examples:
  pykv info                                   the default model
  pykv info model.gguf --metadata             every key of the file, too
  pykv info model.gguf -c 200000 -ctk q8_0    does this pool fit? exit code 3 if not
  pykv info model.gguf --json

The file is only described; no weights are loaded.
"""

_CHECK_FAILED = 3
_SHOWN_CONTEXTS = (4096, 32768)
_SHOWN_CHARS = 200


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "info",
        help="show what is in a model file and what it needs",
        description="Describes a GGUF file: what it is, whether it runs, what memory it takes.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--metadata", action="store_true", help="print every key of the file")
    config.declare(
        parser, {"": (MODEL, *POOL)}, json_help="print everything as JSON", positional="as --model"
    )


def run(args: argparse.Namespace) -> int:
    from pykv import models
    from pykv._core import GgufFile
    from pykv.model_facts import ModelFacts

    path = models.resolve(args.model or models.DEFAULT_MODEL)
    facts = ModelFacts(GgufFile(path))
    plans = memory_plans(facts, args)
    wanted = plans[0] if plans else None
    if args.json:
        print(json.dumps(_report(facts, plans, args), ensure_ascii=False))
    else:
        print("\n\n".join(_sections(facts, plans, args)))
    if wanted is not None and wanted.refusal:
        return _CHECK_FAILED
    return 0


def memory_plans(facts: ModelFacts, args: argparse.Namespace) -> list[KvPlan]:
    """The plan of the pool that the flags ask for, then one for every KV type that the model's
    heads can have. Empty if the file does not say what its layers are."""
    from pykv.memory import free_bytes
    from pykv.pool_size import PoolRequest

    of_file: dict[str, Any] = {
        "free": free_bytes() - facts.weight_bytes,
        "contexts": [n for n in _SHOWN_CONTEXTS if n < facts.context],
    }
    other = PoolRequest(swa_full=args.swa_full, resume_bytes=args.resume_bytes)
    request = dataclasses.replace(other, ctx_size=args.ctx_size, pool_bytes=args.pool_bytes)
    wanted = facts.kv_plan(args.cache_type_k, args.cache_type_v, request=request, **of_file)
    if wanted is None:
        return []
    return [wanted, *_plans_by_type(facts, other, of_file)]


def _plans_by_type(
    facts: ModelFacts, request: PoolRequest, of_file: dict[str, Any]
) -> Iterator[KvPlan]:
    from pykv._core import InvalidArgument

    for kind in KV_TYPES:
        try:
            plan = facts.kv_plan(kind, kind, request=request, **of_file)
        except InvalidArgument:  # a head is not whole blocks of the type
            continue
        if plan is not None:
            yield plan


def plan_text(facts: ModelFacts, plans: list[KvPlan]) -> str:
    """The memory plan as a table, and whether the pool that was asked for fits."""
    if not plans:
        return "Memory plan: the file does not say what its layers are."
    contexts = list(plans[0].contexts)
    head = ["KV type", "bytes/token", *(f"{n:,} tokens" for n in contexts), "default pool"]
    rows = [
        [
            plan.type_k,
            f"{plan.bytes_per_token:,}",
            *(output.size(plan.contexts[n]) for n in contexts),
            f"{plan.default_cells:,} cells" if plan.default_cells else "does not fit",
        ]
        for plan in plans[1:]
    ]
    lines = [output.table(head, rows, right=range(1, len(head)))]
    if facts.estimated:
        lines.append("Read from the metadata; windows and shared layers, which need less, are not.")
    wanted = plans[0]
    if wanted.refusal:
        lines.append(output.paint("Does not fit: ", "red") + wanted.refusal)
    else:
        lines.append(
            f"Fits: {wanted.default_cells:,} cells, K {wanted.type_k}, V {wanted.type_v}, "
            f"{output.size(wanted.bytes_reserved)} at most."
        )
    if len(wanted.pools) > 1 or wanted.states["slots"]:
        lines += ["", _pool_table(wanted, sum(map(any, facts.recurrent)))]
        lines.append(f"Resume points, within that: {output.size(wanted.resume_bytes)} at most.")
    return "\n".join(lines)


def _pool_table(plan: KvPlan, recurrent_layers: int) -> str:
    """What each pool reserves, and the slots for recurrent states."""
    head = ["pool", "layers", "cells", "bytes/cell", "at most"]
    rows = [
        [
            f"window of {pool['window'][1]:,}" if pool["window"] else "all tokens",
            str(pool["layers"]),
            f"{pool['cells_capacity']:,}",
            f"{pool['bytes_per_cell']:,}",
            output.size(pool["bytes_reserved"]),
        ]
        for pool in plan.pools
    ]
    slots, size = plan.states["slots"], plan.states["bytes_per_slot"]
    if slots:
        memory = output.size(slots * size)
        rows.append(["states", str(recurrent_layers), f"{slots:,}", f"{size:,}", memory])
    return output.table(head, rows, right=range(1, len(head)))


def _sections(facts: ModelFacts, plans: list[KvPlan], args: argparse.Namespace) -> list[str]:
    sections = [_overview(facts), _tensor_table(facts)]
    if args.metadata:
        sections.append(_metadata_table(facts))
    sections.append(plan_text(facts, plans))
    return sections


def _overview(facts: ModelFacts) -> str:
    gguf = facts.gguf

    def text(key: str) -> str:
        value = gguf.scalar(key)
        return output.visible(str(value)) if value else "unknown"

    return output.facts([
        ("file", f"{gguf.path}, GGUF {gguf.version}, {output.size(gguf.size)}"),
        ("name", text("general.name")),
        ("license", text("general.license")),
        ("architecture", text("general.architecture")),
        ("runs here", "no: " + facts.unsupported if facts.unsupported else "yes"),
        ("parameters", f"{facts.parameters:,}"),
        ("weights", output.size(facts.weight_bytes)),
        ("context", f"{facts.context:,} tokens"),
        ("layers", _layers(facts)),
        ("tokenizer", _tokenizer_text(facts)),
        ("chat template", _chat_template(facts)),
    ])  # fmt: skip


def _layers(facts: ModelFacts) -> str:
    if not facts.layers:
        return "unknown"
    one = facts.layers[0]
    return f"{len(facts.layers)}, {one.kv_heads} KV heads of {one.k_dim} (K) and {one.v_dim} (V)"


def _tokenizer_text(facts: ModelFacts) -> str:
    kind, pre, problem = _tokenizer(facts)
    tokens = facts.gguf.array_size("tokenizer.ggml.tokens") or 0
    return problem or f"{kind}, {pre}, {tokens:,} tokens"


def _chat_template(facts: ModelFacts) -> str:
    if facts.gguf.scalar("tokenizer.chat_template"):
        return "yes"
    try:
        from pykv.tokenizer.template import default_template
    except ModuleNotFoundError as error:
        return f"none; what is used was not looked at: the package {error.name!r} is missing"
    return f"none, {default_template(facts.gguf)[0]} is used"


def _tokenizer(facts: ModelFacts) -> tuple[str, str, str]:
    """Kind, pre-tokenizer, and why it cannot be used."""
    from pykv._core import CorruptModel, UnsupportedModel

    try:
        from pykv.tokenizer.metadata import MODELS, text_of, tokenizer_model
        from pykv.tokenizer.pretokenizers import pre_tokenizer
    except ModuleNotFoundError as error:
        return "", "", f"not looked at: the package {error.name!r} is missing"
    try:
        kind = tokenizer_model(facts.gguf)
        pre = text_of(facts.gguf, "tokenizer.ggml.pre", "default")
        if kind == "gpt2":
            pre_tokenizer(pre)
    except (CorruptModel, UnsupportedModel) as error:
        return "", "", str(error)
    return MODELS[kind], pre, ""


def _tensor_table(facts: ModelFacts) -> str:
    rows = [
        (
            kind.type,
            str(kind.tensors),
            f"{kind.parameters:,}",
            "not readable by this build" if kind.bytes is None else output.size(kind.bytes),
        )
        for kind in facts.tensor_types()
    ]
    return output.table(("tensor type", "tensors", "parameters", "bytes"), rows, right=(1, 2, 3))


def _metadata_table(facts: ModelFacts) -> str:
    rows = []
    for key, value in facts.metadata().items():
        elements = f"[{value[0]:,} elements]" if isinstance(value, list) else ""
        text = elements or output.visible(json.dumps(value, ensure_ascii=False))
        shown = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"
        rows.append((output.visible(key), shown))
    return output.table(("key", "value"), rows)


def _report(facts: ModelFacts, plans: list[KvPlan], args: argparse.Namespace) -> dict[str, Any]:
    kind, pre, problem = _tokenizer(facts)
    report: dict[str, Any] = {
        "path": str(facts.gguf.path),
        "bytes": facts.gguf.size,
        "architecture": facts.architecture,
        "supported": not facts.unsupported,
        "reason": facts.unsupported or None,
        "parameters": facts.parameters,
        "weight_bytes": facts.weight_bytes,
        "context": facts.context,
        "layers": len(facts.layers),
        "tokenizer": {"kind": kind, "pre": pre, "reason": problem or None},
        "tensor_types": [dataclasses.asdict(each) for each in facts.tensor_types()],
        "plan": dataclasses.asdict(plans[0]) if plans else None,
        "kv_types": [dataclasses.asdict(plan) for plan in plans[1:]],
    }
    if args.metadata:
        report["metadata"] = facts.metadata()
    return report
