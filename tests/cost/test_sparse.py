"""Sparse operands count by the elements that they store."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchgauge as tg
from tests.cost.calls import cost, spec
from torchgauge.facts import TensorSpec

NODES, EDGES, WIDTH = 50, 120, 8
pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC|BSR|BSC) tensor support is in beta:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*sparse invariant checks.*:UserWarning"),
]


def adjacency(layout: str) -> Tensor:
    places = torch.randperm(NODES * NODES, generator=torch.Generator().manual_seed(0))[:EDGES]
    dense = torch.zeros(NODES * NODES).index_fill(0, places, 1.0).reshape(NODES, NODES)
    layouts = {"coo": torch.sparse_coo, "csr": torch.sparse_csr, "csc": torch.sparse_csc, "bsr": torch.sparse_bsr}
    return dense.to_sparse(layout=layouts[layout], blocksize=(2, 5) if layout == "bsr" else None)


class Convolve(nn.Module):
    def __init__(self, held: Tensor | None = None) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH, bias=False)
        self.register_buffer("held", held)

    def forward(self, x: Tensor, given: Tensor | None = None) -> Tensor:
        neighbours: Any = self.held if given is None else given
        return torch.sparse.mm(neighbours, self.layer(x))


class Transposed(Convolve):
    def forward(self, x: Tensor, given: Tensor | None = None) -> Tensor:
        assert given is not None
        return (given * 0.5).t() @ self.layer(x)


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr"])
@pytest.mark.parametrize("model", [Convolve, Transposed])
def test_a_product_with_a_sparse_matrix_costs_its_stored_elements(layout: str, model: type[Convolve]) -> None:
    matrix, x = adjacency(layout), torch.randn(NODES, WIDTH)
    stored = matrix._values().numel() if layout == "coo" else matrix.values().numel()
    totals = tg.analyze(model(), inputs=(x, matrix), advice=False).totals
    assert totals.macs == NODES * WIDTH**2 + stored * WIDTH
    assert totals.bytes_read < 4 * NODES * NODES + 5 * x.nbytes
    assert totals.peak_activation_bytes < 3 * 12 * stored + 4 * x.nbytes


def test_bytes_are_those_of_values_and_indices() -> None:
    found = tg.analyze(Convolve(adjacency("coo")), inputs=torch.randn(NODES, WIDTH), advice=False)
    assert found.totals.buffer_bytes == EDGES * (4 + 2 * 8)
    (row,) = [row for row in found.to_dict()["parameters"] if row["is_buffer"]]
    assert (row["stored"], row["index_bytes"]) == (EDGES, EDGES * 16)


def test_a_matrix_that_the_forward_builds() -> None:
    class Builds(nn.Module):
        def forward(self, x: Tensor, edges: Tensor, weights: Tensor) -> Tensor:
            return torch.sparse_coo_tensor(edges, weights, (NODES, NODES)) @ x

    edges = torch.randint(0, NODES, (2, EDGES))
    found = tg.analyze(Builds(), inputs=(torch.randn(NODES, WIDTH), edges, torch.ones(EDGES)), advice=False)
    assert found.totals.macs == EDGES * WIDTH


def test_a_real_run_counts_the_same() -> None:
    class Looks(Convolve):
        def forward(self, x: Tensor, given: Tensor | None = None) -> Tensor:
            return super().forward(x, given) if float(x.sum()) < 1e9 else x

    given = (torch.randn(NODES, WIDTH), adjacency("csr"))
    real, fake = tg.analyze(Looks(), inputs=given, advice=False), tg.analyze(Convolve(), inputs=given, advice=False)
    assert real.capture.run.mode == "real"
    assert real.totals.macs == fake.totals.macs


def test_a_saved_run_keeps_what_is_stored(tmp_path: Any) -> None:
    found = tg.analyze(Convolve(adjacency("coo")), inputs=torch.randn(NODES, WIDTH), advice=False)
    found.save(tmp_path / "run.json")
    assert tg.load(tmp_path / "run.json").totals == found.totals


def sparse(*shape: int, stored: int) -> TensorSpec:
    return TensorSpec(shape, stored=stored, index_bytes=16 * stored)


def test_formulas() -> None:
    out = spec(50, 8)
    assert cost("aten::mm", out, self=sparse(50, 40, stored=99), mat2=spec(40, 8)).macs == 99 * 8
    assert cost("aten::mm", out, self=spec(50, 40), mat2=sparse(40, 8, stored=20)).macs == 50 * 20
    assert cost("aten::mm", out, self=sparse(50, 40, stored=200), mat2=sparse(40, 8, stored=40)).macs == 200
    sampled = sparse(50, 60, stored=30)
    assert cost("aten::sparse_sampled_addmm", sampled, self=sampled, mat1=spec(50, 8), mat2=spec(8, 60)).macs == 240
    assert cost("aten::mv", spec(50), self=sparse(50, 40, stored=99), vec=spec(40)).macs == 99


@pytest.mark.parametrize(
    ("function", "macs"),
    [
        (lambda a, x: a.to_dense() @ x, NODES * NODES * WIDTH),
        (lambda a, x: a @ x if a.is_sparse else x, EDGES * WIDTH),
        (lambda a, x: a @ x if a.layout is torch.sparse_coo else x, EDGES * WIDTH),
        (lambda a, x: a.to_sparse_csr() @ x, EDGES * WIDTH),
        (lambda a, x: (a + a) @ x, EDGES * WIDTH),
        (lambda a, x: torch.sparse.softmax(a.coalesce(), 1) @ x, EDGES * WIDTH),
        (lambda a, x: x[a.coalesce().indices()[0]] * torch.sparse.sum(a, 1).to_dense()[0], 0),
    ],
)
def test_ops_that_need_element_positions_run_for_real(function: Any, macs: int) -> None:
    class Calls(nn.Module):
        def forward(self, a: Tensor, x: Tensor) -> Tensor:
            return function(a, x)

    found = tg.analyze(Calls(), inputs=(adjacency("coo"), torch.randn(NODES, WIDTH)), advice=False)
    assert (found.totals.macs, found.capture.run.mode) == (macs, "real")
    assert "works on sparse tensors" in str(found.capture.run.reason)
    assert found.totals.uncounted_ops == 0
