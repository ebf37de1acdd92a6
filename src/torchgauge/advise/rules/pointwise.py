"""Functions written out in pointwise ops: each is a pass over memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchgauge.advise.code import Patch, SourceEdit
from torchgauge.advise.evidence import Evidence, moved
from torchgauge.advise.flow import Flow
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.advise.rules.loops import is_recurrent_layer
from torchgauge.facts import OpRecord

_LEAST_CHAIN = 4
# The tanh form has a cube, a tanh and products; the exact form an erf.
_GELU_OPS = 5
# Torch's exact GELU computes erf in a shorter form: 0.9 to 1.0 ns for an element on one core, erf alone 1.5.
_GELU_OF_ERF = 0.65


@rule("gelu-by-hand", family="fusion")
def gelu_by_hand(evidence: Evidence) -> Iterator[Advice]:
    found = [(chain, form) for chain in evidence.chains if (form := _gelu_form(chain))]
    for chain, form in found:
        yield Advice(
            rule="gelu-by-hand",
            where=Where(chain[0].module, tuple(op.index for op in chain)),
            evidence={"ops": len(chain), "passes": [op.op for op in chain], "bytes_moved": _bytes(chain)},
            recommendation="use torch's GELU: as separate ops it reads and writes memory once per op",
            change=_gelu(evidence, chain, form),
            expected_gain=_one_pass(evidence, chain, _GELU_OF_ERF if form == "none" else 1.0),
            risk="rounding differs in the last digits",
            confidence="high",
        )


@rule("silu-by-hand", family="fusion")
def silu_by_hand(evidence: Evidence) -> Iterator[Advice]:
    """A tensor multiplied with its own sigmoid; with that of another half it is a gate."""
    for gate in evidence.flow.named("aten::sigmoid"):
        product = evidence.flow.only_reader(gate)
        if product is None or product.op.rstrip("_") != "aten::mul" or len(product.producers) != 2:
            continue
        other = 1 - product.producers.index(gate.index)
        given = evidence.dataflow.reads_whole(gate, 0)
        is_same = given is not None and given == evidence.dataflow.reads_whole(product, other)
        if not is_same or product.signature.inputs[other] != gate.signature.inputs[0] or product.module != gate.module:
            continue
        chain, place, change = [gate, product], evidence.code_at(gate), None
        if evidence.is_whole(gate.module, chain):
            change = Patch("model.set_submodule(path, torch.nn.SiLU())", ("path",), ((gate.module,),))
        yield Advice(
            rule="silu-by-hand",
            where=Where(gate.module, (gate.index, product.index)),
            evidence={"bytes_moved": _bytes(chain)},
            recommendation="use torch's SiLU: as a sigmoid and a product it reads and writes memory twice",
            change=change
            or (
                place[0].written_out(place[1], evidence.ops_at(gate) == len(chain), lambda x: f"silu({x})")
                if place is not None and gate.source == product.source
                else None
            ),
            expected_gain=_one_pass(evidence, chain),
            risk="rounding differs in the last digits",
            confidence="high",
        )


def _gelu(evidence: Evidence, chain: Sequence[OpRecord], form: str) -> Patch | SourceEdit | None:
    """A module that does nothing else is replaced; in a larger forward, the expression is."""
    path = chain[0].module
    if evidence.is_whole(path, chain):
        names = "gelu_pytorch_tanh" if form == "tanh" else "gelu"
        note = (
            f"  # or config.activation_function = {names!r}" if evidence.library_of(chain[0]) == "transformers" else ""
        )
        return Patch(f"model.set_submodule(path, torch.nn.GELU({form!r})){note}", ("path",), ((path,),))
    place = evidence.code_at(chain[0])
    if place is None or len({op.source for op in chain}) > 1:
        return None
    source, line = place
    return source.written_out(
        line, evidence.ops_at(chain[0]) == len(chain), lambda x: f"gelu({x}, approximate={form!r})"
    )


def _gelu_form(chain: Sequence[OpRecord]) -> str | None:
    names = [op.op.removeprefix("aten::").rstrip("_") for op in chain]
    scalars = {op.signature.attributes.get("other") for op in chain}
    halves = 0.5 in scalars or 2 in scalars
    if "erf" in names and halves and "mul" in names:
        return "none"
    cubes = any(op.op == "aten::pow" and op.signature.attributes.get("exponent") == 3 for op in chain)
    products = names.count("mul")
    is_tanh_form = "tanh" in names and halves and len(chain) >= _GELU_OPS
    return "tanh" if is_tanh_form and (cubes or 0.044715 in scalars) and products >= 2 else None


@rule("pointwise-chain", family="fusion", option="compile")
def pointwise_chain(evidence: Evidence) -> Iterator[Advice]:
    for chain in evidence.chains:
        # torch.compile leaves torch's recurrent layers out (`allow_rnn`), whose steps run in one call on most devices.
        is_compiled = not is_recurrent_layer(evidence, chain[0].module)
        is_compiled = is_compiled and not (evidence.model and evidence.model.is_scripted(chain[0].module))
        if len(chain) < _LEAST_CHAIN or _gelu_form(chain) or not is_compiled:
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


def _one_pass(evidence: Evidence, chain: Sequence[OpRecord], function: float = 1.0) -> Gain:
    """One kernel still reads what comes from outside, computes the longest function (or `function` of its time), and
    writes what is read there. (In a GELU written out for a CPU tanh is 60 % of the time, and torch's own takes about as
    long for it.)"""
    members = {op.index for op in chain}
    read = {
        (source, spec)
        for op in chain
        for source, spec in zip(op.producers, op.signature.inputs, strict=True)
        if source not in members
    }
    needed = sum(spec.distinct_bytes for _, spec in read)
    needed += sum(op.signature.outputs[0].nbytes for op in chain if _is_wanted_outside(evidence.flow, op, members))
    work = [seconds * (1 - evidence.share([op]).calls) for op in chain if (seconds := evidence.times.seconds[op.index])]
    left = max(needed / max(_bytes(chain), 1), function * max(work) / sum(work) if any(work) else 0.0)
    return evidence.share(chain).one_pass(max(1 - left, 0.0), len(chain))


def _is_wanted_outside(flow: Flow, op: OpRecord, members: set[int]) -> bool:
    return flow.is_result(op) or any(user.index not in members for user in flow.users(op))
