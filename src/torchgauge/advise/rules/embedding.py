"""Models that are mostly a table of vectors."""

from __future__ import annotations

from collections.abc import Iterator

from torchgauge.advise.code import Patch
from torchgauge.advise.evidence import Evidence
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import ParamRecord

# From here on the table, not the layers, is the model.
LEAST_SHARE = 0.5


@rule("embedding-dominated", family="embedding", option="quantize")
def embedding_dominated(evidence: Evidence) -> Iterator[Advice]:
    whole = max(evidence.totals.param_bytes, 1)
    for name, users in evidence.weight_users.items():
        ops = [op for op in users if op.category == "embedding"]
        table = evidence.params.get(name)
        # A buffer holds indices to look up, such as those of relative positions.
        if not ops or table is None or table.is_buffer:
            continue
        spec, share = table.spec, table.spec.nbytes / whole
        if share < LEAST_SHARE or spec.itemsize == 1:
            continue
        looked_up = sum(output.numel // spec.shape[-1] for op in ops for output in op.signature.outputs[:1])
        # A row in 8 bits with one scale of 4 bytes.
        high = share * (1 - (spec.shape[-1] + 4) / (spec.shape[-1] * spec.itemsize))
        low = min(share * (1 - 2 / spec.itemsize), high)
        yield Advice(
            rule="embedding-dominated",
            where=Where(table.module, tuple(op.index for op in ops), table.name),
            evidence={"share_of_params": share, "rows": spec.shape[0], "width": spec.shape[-1], "looked_up": looked_up},
            recommendation="shrink the table first: rows in 8 or 16 bits, or a narrow table and a linear layer",
            change=_narrow(evidence, table),
            expected_gain=Gain("param_bytes", low, high, "rows in 16 bits to rows in 8 bits with a scale each"),
            risk="rare tokens suffer first: evaluate them; a narrow table needs training",
            confidence="medium",
        )


def _narrow(evidence: Evidence, table: ParamRecord) -> Patch | None:
    """Code for an nn.Embedding that is only called: none where its weight is also read elsewhere, as by an output layer
    or a search for the nearest row, nor for a subclass or a bag of embeddings, which do more than look up rows."""
    record = evidence.modules.get(table.module)
    is_called_alone = all(op.module == table.module for op in evidence.weight_users[table.name])
    if not table.module or record is None or record.type != "Embedding" or not is_called_alone:
        return None
    rows, width = table.spec.shape
    inner = max(width // 4, 1)
    narrow = f"torch.nn.Embedding({rows}, {inner}), torch.nn.Linear({inner}, {width}, bias=False)"
    return Patch(f"model.set_submodule({table.module!r}, torch.nn.Sequential({narrow}))  # untrained: train it")
