"""Matrices that are mostly zeros, a diagonal or blocks on it, which are multiplied as if they were dense."""

from __future__ import annotations

from collections.abc import Iterator

from torchgauge.advise.evidence import Evidence
from torchgauge.advise.record import Advice, Where
from torchgauge.advise.registry import LEAST_PREDICTED_TIME, rule
from torchgauge.facts import OpRecord, TensorSpec

_PRODUCTS = ("aten::mm", "aten::addmm")
# Fewer blocks are hardly slower as one matrix.
_LEAST_BLOCKS = 4
_ZEROS = {"aten::zeros", "aten::zeros_like", "aten::new_zeros", "aten::zero_"}


# Products of a dense matrix, by the place of the first factor; and ops that make equal matrices of one.
_DENSE = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}
_SAME_MATRIX = {"aten::_to_copy", "aten::clone", "aten::repeat"}
# Rows of a diagonal matrix below which the product takes no longer than to scale the other factor.
_LEAST_DIAGONAL = 32


@rule("identity-product", family="order", least_time=LEAST_PREDICTED_TIME)
def identity_product(evidence: Evidence) -> Iterator[Advice]:
    """A product with `torch.eye(n)`, as that of the first of several powers or polynomials of a matrix."""
    for product in evidence.flow.named(*_DENSE):
        first = _DENSE[product.op]
        if len(product.signature.inputs) < first + 2:  # a matrix times itself
            continue
        places = [at for at in (first, first + 1) if _is_identity(evidence, product, at)]
        if not places:
            continue
        # Copies into the order that the product wants, which nothing else reads.
        copies = [op for op in evidence.flow.sources(product) if op.op == "aten::clone"]
        copies = [op for op in copies if evidence.flow.is_kept_for(op, product)]
        yield Advice(
            rule="identity-product",
            where=Where(product.module, (product.index,)),
            evidence={"shape": list(product.signature.inputs[places[0]].shape), "macs": product.cost.macs},
            recommendation="leave out the product with the identity matrix: it returns its other factor",
            change=None,
            expected_gain=evidence.share([product, *copies]).gain(0.8, 1.0, "the product, and the copies for it"),
            risk="none",
            confidence="high",
        )


def _is_identity(evidence: Evidence, product: OpRecord, at: int) -> bool:
    """Whether an operand is `eye(n)` as a whole: also cast, or repeated for a batch."""
    rows, columns = product.signature.inputs[at].shape[-2:]
    made = evidence.flow.source(product, at)
    while made is not None and made.op in _SAME_MATRIX:
        made = evidence.flow.source(made)
    is_made = made is not None and made.op == "aten::eye" and made.signature.outputs[0].shape == (rows, columns)
    return is_made and rows == columns


@rule("diagonal-product", family="order", least_time=LEAST_PREDICTED_TIME)
def diagonal_product(evidence: Evidence) -> Iterator[Advice]:
    """A product with `torch.diag(d)` or `d * torch.eye(n)`, as degrees of a graph scale its adjacency matrix."""
    products: dict[int, list[OpRecord]] = {}
    makers: dict[int, list[OpRecord]] = {}
    for product in evidence.flow.named(*_DENSE):
        first = _DENSE[product.op]
        for at in (first, first + 1) if len(product.signature.inputs) == first + 2 else ():
            made = _diagonal(evidence, product, at)
            if made and product.signature.inputs[at].shape[-1] >= _LEAST_DIAGONAL:
                products.setdefault(made[0].index, []).append(product)
                makers[made[0].index] = made
    for index, readers in products.items():
        gone = {op.index: op for op in readers}
        for maker in makers[index]:  # the matrix as well, where nothing else reads it
            if gone.keys() >= {user.index for user in evidence.flow.users(maker)}:
                gone[maker.index] = maker
        yield Advice(
            rule="diagonal-product",
            where=Where(readers[0].module, tuple(sorted(op.index for op in readers))),
            evidence={
                "rows": makers[index][0].signature.outputs[0].shape[-1],
                "macs": sum(op.cost.macs for op in readers),
            },
            recommendation="scale rows (d[:, None] * x) or columns (x * d): this product is with a diagonal matrix",
            change=None,
            expected_gain=evidence.share(gone.values()).gain(0.6, 0.95, "all but one pass over the other factor"),
            risk="rounding differs in the last digits",
            confidence="high",
        )


def _diagonal(evidence: Evidence, product: OpRecord, at: int) -> list[OpRecord]:
    """The ops that make an operand which has numbers on its diagonal alone, the last one first; none for others."""
    given, flow = product.signature.inputs[at], evidence.flow
    made, steps = flow.source(product, at), list[OpRecord]()
    while made is not None and made.op in _SAME_MATRIX:
        steps.append(made)
        made = flow.source(made)
    if made is None or given.is_sparse or made.signature.outputs[0].shape[-2:] != given.shape[-2:]:
        return []
    if made.op == "aten::diag_embed":
        attributes = made.signature.attributes
        is_plain = not attributes.get("offset") and (attributes.get("dim1"), attributes.get("dim2")) in (
            (None, None),
            (-2, -1),
        )
        return [*steps, made] if is_plain else []
    if made.op != "aten::mul" or given.shape[-2] != given.shape[-1]:
        return []
    for eye in flow.sources(made):
        casts = list[OpRecord]()
        while eye.op in _SAME_MATRIX and (source := flow.source(eye)) is not None:
            casts.append(eye)
            eye = source
        if eye.op == "aten::eye" and eye.signature.outputs[0].shape == given.shape[-2:]:
            return [*steps, made, *casts, eye]
    return []


@rule("block-diagonal", family="order", least_time=LEAST_PREDICTED_TIME)
def block_diagonal(evidence: Evidence) -> Iterator[Advice]:
    """The matrices of a batch (adjacency of several graphs) put on the diagonal of one: nearly all of a product with it
    is with zeros."""
    products: dict[tuple[int, ...], list[OpRecord]] = {}
    found: dict[tuple[int, ...], list[TensorSpec]] = {}
    for product in evidence.flow.named(*_PRODUCTS):
        for at, whole in enumerate(product.signature.inputs):
            writes, blocks = _blocks(evidence, product, at)
            rows, columns = (sum(block.shape[dim] for block in blocks) for dim in (0, 1))
            if len(blocks) >= _LEAST_BLOCKS and whole.shape in ((rows, columns), (columns, rows)):
                products.setdefault(writes, []).append(product)
                found[writes] = blocks
    for writes, readers in products.items():
        blocks = found[writes]
        rows, columns = (sum(block.shape[dim] for block in blocks) for dim in (0, 1))
        # Blocks of unequal size are padded to the largest.
        largest = max(block.shape[0] for block in blocks) * max(block.shape[1] for block in blocks)
        saved = 1 - len(blocks) * largest / (rows * columns)
        if saved <= 0.5:
            continue
        yield Advice(
            rule="block-diagonal",
            where=Where(readers[0].module, tuple(op.index for op in readers)),
            evidence={"blocks": len(blocks), "shape": [rows, columns], "zero_share": saved},
            recommendation="keep the blocks as a padded batch and use torch.bmm: the rest of the matrix is zeros",
            change=None,
            expected_gain=evidence.share(readers).gain(0.6 * saved, saved, "the products with zeros"),
            risk="rows of padding must be masked or left out in what follows",
            confidence="high",
        )


def _blocks(evidence: Evidence, product: OpRecord, at: int) -> tuple[tuple[int, ...], list[TensorSpec]]:
    """The ops that put blocks into a constant matrix that is multiplied, and the blocks."""
    op, writes = evidence.flow.source(product, at), list[OpRecord]()
    if op is not None and op.op == "aten::block_diag":
        return (op.index,), [spec for spec in op.signature.inputs if len(spec.shape) == 2]
    while op is not None and op.op == "aten::copy_" and len(op.signature.outputs[0].shape) == 2:
        writes.append(op)
        op = evidence.flow.source(op)
    # Blocks that fill the diagonal of a matrix of zeros leave these around them.
    while op is not None and op.op in _SAME_MATRIX:
        op = evidence.flow.source(op)
    is_empty = op is not None and op.op in _ZEROS
    blocks = [write.signature.outputs[0] for write in writes]
    return tuple(write.index for write in writes), blocks if is_empty else []
