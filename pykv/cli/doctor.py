"""`pykv doctor`: what is wrong on this machine, and what to do."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from pykv.cli import config, output
from pykv.cli.checks import Finding
from pykv.cli.checks.install import check_folders, check_packages
from pykv.cli.checks.machine import check_machine
from pykv.cli.checks.ports import check_port, reachable
from pykv.cli.checks.prompts import Divergence, compare, read_prompt
from pykv.cli.options import ADMIN_PORT, HOST, MODEL, POOL, PORT, THREADS

EXAMPLES = """examples:
  pykv doctor                              this machine, ports, folders, packages
  pykv doctor --model model.gguf -c 65536  does this model with this pool fit?
  pykv doctor --prompts monday.txt tuesday.txt
                                           from where on two prompts cannot share

Exit code 3 if there is a problem.
"""

_CHECK_FAILED = 3
_MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "problem": ("problem", "red")}


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="find what is wrong on this machine, and what to do",
        description="Checks the machine, the installation and, with a model, the memory plan.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--prompts", nargs=2, metavar=("A", "B"), type=Path,
        help="compare two text files, as tokens of the model",
    )  # fmt: skip
    config.declare(
        parser,
        {"": (MODEL, THREADS), "addresses": (HOST, PORT, ADMIN_PORT), "KV cache": POOL},
        json_help="print all findings as JSON",
    )


def run(args: argparse.Namespace) -> int:
    if args.prompts:
        return _compare(args)
    findings = [
        *check_machine(args.threads),
        *_addresses(args),
        *check_folders(),
        *check_packages(),
    ]
    plan = ""
    if args.model:
        findings_of_model, plan = _model(args)
        findings += findings_of_model
    if args.json:
        print(json.dumps([dataclasses.asdict(each) for each in findings], ensure_ascii=False))
    else:
        print(_text(findings))
        if plan:
            print(f"\n{plan}")
    return _CHECK_FAILED if any(each.state == "problem" for each in findings) else 0


def _addresses(args: argparse.Namespace) -> list[Finding]:
    findings = [
        check_port("API", args.host, args.port, "--port"),
        check_port("dashboard", "127.0.0.1", args.admin_port, "--admin-port"),
    ]
    if reachable(args.host):
        found = f"{args.host} can be reached from other machines, and the API has no login"
        findings.append(Finding("API", "note", found, "use 127.0.0.1, or a proxy with a login"))
    return findings


def _model(args: argparse.Namespace) -> tuple[list[Finding], str]:
    """Findings about the model and its memory plan, and the plan as text."""
    from pykv import models
    from pykv._core import Error, GgufFile
    from pykv.cli.info import memory_plans, plan_text
    from pykv.model_facts import ModelFacts

    try:
        facts = ModelFacts(GgufFile(models.resolve(args.model)))
    except Error as error:
        return [Finding("model", "problem", str(error))], ""
    findings = [Finding("model", "ok", f"{facts.architecture}, {facts.parameters:,} parameters")]
    if facts.unsupported:
        advice = "use another model file; pykv info says which parts are not supported"
        findings = [Finding("model", "problem", facts.unsupported, advice)]
    plans = memory_plans(facts, args)
    if plans and plans[0].refusal:
        findings.append(Finding("pool", "problem", plans[0].refusal))
    elif plans:
        found = f"{plans[0].default_cells:,} cells, {output.size(plans[0].bytes_reserved)} at most"
        findings.append(Finding("pool", "ok", found))
    return findings, plan_text(facts, plans)


def _text(findings: list[Finding]) -> str:
    size = max(len(each.name) for each in findings)
    lines = []
    for each in findings:
        word, colour = _MARKS[each.state]
        mark = output.paint(word.ljust(7), colour)
        lines.append(f"{mark}  {each.name.ljust(size)}  {each.found}")
        if each.advice:
            lines.append(f"{' ' * 7}  {' ' * size}  → {each.advice}")
    problems = sum(each.state == "problem" for each in findings)
    lines.append("" if not problems else f"\n{problems} problem{'s' * (problems > 1)} found.")
    return "\n".join(lines).rstrip()


def _compare(args: argparse.Namespace) -> int:
    from pykv import models
    from pykv._core import GgufFile
    from pykv.tokenizer import Tokenizer

    texts = [read_prompt(path) for path in args.prompts]
    path = models.resolve(args.model or models.DEFAULT_MODEL)
    found = compare(Tokenizer.from_gguf(GgufFile(path)), *texts)
    print(
        json.dumps(dataclasses.asdict(found), ensure_ascii=False) if args.json else _parting(found)
    )
    return 0


def _parting(found: Divergence) -> str:
    a, b = found.tokens
    if found.same:
        return f"The prompts are the same {a:,} tokens."
    share = found.common_tokens / max(1, min(a, b))
    lines = [
        f"A has {a:,} tokens, B has {b:,}. The first {found.common_tokens:,} are the same "
        f"({share:.0%} of the shorter one); what follows is computed for each.",
        f"The texts part at line {found.line}, column {found.column}:",
        f"  before  …{output.visible(found.before)}",
        f"  A       {output.visible(found.after[0]) or '(ends here)'}",
        f"  B       {output.visible(found.after[1]) or '(ends here)'}",
    ]
    if max(a, b) > found.common_tokens:
        lines.append("Text that changes from call to call belongs behind the text that stays.")
    return "\n".join(lines)
