"""Regression trees that predict how far the time of a kernel is from the plain model (`tiles`, `blocks`).

Libraries choose among their kernels by thresholds of sizes, alignments and types. Trees find such thresholds, which
interpolation between neighbours misses; many small trees are summed, each fitted to the residuals of those before it
(gradient boosting). tools/kernels/kernel_tables.py fits them; this module has everything that a prediction needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# A leaf's value in these parts of an octave.
_VALUE_UNIT = 8192.0


@dataclass(frozen=True)
class Forest:
    """All nodes of all trees in one row, each tree from its root on. Of a node: the number of a feature, a threshold,
    how many nodes later its left child comes (the right one follows it), and of a leaf, which has no child, the value
    in octaves."""

    roots: NDArray[np.int64]
    feature: NDArray[np.uint8]
    threshold: NDArray[np.float32]
    child: NDArray[np.uint8]
    value: NDArray[np.float32]
    depth: int

    def octaves(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """The sum of all trees, by row of features."""
        rows = np.arange(len(features))[:, None]
        node = np.broadcast_to(self.roots, (len(features), len(self.roots)))
        for _ in range(self.depth):
            ahead = self.child[node]
            # A leaf stays where it is; a feature that equals the threshold goes left.
            is_right = (features[rows, self.feature[node]] > self.threshold[node]) & (ahead > 0)
            node = node + ahead + is_right
        found: NDArray[np.float64] = self.value[node].sum(1, dtype=np.float64)
        return found

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """The form in a table: features and thresholds of nodes with children, values of leaves. A feature has few
        thresholds, so they are numbered."""
        inner = self.child > 0
        feature, threshold = self.feature[inner], self.threshold[inner]
        levels = [np.unique(threshold[feature == number]) for number in range(int(feature.max(initial=0)) + 1)]
        which = np.array([np.searchsorted(levels[f], t) for f, t in zip(feature, threshold, strict=True)])
        return {
            "roots": self.roots.astype(np.int32), "feature": feature, "child": self.child,
            "level": which.astype(np.uint8 if which.max(initial=0) < 256 else np.uint16),
            "levels": np.concatenate([*levels, np.zeros(0, np.float32)]).astype(np.float32),
            "levels_of": np.array([len(some) for some in levels], np.uint16),
            "value": np.round(self.value[~inner] * _VALUE_UNIT).astype(np.int16),
            "depth": np.array([self.depth], np.uint8),
        }  # fmt: skip

    @classmethod
    def of_arrays(cls, found: Mapping[str, NDArray[np.generic]]) -> Forest:
        roots, child = found["roots"].astype(np.int64), found["child"].astype(np.uint8)
        inner = child > 0
        count, inside = len(child), int(inner.sum())
        if any(len(found[name]) != inside for name in ("feature", "level")) or len(found["value"]) != count - inside:
            raise ValueError("trees of different lengths")
        if count == 0 or roots.min() < 0 or (np.arange(count) + child + inner).max() >= count:
            raise ValueError("trees that point outside")
        ends = np.cumsum(found["levels_of"].astype(np.int64))
        features = found["feature"].astype(np.int64)
        if features.max(initial=-1) >= len(ends):
            raise ValueError("features without thresholds")
        places = np.concatenate([[0], ends])[features] + found["level"].astype(np.int64)
        if (places >= ends[features]).any() or ends.max(initial=0) > len(found["levels"]):
            raise ValueError("thresholds that point outside")
        feature, threshold = np.zeros(count, np.uint8), np.zeros(count, np.float32)
        value = np.zeros(count, np.float32)
        feature[inner], threshold[inner] = features, found["levels"].astype(np.float32)[places]
        value[~inner] = found["value"].astype(np.float32) / _VALUE_UNIT
        return cls(roots, feature, threshold, child, value, int(found["depth"].astype(np.uint8)[0]))


@dataclass(frozen=True)
class TreeNode:
    """One tree as nested nodes, for `build_forest`: a leaf has a value, another node a feature, a threshold and two
    children."""

    value: float = 0.0
    feature: int = 0
    threshold: float = 0.0
    children: tuple[TreeNode, TreeNode] | None = None


def build_forest(trees: Sequence[TreeNode]) -> Forest:
    """Trees as one `Forest`, level by level, so that the two children of a node lie side by side."""
    roots: list[int] = []
    nodes: list[tuple[int, float, int, float]] = []
    deepest = 0
    for tree in trees:
        roots.append(len(nodes))
        levels = [[tree]]
        while levels[-1]:
            levels.append([child for node in levels[-1] if node.children for child in node.children])
        deepest = max(deepest, len(levels) - 2)
        order = [node for level in levels for node in level]
        place = {id(node): number for number, node in enumerate(order)}
        for number, node in enumerate(order):
            ahead = place[id(node.children[0])] - number if node.children else 0
            nodes.append((node.feature, node.threshold, ahead, 0.0 if node.children else node.value))
    feature, threshold, child, value = (np.array(column) for column in zip(*nodes, strict=True))
    if child.max() > 255:
        raise ValueError("a tree with more than 255 nodes between a node and its children")
    return Forest(
        np.array(roots, np.int64), feature.astype(np.uint8), threshold.astype(np.float32), child.astype(np.uint8),
        value.astype(np.float32), deepest,
    )  # fmt: skip
