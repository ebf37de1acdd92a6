"""Attention written out in somebody's forward, rewritten as one call of scaled_dot_product_attention."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from torchgauge.advise.code import Source, SourceEdit, Span, called, receiver

_CASTS = {"to", "type_as", "float", "half", "type", "contiguous"}


@dataclass
class WrittenAttention:
    """Follows the scores from the first product to the second, through the expressions and statements of one block.
    `scale`: what they are multiplied with, None for one over the root of the head's size; `taken` and `given`: what is
    done to queries, keys and values, and to the result, for a dimension of heads that the code does without."""

    source: Source
    scale: float | None
    is_causal: bool
    taken: str = ""
    given: str = ""
    mask_taken: str = ""
    mask: str | None = None
    dropout: str | None = None
    drops_when: str = "self.training"
    is_softmax_seen: bool = False
    gone: list[Span] = field(default_factory=list)

    def edit(self, first: int, last: int) -> SourceEdit | None:
        """None where the scores are used elsewhere, or the code has a form that says too little."""
        source, functional = self.source, self.source.functional
        starts = [node for node in source.expressions(first) if source.product(node) is not None]
        if not starts or functional is None:
            return None
        start = starts[0]
        end = self._follow(start)
        factors, ends = source.product(start), None if end is None else source.product(end)
        if factors is None or end is None or ends is None or not end.lineno <= last <= (end.end_lineno or 0):
            return None
        tensors = [self._operand(factors[0]), self._key(factors[1]), self._operand(ends[1])]
        arguments = [", ".join(f"{tensor}{self.taken}" for tensor in tensors)]
        if self.is_causal:
            arguments.append("is_causal=True")
        elif self.mask is not None:
            arguments.append(
                f"attn_mask=({self.mask}){self.mask_taken}" if self.mask_taken else f"attn_mask={self.mask}"
            )
        if self.dropout is not None:
            arguments.append(f"dropout_p={self.dropout} if {self.drops_when} else 0.0")
        if self.scale is not None:
            arguments.append(f"scale={float(f'{self.scale:.6g}')}")
        name = f"{functional}.scaled_dot_product_attention"
        return source.edit([*self.gone, *source.replaced_by_call(end, name, arguments, self.given)])

    def _follow(self, node: ast.expr) -> ast.expr | None:
        """The second product, from the first one up through what is done with the scores."""
        while True:
            around = self.source.parents[node]
            factors = self.source.product(around)
            if factors is not None and isinstance(around, ast.expr):
                return around if factors[0] is node and self.is_softmax_seen else None
            if isinstance(around, ast.Assign | ast.AugAssign):
                further = self._next_use(around)
                if further is None:
                    return None
                node = further
            elif isinstance(around, ast.expr) and self._passes(around, node):
                node = around
            else:
                return None

    def _passes(self, step: ast.expr, scores: ast.expr) -> bool:
        """Notes what a step does to the scores; False for one that has no place in fused attention."""
        if isinstance(step, ast.BinOp):
            other = step.right if step.left is scores else step.left
            return self._combines(step.op, self.source.text(other))
        call = self.source.parents[step]
        if isinstance(step, ast.Attribute):  # a method: the call around it says what it does
            return isinstance(call, ast.Call) and call.func is step
        if not isinstance(step, ast.Call) or (step.func is not scores and scores not in step.args[:1]):
            return False
        name = called(step)
        if name == "softmax" or (name.endswith("softmax") and "log" not in name):
            self.is_softmax_seen = True
            return True
        if "drop" in name and self.is_softmax_seen:
            return self._drops(step, name)
        if name in ("masked_fill", "masked_fill_") and not self.is_softmax_seen:
            given = step.args if receiver(step, self.source) not in step.args else step.args[1:]
            return len(given) == 2 and self._masks(self._kept(given[0]))
        return name in _CASTS

    def _combines(self, operator: ast.operator, other: str) -> bool:
        if isinstance(operator, ast.Mult | ast.Div):
            return self.mask is None and not self.is_softmax_seen  # the mask would be scaled with the scores
        return isinstance(operator, ast.Add) and not self.is_softmax_seen and self._masks(other)

    def _masks(self, text: str) -> bool:
        is_first, self.mask = self.mask is None, text
        return is_first

    def _drops(self, call: ast.Call, name: str) -> bool:
        """Its probability, in training only."""
        if isinstance(call.func, ast.Attribute) and self.source.text(call.func.value) == "self":
            self.dropout = f"self.{name}.p"
            return True
        given = [*call.args[1:2], *(keyword.value for keyword in call.keywords if keyword.arg == "p")]
        self.dropout = self.source.operand(given[0]) if given else None
        return self.dropout is not None

    def _kept(self, hidden: ast.expr) -> str:
        """Where attention looks, from where it does not."""
        if isinstance(hidden, ast.UnaryOp) and isinstance(hidden.op, ast.Invert):
            return self.source.text(hidden.operand)
        zero = isinstance(hidden, ast.Compare) and isinstance(hidden.ops[0], ast.Eq)
        if zero and isinstance(hidden, ast.Compare) and self.source.text(hidden.comparators[0]) in ("0", "False"):
            return f"{self.source.text(hidden.left)} != 0"
        return f"~{self.source.operand(hidden)}"

    def _operand(self, node: ast.expr) -> str:
        return self.source.operand(node) if self.taken else self.source.text(node)

    def _key(self, turned: ast.expr) -> str:
        """The second factor as attention wants it: not transposed."""
        if isinstance(turned, ast.Attribute) and turned.attr == "mT":
            return self._operand(turned.value)
        if isinstance(turned, ast.Call) and called(turned) == "transpose":
            given = [self.source.text(argument) for argument in turned.args[-2:]]
            key = receiver(turned, self.source)
            if key is not None and sorted(given) in (["-1", "-2"], ["2", "3"]):
                return self._operand(key)
        return f"{self.source.operand(turned)}.transpose(-2, -1)"

    def _next_use(self, statement: ast.Assign | ast.AugAssign) -> ast.expr | None:
        """Where the variable that a statement assigns is read, if once; the statement goes."""
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        if len(targets) != 1 or not isinstance(targets[0], ast.Name):
            return None
        name, gone = targets[0].id, self.source.deleted(statement)
        following, reads = self._first_read(statement, name)
        while isinstance(following, ast.If) and gone and self._is_optional(following, name):
            gone += self.source.deleted(following)
            following, reads = self._first_read(following, name)
        is_compound = isinstance(following, ast.If | ast.For | ast.While | ast.With | ast.Try)
        if following is None or len(reads) != 1 or is_compound or not gone:
            return None
        self.gone += gone
        if isinstance(following, ast.AugAssign) and reads[0] is following.target:  # `scores *= scale`
            return reads[0] if self._combines(following.op, self.source.text(following.value)) else None
        is_written = isinstance(following, ast.Assign) and bool(_names(following.targets[0], name, ast.Store))
        return reads[0] if is_written or self._first_read(following, name)[0] is None else None

    def _first_read(self, statement: ast.stmt, name: str) -> tuple[ast.stmt | None, list[ast.Name]]:
        """The first statement behind one in its block that reads a variable, and where it does."""
        following = self.source.next_statement(statement)
        while following is not None and not _names(following, name):
            following = self.source.next_statement(following)
        return following, [] if following is None else _names(following, name)

    def _is_optional(self, branch: ast.If, name: str) -> bool:
        """Whether it is `if mask is not None: scores = scores.masked_fill(mask == 0, value)`, or such a dropout; notes
        the mask and the dropout as what they are with the condition."""
        test, inner, mask, dropout = branch.test, branch.body[0], self.mask, self.dropout
        is_test = isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot) and not branch.orelse
        if not isinstance(test, ast.Compare) or not is_test or len(branch.body) != 1:
            return False
        if isinstance(inner, ast.AugAssign):
            is_known = self._combines(inner.op, self.source.text(inner.value))
        elif isinstance(inner, ast.Assign) and len(scores := _names(inner.value, name)) == 1:
            inside = self.source.parents[scores[0]]
            is_known = self._passes(inner.value, inside if isinstance(inside, ast.Attribute) else scores[0])
        else:
            return False
        given = self.source.text(test.left)
        if self.mask != mask and self.mask != given:
            self.mask = f"None if {given} is None else {self.mask}"
        if self.dropout != dropout:
            self.drops_when = f"{given} is not None and self.training"
        is_changed = (self.mask, self.dropout) != (mask, dropout)
        return is_known and is_changed and not self.is_causal


def _names(node: ast.AST, name: str, context: type[ast.expr_context] = ast.Load) -> list[ast.Name]:
    """Where a variable is read, or written; `x += 1` reads it too."""
    found = [each for each in ast.walk(node) if isinstance(each, ast.Name) and each.id == name]
    is_both = isinstance(node, ast.AugAssign) and context is ast.Load
    return found if is_both else [each for each in found if isinstance(each.ctx, context)]
