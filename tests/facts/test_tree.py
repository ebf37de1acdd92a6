from __future__ import annotations

import dataclasses

import pytest

from tests.report.sample import (
    BLOCKS,
    CONV_MACS,
    HIDDEN,
    HOSTILE,
    LINEAR_MACS,
    sample_capture,
)
from torchgauge.facts import ModuleRecord, Sums, build_tree


def test_a_module_is_its_own_figures_plus_those_of_its_children() -> None:
    for node in build_tree(sample_capture()).walk():
        expected = Sums()
        for part in (node.own, *(child.total for child in node.children)):
            expected.add(part)
        assert node.total == expected


def test_the_root_is_the_sum_over_the_ops() -> None:
    capture = sample_capture()
    root = build_tree(capture)
    root.self_check(capture)
    assert root.total.macs == CONV_MACS + (BLOCKS + 3) * LINEAR_MACS
    assert root.total.ops == len(capture.ops)
    assert root.total.uncounted_ops == BLOCKS


def test_own_figures_leave_out_the_children() -> None:
    nodes = {node.path: node for node in build_tree(sample_capture()).walk()}
    assert nodes["blocks.3"].own.macs == 0
    assert nodes["blocks.3"].total.macs == LINEAR_MACS
    assert nodes["blocks.3"].own.bytes_read == HIDDEN.nbytes
    assert nodes["shared"].own.macs == 2 * LINEAR_MACS


def test_the_walk_is_preorder_in_the_order_of_registration() -> None:
    capture = sample_capture()
    assert [node.path for node in build_tree(capture).walk()] == [record.path for record in capture.modules]


def test_an_op_in_a_path_without_a_module_goes_to_the_closest_one_above() -> None:
    capture = sample_capture()
    stray = dataclasses.replace(capture.ops[0], module="blocks.3.fc.wrapped.inner")
    tree = build_tree(dataclasses.replace(capture, ops=(stray,)))
    nodes = {node.path: node for node in tree.walk()}
    assert nodes["blocks.3.fc"].own.macs == CONV_MACS


def test_a_module_below_a_path_without_a_module_hangs_on_the_closest_one_above() -> None:
    capture = sample_capture()
    orphan = ModuleRecord("stem.missing.leaf", "torch.nn.ReLU")
    tree = build_tree(dataclasses.replace(capture, modules=(*capture.modules, orphan)))
    stem = tree.children[0]
    assert [child.path for child in stem.children] == ["stem.0", "stem.1", "stem.missing.leaf"]


def test_a_name_may_hold_anything_but_a_dot() -> None:
    assert build_tree(sample_capture()).children[-1].name == HOSTILE


def test_the_self_check_notices_a_lost_op() -> None:
    capture = sample_capture()
    tree = build_tree(dataclasses.replace(capture, ops=capture.ops[1:]))
    with pytest.raises(AssertionError, match="the tree sums to"):
        tree.self_check(capture)
