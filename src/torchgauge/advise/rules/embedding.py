"""Models that are mostly a table of vectors."""

from __future__ import annotations

from collections.abc import Iterator

from torchgauge.advise.code import Patch
from torchgauge.advise.evidence import Evidence
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import OpRecord, ParamRecord

# From here on the table, not the layers, is the model.
LEAST_SHARE = 0.5


@rule("embedding-dominated", family="embedding", option="quantize")
def embedding_dominated(evidence: Evidence) -> Iterator[Advice]:
    whole = max(evidence.totals.param_bytes, 1)
    for table, ops in _tables(evidence):
        if table.spec.nbytes >= LEAST_SHARE * whole and table.spec.itemsize > 1:
            yield _advice(evidence, table, ops, table.spec.nbytes / whole)


def _tables(evidence: Evidence) -> Iterator[tuple[ParamRecord, list[OpRecord]]]:
    for name, ops in evidence.weight_users.items():
        lookups = [op for op in ops if op.category == "embedding"]
        # A buffer is what is looked up: the indices of relative positions.
        if lookups and name in evidence.params and not evidence.params[name].is_buffer:
            yield evidence.params[name], lookups


def _advice(evidence: Evidence, table: ParamRecord, ops: list[OpRecord], share: float) -> Advice:
    spec = table.spec
    looked_up = sum(output.numel // spec.shape[-1] for op in ops for output in op.signature.outputs[:1])
    # A row in 8 bits with one scale of 4 bytes.
    high = share * (1 - (spec.shape[-1] + 4) / (spec.shape[-1] * spec.itemsize))
    low = share * (1 - 2 / spec.itemsize)
    return Advice(
        rule="embedding-dominated",
        where=Where(table.module, tuple(op.index for op in ops), table.name),
        evidence={"share_of_params": share, "rows": spec.shape[0], "width": spec.shape[-1], "looked_up": looked_up},
        recommendation="shrink the table first: keep its rows in 8 or 16 bits, or make it a narrow table and a linear",
        change=_narrow(evidence, table),
        expected_gain=Gain("param_bytes", min(low, high), high, "rows in 16 bits to rows in 8 bits with a scale each"),
        risk="rare rows suffer first: evaluate on rare tokens; a narrow table has to be trained",
        confidence="medium",
    )


def _narrow(evidence: Evidence, table: ParamRecord) -> Patch | None:
    """Code for an nn.Embedding that is only called. Its weight may be read elsewhere too, by an output layer or a
    search for the nearest row; a subclass or a bag of embeddings does more than look up rows."""
    record = evidence.modules.get(table.module)
    is_called_alone = all(op.module == table.module for op in evidence.weight_users[table.name])
    if not table.module or record is None or record.type != "Embedding" or not is_called_alone:
        return None
    rows, width = table.spec.shape
    inner = max(width // 4, 1)
    narrow = f"torch.nn.Embedding({rows}, {inner}), torch.nn.Linear({inner}, {width}, bias=False)"
    return Patch(f"model.set_submodule({table.module!r}, torch.nn.Sequential({narrow}))  # untrained: train it")
