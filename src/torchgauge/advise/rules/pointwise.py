"""Functions written out in pointwise ops: each is a pass over memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torchgauge.advise.activations import Written
from torchgauge.advise.code import Patch, SourceEdit
from torchgauge.advise.evidence import Evidence, common_path, moved
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.advise.rules.loops import is_recurrent_layer
from torchgauge.facts import OpRecord

_LEAST_CHAIN = 4
# Torch's exact GELU computes erf in a shorter form: 0.9 to 1.0 ns for an element on one core, erf alone 1.5.
_GELU_OF_ERF = 0.65


@rule("gelu-by-hand", family="fusion")
def gelu_by_hand(evidence: Evidence) -> Iterator[Advice]:
    yield from _written_out(evidence, "gelu-by-hand", lambda name: name == "gelu")


@rule("silu-by-hand", family="fusion")
def silu_by_hand(evidence: Evidence) -> Iterator[Advice]:
    """A tensor multiplied with its own sigmoid; with that of another half it is a gate."""
    yield from _written_out(evidence, "silu-by-hand", lambda name: name == "silu")


@rule("activation-by-hand", family="fusion")
def activation_by_hand(evidence: Evidence) -> Iterator[Advice]:
    """Any other activation that torch has one kernel for: hard-swish, Mish, a sigmoid by exponentials."""
    yield from _written_out(evidence, "activation-by-hand", lambda name: name not in ("gelu", "silu"))


def _written_out(evidence: Evidence, rule_name: str, is_wanted: Callable[[str], bool]) -> Iterator[Advice]:
    wanted = [written for written in evidence.activations if is_wanted(written.function.name)]
    in_module: dict[str, list[Written]] = {}
    for written in wanted:
        in_module.setdefault(common_path([op.module for op in written.ops]), []).append(written)
    for path, written in [(path, each) for path, found in in_module.items() for each in found]:
        function, chain = written.function, written.ops
        yield Advice(
            rule=rule_name,
            where=Where(path, tuple(op.index for op in chain)),
            evidence={
                "function": function.module,
                "ops": len(chain),
                "passes": [op.op for op in chain],
                "bytes_moved": _bytes(chain),
            },
            recommendation=f"use torch's {function.module.partition('(')[0]}: as separate ops it reads and writes "
            "memory once per op",
            change=_torch_function(evidence, path, written, in_module[path]),
            # Not every kernel is faster than the ops: Mish has no vector code, and MKL's tanh is faster on Intel's
            # processors than the one inside torch's GELU.
            expected_gain=_one_pass(
                evidence,
                chain,
                _GELU_OF_ERF if function.module == "GELU('none')" else 1.0,
                evidence.function_s(function.kernel, chain[-1].signature.outputs[0].numel),
            ),
            risk="rounding differs in the last digits",
            confidence="high",
        )


def _torch_function(
    evidence: Evidence, path: str, written: Written, in_module: Sequence[Written]
) -> Patch | SourceEdit | None:
    """A module that does nothing else is replaced; in a larger forward, the expression is. `in_module` are the
    functions that the module computes in all of its calls."""
    function, chain = written.function, written.ops
    same = [each for each in in_module if each.function is function]
    if evidence.is_whole(path, (op for each in same for op in (*each.ops, *each.numbers)), len(same)):
        note = ""
        if function.name == "gelu" and evidence.library_of(chain[0]) == "transformers":
            names = "gelu_pytorch_tanh" if "tanh" in function.module else "gelu"
            note = f"  # or config.activation_function = {names!r}"
        return Patch(f"model.set_submodule(path, torch.nn.{function.module}){note}", ("path",), ((path,),))
    place = evidence.code_at(chain[0])
    if place is None or len({(op.source, op.module) for op in chain}) > 1:
        return None
    source, line = place
    # A line that several calls run; one that computes the function of its own result has it twice.
    own = {op.index for each in same for op in each.ops if op.source == chain[0].source}
    is_nested = any(near.index in own for op in chain for near in evidence.flow.sources(op) if near not in chain)
    is_alone = evidence.ops_at(chain[0]) == len(own) and not is_nested
    return source.written_out(line, function.call) if is_alone else None


@rule("pointwise-chain", family="fusion", option="compile")
def pointwise_chain(evidence: Evidence) -> Iterator[Advice]:
    written = {op.index for each in evidence.activations for op in each.ops if len(each.ops) >= _LEAST_CHAIN}
    for chain in evidence.chains:
        # torch.compile leaves torch's recurrent layers out (`allow_rnn`), whose steps run in one call on most devices.
        is_compiled = not is_recurrent_layer(evidence, chain[0].module)
        is_compiled = is_compiled and not (evidence.model and evidence.model.is_scripted(chain[0].module))
        if len(chain) < _LEAST_CHAIN or not is_compiled or not written.isdisjoint(op.index for op in chain):
            continue
        yield Advice(
            rule="pointwise-chain",
            where=Where(chain[0].module, tuple(op.index for op in chain)),
            evidence={"ops": len(chain), "passes": [op.op for op in chain], "bytes_moved": _bytes(chain)},
            recommendation="compile this chain of pointwise ops: one kernel goes over memory once",
            change=Patch("model.get_submodule(path).compile()", ("path",), ((chain[0].module,),)),
            expected_gain=_one_pass(evidence, chain),
            risk="compiling takes time at the first call and at every new shape",
            confidence="high" if evidence.op_times else "medium",
        )


def _bytes(chain: Sequence[OpRecord]) -> int:
    return sum(map(moved, chain))


def _one_pass(evidence: Evidence, chain: Sequence[OpRecord], function: float = 1.0, kernel_s: float = 0.0) -> Gain:
    """One kernel still reads what comes from outside, computes for `kernel_s`, or as long as the longest function (or
    `function` of its time) where that is not known, and writes what is read there."""
    members, flow = {op.index for op in chain}, evidence.flow
    read = {
        (source, spec)
        for op in chain
        for source, spec in zip(op.producers, op.signature.inputs, strict=True)
        if source not in members
    }
    needed = sum(spec.distinct_bytes for _, spec in read)
    wanted = [op for op in chain if flow.is_result(op) or not members.issuperset(user.index for user in flow.users(op))]
    needed += sum(op.signature.outputs[0].nbytes for op in wanted)
    work = [seconds * (1 - evidence.share([op]).calls) for op in chain if (seconds := evidence.times.seconds[op.index])]
    least_s = kernel_s or function * max(work, default=0.0)
    left = max(needed / max(_bytes(chain), 1), least_s / sum(work) if any(work) else 0.0)
    return evidence.share(chain).one_pass(max(1 - left, 0.0), len(chain))
