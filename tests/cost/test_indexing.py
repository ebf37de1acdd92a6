from __future__ import annotations

from tests.cost.calls import cost, judge, spec
from torchgauge.facts import Cost, TensorSpec

TABLE = spec(1000, 16)


def indices(*shape: int) -> TensorSpec:
    return spec(*shape, dtype="int64")


def test_an_embedding_reads_the_rows_it_looks_up() -> None:
    found = judge("aten::embedding", spec(2, 5, 16), weight=TABLE, indices=indices(2, 5))
    assert found == ("embedding", "counted", Cost(0, 0, 80 + 10 * 64, 10 * 64))


def test_a_table_is_read_at_most_once() -> None:
    small = spec(3, 16)
    done = cost("aten::embedding", spec(100, 16), weight=small, indices=indices(100))
    assert done.bytes_read == 800 + small.nbytes


def test_an_embedding_bag_adds_its_rows() -> None:
    arguments = {"weight": TABLE, "indices": indices(10), "offsets": indices(2)}
    summed = cost("aten::_embedding_bag", spec(2, 16), **arguments, mode=0)
    mean = cost("aten::_embedding_bag", spec(2, 16), **arguments, mode=1)
    weighted = cost("aten::_embedding_bag", spec(2, 16), **arguments, mode=0, per_sample_weights=spec(10))
    assert summed == Cost(0, 160, 80 + 16 + 640, 128)
    assert (mean.flops, weighted.flops) == (160 + 32, 320)


def test_the_gradient_of_an_embedding_adds_rows() -> None:
    done = cost("aten::embedding_dense_backward", TABLE, grad_output=spec(2, 5, 16), indices=indices(2, 5))
    assert done == Cost(0, 160, 640 + 80, TABLE.nbytes)


def test_gathers_read_what_they_return() -> None:
    gathered = cost("aten::gather", spec(4, 3), self=spec(4, 1000), dim=1, index=indices(4, 3))
    selected = cost("aten::index_select", spec(5, 16), self=TABLE, dim=0, index=indices(5))
    indexed = cost("aten::index", spec(5, 16), self=TABLE, indices=[indices(5)])
    assert gathered == Cost(0, 0, 96 + 48, 48)
    assert selected == indexed == Cost(0, 0, 40 + 320, 320)


def test_a_scatter_in_place_touches_only_its_elements() -> None:
    target, source = spec(4, 1000), spec(4, 3)
    copied = cost("aten::scatter_", target, self=target, dim=1, index=indices(4, 3), src=source)
    added = cost("aten::scatter_add_", target, self=target, dim=1, index=indices(4, 3), src=source)
    assert copied == Cost(0, 0, 96 + 48, 48)
    assert added == Cost(0, 12, 96 + 48 + 48, 48)


def test_a_scatter_out_of_place_copies_the_rest() -> None:
    target, source = spec(4, 1000), spec(4, 3)
    done = cost("aten::scatter_add", target, self=target, dim=1, index=indices(4, 3), src=source)
    assert done == Cost(0, 12, 96 + 48 + target.nbytes, target.nbytes)


def test_index_put_names_elements_by_broadcast_indices_and_whole_dimensions() -> None:
    cache = spec(8, 100, 64)
    placed = cost("aten::index_put_", cache, self=cache, indices=[None, indices(5)], values=spec(8, 5, 64))
    assert placed == Cost(0, 0, 40 + 8 * 5 * 64 * 4, 8 * 5 * 64 * 4)


def test_a_mask_without_values_of_its_size_may_name_everything() -> None:
    x, mask = spec(4, 6), spec(4, 6, dtype="bool")
    one_value = cost("aten::index_put_", x, self=x, indices=[mask], values=spec())
    seven = cost("aten::index_put_", x, self=x, indices=[mask], values=spec(7))
    assert (one_value.bytes_written, seven.bytes_written) == (96, 28)


def test_index_add_reads_and_writes_the_rows_it_adds_to() -> None:
    done = cost("aten::index_add_", TABLE, self=TABLE, dim=0, index=indices(5), source=spec(5, 16))
    assert done == Cost(0, 80, 40 + 320 + 320, 320)
