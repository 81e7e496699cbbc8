"""Puts charges into a parsed template and refuses what chat templates do not need."""

from __future__ import annotations

from typing import Any

from jinja2 import TemplateSyntaxError, nodes
from jinja2.visitor import NodeTransformer

_REFUSED: dict[type[nodes.Node], str] = {
    nodes.Block: "block",
    nodes.Extends: "extends",
    nodes.FromImport: "from … import",
    nodes.Import: "import",
    nodes.Include: "include",
    nodes.ScopedEvalContextModifier: "autoescape",
}


# Compiling takes 0.1 ms a node and quadratic time in the depth. The longest templates in
# use have some 6,000 nodes, 30 deep.
_MAX_NODES = 20_000
_MAX_DEPTH = 150


def instrument(template: nodes.Template) -> nodes.Template:
    """Changes the tree in place and returns it. Every loop turn, macro body, text, join,
    slice, comparison and new container becomes a call of the environment, which counts
    calls and sizes; filters, tests, operators and calls count themselves."""
    level: list[nodes.Node] = [template]
    count = 0
    for _ in range(_MAX_DEPTH):
        count += len(level)
        if count > _MAX_NODES:
            raise TemplateSyntaxError(f"longer than {_MAX_NODES} expressions", level[0].lineno)
        for node in level:
            if type(node) in _REFUSED:
                name = _REFUSED[type(node)]
                raise TemplateSyntaxError(f"{name} is not available in chat templates", node.lineno)
        level = [child for node in level for child in node.iter_child_nodes()]
    if level:
        raise TemplateSyntaxError(f"nested more than {_MAX_DEPTH} deep", level[0].lineno)
    _Instrument().visit(template)
    return template


def _charged(name: str, node: nodes.Node, *args: nodes.Expr) -> nodes.Call:
    target = nodes.EnvironmentAttribute(name)
    return nodes.Call(target, list(args), [], None, None).set_lineno(node.lineno)  # type: ignore[return-value]


def _tick(node: nodes.Node) -> nodes.ExprStmt:
    return nodes.ExprStmt(_charged("tick", node), lineno=node.lineno)


class _Instrument(NodeTransformer):
    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _tick(node))
        if node.test is not None:
            node.test = nodes.And(_charged("tick", node), node.test, lineno=node.lineno)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _tick(node))
        return node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        # Jinja writes template text past `finalize`; a constant goes through it.
        return nodes.Const(node.data, lineno=node.lineno)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _charged("concatenated", node, nodes.List(node.nodes, lineno=node.lineno))

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = (node.arg.start, node.arg.stop, node.arg.step)
        parts = [part or nodes.Const(None, lineno=node.lineno) for part in bounds]
        return _charged("cut", node, node.node, *parts)

    def _counted(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        if getattr(node, "ctx", "load") != "load":
            return node  # type: ignore[no-any-return]
        return _charged("same", node, node)

    visit_Compare = _counted
    visit_List = _counted
    visit_Tuple = _counted
    visit_Dict = _counted
