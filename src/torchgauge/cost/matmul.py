"""Matrix products: every form is rows × columns × shared dimension.

A bias or added input (`addmm`, `baddbmm`) is not a MAC; it is one flop per output element, `beta` and `alpha` scaling
not counted (they are 1 in practice and folded into the product otherwise). A complex MAC is four real ones.
Of a sparse operand only the stored elements are multiplied; of two, the pairs that meet: a real run counts them, else
they are assumed to lie evenly. The 2:4 forms store half the elements.

Einsum: operands are contracted from left to right, as torch does without a given path. Each step costs one MAC per
combination of all the labels it touches; a label that only one of the two has and nothing needs afterwards is summed
before the product, which is not a MAC but one flop per element.
"""

from __future__ import annotations

from math import prod

from torchgauge.cost.registry import Call, Work, formula, read_bytes
from torchgauge.cost.work import argument, products
from torchgauge.facts import TensorSpec


@formula(
    "aten::mm", "aten::bmm", "aten::_int_mm", "aten::hspmm", "aten::_sparse_mm", "aten::_sparse_mm_reduce_impl",
    "aten::_sparse_sparse_matmul", "aten::_sparse_semi_structured_mm", category="matmul",
)  # fmt: skip
def mm(call: Call) -> Work:
    left, right = argument(call, "self", "mat1", "sparse"), argument(call, "mat2", "dense", "other")
    return products(call, _pairs(call, left, right))


@formula(
    "aten::addmm", "aten::baddbmm", "aten::addbmm", "aten::_sparse_addmm", "aten::sspaddmm",
    "aten::_sparse_semi_structured_addmm", category="matmul",
)  # fmt: skip
def addmm(call: Call) -> Work:
    left, right = argument(call, "mat1", "batch1"), argument(call, "mat2", "batch2")
    return products(call, _pairs(call, left, right), call.out.stored_numel)


@formula("aten::sparse_sampled_addmm", category="matmul")
def sampled_addmm(call: Call) -> Work:
    """Computed only where `self` stores an element."""
    return products(call, call["self"].stored_numel * call["mat1"].shape[-1], call["self"].stored_numel)


@formula("aten::_addmm_activation", category="matmul")
def addmm_activation(call: Call) -> Work:
    # The fused activation is a ReLU, or a GELU in its tanh form.
    activation = 9 if call.get("use_gelu") else 1
    return products(call, call["mat1"].numel * call["mat2"].shape[-1], (1 + activation) * call.out.numel)


@formula("aten::mv", "aten::dot", "aten::vdot", "aten::linalg_vecdot", category="matmul")
def vector_product(call: Call) -> Work:
    return products(call, argument(call, "self", "x").stored_numel)


@formula("aten::addmv", category="matmul")
def addmv(call: Call) -> Work:
    return products(call, call["mat"].stored_numel, call.out.numel)


@formula("aten::addr", category="matmul")
def addr(call: Call) -> Work:
    # The sum with `self` is the accumulation.
    return products(call, call["vec1"].numel * call["vec2"].numel)


@formula("aten::matmul", "aten::linalg_matmul", "aten::inner", category="matmul")
def matmul(call: Call) -> Work:
    left, right = call["self"], argument(call, "other", "tensor2")
    if right is not None and len(left.shape) == 1 and len(right.shape) == 2:
        # Also if the left one has rows of several lengths (nested tensors), of which one row of elements is known.
        return products(call, left.numel * right.shape[-1])
    return products(call, call.out.numel * call["self"].shape[-1])


@formula("aten::matmul_backward", category="matmul")
def matmul_backward(call: Call) -> Work:
    wanted = sum(bool(flag) for flag in call.get("mask", (True, True)))
    return products(call, wanted * call["grad"].numel * call["self"].shape[-1])


@formula("aten::tensordot", category="matmul")
def tensordot(call: Call) -> Work:
    left = call["self"]
    shared = prod(left.shape[dim] for dim in call["dims_self"])
    return products(call, left.numel * call["other"].numel // shared if shared else 0)


@formula("aten::linalg_multi_dot", "aten::chain_matmul", category="matmul")
def matrix_chain(call: Call) -> Work:
    matrices = call.get("tensors") or call["matrices"]
    # A vector at either end is a row or a column.
    sizes = [1 if len(matrices[0].shape) == 1 else matrices[0].shape[0]]
    sizes += [matrix.shape[0] for matrix in matrices[1:]]
    sizes.append(1 if len(matrices[-1].shape) == 1 else matrices[-1].shape[1])
    # MACs of a product of matrices sizes[0]×sizes[1], sizes[1]×sizes[2], … in the best order.
    count = len(sizes) - 1
    best = {(i, i): 0 for i in range(count)}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            best[i, j] = min(best[i, k] + best[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1] for k in range(i, j))
    return products(call, best[0, count - 1])


@formula("aten::_grouped_mm", "aten::_scaled_grouped_mm", "aten::_scaled_grouped_mm_v2", category="matmul")
def grouped_mm(call: Call) -> Work:
    """A 2-D operand holds all groups side by side; how `offs` divides them does not change the sum."""
    left, right = call["self"], call["mat2"]
    if len(left.shape) == 3 and len(right.shape) == 2:
        macs = prod(left.shape[1:]) * right.shape[-1]
    else:
        macs = left.numel * right.shape[-1]
    return products(call, macs * _packed(left), _scaling(call))._replace(bytes_read=_grouped_bytes(call, left, right))


@formula("transformers::grouped_mm_fallback", category="matmul")
def grouped_mm_fallback(call: Call) -> Work:
    left, right = call["input"], call["weight"]
    return products(call, left.numel * right.shape[-1])._replace(bytes_read=_grouped_bytes(call, left, right))


def _grouped_bytes(call: Call, left: TensorSpec, right: TensorSpec) -> int:
    """Rows of fewer groups than there are read the matrices of these alone; routing is assumed balanced, so that rows
    share a group only where there are more rows than groups."""
    unread = 0
    if len(left.shape) == 2 and len(right.shape) == 3 and right.shape[0]:
        groups = right.shape[0]
        unread = right.distinct_bytes // groups * max(groups - left.shape[0], 0)
    return read_bytes(call) - unread


@formula("aten::_scaled_mm", "aten::_scaled_mm_v2", category="matmul")
def scaled_mm(call: Call) -> Work:
    left = call["self"]
    return products(call, left.numel * _packed(left) * call["mat2"].shape[-1], _scaling(call))


def _pairs(call: Call, left: TensorSpec, right: TensorSpec) -> int:
    """Elements of one matrix times those of the other that each meets."""
    if not right.is_sparse:
        return left.stored_numel * right.shape[-1]
    if left.is_sparse and (counted := call.get("meeting_pairs")) is not None:
        return int(counted)
    return left.stored_numel * right.stored_numel // max(prod(right.shape[:-1]), 1)


def _packed(spec: TensorSpec) -> int:
    """How many numbers one stored element holds ("float4_e2m1fn_x2": two)."""
    return 2 if spec.dtype.endswith("_x2") else 1


def _scaling(call: Call) -> int:
    scales = call.get("scale_a") is not None
    return (scales + (call.get("bias") is not None)) * call.out.numel


Sizes = dict[str, int]


@formula("aten::einsum", category="matmul")
def einsum(call: Call) -> Work:
    # The labels of each operand with their sizes, and those of the output; "…" becomes upper Greek letters.
    tensors = call["tensors"]
    inputs, arrow, output = call["equation"].replace(" ", "").partition("->")
    names = inputs.split(",")
    # One letter per dimension the dots stand for, aligned at the right.
    dots = []
    for name, spec in zip(names, tensors, strict=True):
        hidden = len(spec.shape) - len(name.replace("...", "")) if "..." in name else 0
        dots.append("".join(chr(0x391 + hidden - 1 - i) for i in range(hidden)))
    longest = max(dots, key=len)
    terms = [
        dict(zip(name.replace("...", dotted), spec.shape, strict=True))
        for name, dotted, spec in zip(names, dots, tensors, strict=True)
    ]
    if not arrow:
        letters = inputs.replace(",", "").replace(".", "")
        output = "..." + "".join(sorted(label for label in set(letters) if letters.count(label) == 1))
    output = output.replace("...", longest)
    macs = extra = 0
    left = terms[0]
    for position, right in enumerate(terms[1:], start=1):
        needed = set(output).union(*terms[position + 1 :])
        left, left_sum = _sum_unneeded(left, needed | set(right))
        right, right_sum = _sum_unneeded(right, needed | set(left))
        # A size of one broadcasts.
        joined = {label: max(left.get(label, 1), right.get(label, 1)) for label in {**left, **right}}
        macs += prod(joined.values())
        extra += left_sum + right_sum
        left = {label: size for label, size in joined.items() if label in needed}
    _, last_sum = _sum_unneeded(left, set(output))
    return products(call, macs, extra + last_sum)


def _sum_unneeded(term: Sizes, needed: set[str]) -> tuple[Sizes, int]:
    kept = {label: size for label, size in term.items() if label in needed}
    return kept, 0 if len(kept) == len(term) else prod(term.values())
