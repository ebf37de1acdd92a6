"""The shipped tables: what they say is what the installed registries build."""

from __future__ import annotations

from importlib.metadata import version

import pytest
import timm
import torchvision

from torchgauge.source import find_timm, state_shapes
from torchgauge.source.identify import (
    FINGERPRINTS,
    NAME_PATTERNS,
    Known,
    Sums,
    candidates,
    is_current,
    known_names,
    read_table,
    strip_prefixes,
)

SHAPES = {"conv1.weight": (8, 3, 7, 7), "bn1.running_mean": (8,), "fc.weight": (10, 8), "fc.bias": (10,)}
EVERY = 25


def known() -> list[Known]:
    return [Known.from_line(line) for line in read_table(FINGERPRINTS)[1:]]


def needs(registry: str) -> None:
    if not is_current(registry):
        pytest.skip(f"the tables were made with another {registry} than {version(registry)}: run tools/")


def test_a_part_can_be_taken_out_of_the_sum() -> None:
    rest = {name: shape for name, shape in SHAPES.items() if not name.startswith("fc.")}
    sums = Sums(SHAPES)
    assert sums.without(["fc"]) == Sums(rest).total != sums.total
    assert sums.without(["fc.weight", "fc.bias"]) == sums.without(["fc"])
    assert sums.without(["head"]) == sums.total


def test_the_sum_follows_names_and_shapes_but_not_their_order_or_counters() -> None:
    total = Sums(SHAPES).total
    assert Sums(dict(reversed(SHAPES.items()))).total == total
    assert Sums(SHAPES | {"bn1.num_batches_tracked": ()}).total == total
    assert Sums(SHAPES | {"fc.bias": (11,)}).total != total
    assert Sums({f"m.{name}": shape for name, shape in SHAPES.items()}).total != total


def test_a_line_of_the_table_reads_back() -> None:
    entry = Known.of("timm:x", SHAPES, ("fc",), ("conv1.weight",), {"aux_loss": True})
    assert Known.from_line(entry.to_line()) == entry
    assert entry.trunk == Sums(SHAPES).without(["fc", "conv1.weight"])


def test_all_models_of_the_installed_timm_are_listed() -> None:
    needs("timm")
    assert {f"timm:{name}" for name in timm.list_models()} <= {entry.target for entry in known()}


def test_all_models_of_the_installed_torchvision_are_listed() -> None:
    needs("torchvision")
    names = {name for name in torchvision.models.list_models() if not name.startswith("quantized_")}
    assert {f"torchvision:{name}" for name in names} <= {entry.target for entry in known()}


def test_the_names_of_many_transformers_classes_are_listed() -> None:
    needs("transformers")
    names = {entry.name for group in known_names().exact.values() for entry in group}
    assert len(names) > 1000
    assert {"LlamaForCausalLM", "BertModel", "MixtralForCausalLM", "WhisperForConditionalGeneration"} <= names
    assert {"GPTNeoForCausalLM", "DeepseekV3ForCausalLM", "NemotronForCausalLM", "EsmForMaskedLM"} <= names
    assert names == {named.name for _, named in known_names().sketched}


def test_the_tables_stay_small() -> None:
    assert sum(len("\n".join(read_table(name))) for name in (FINGERPRINTS, NAME_PATTERNS)) < 500_000


@pytest.mark.slow
@pytest.mark.parametrize("entry", [entry for entry in known() if entry.target.startswith("timm:")][::EVERY],
                         ids=lambda entry: entry.name)  # fmt: skip
def test_a_listed_model_builds_to_its_fingerprint(entry: Known) -> None:
    needs("timm")
    shapes = state_shapes(find_timm(entry.name).build())
    assert Known.of(entry.target, shapes, entry.heads, entry.loose, entry.options) == entry
    assert entry in candidates(shapes)


def test_a_common_prefix_is_stripped_part_by_part() -> None:
    plain = {"a.b.weight": (1,), "a.c.weight": (2,)}
    assert list(strip_prefixes(plain)) == [plain, {"b.weight": (1,), "c.weight": (2,)}]
    assert list(strip_prefixes({"x": (1,), "y.z": (2,)})) == [{"x": (1,), "y.z": (2,)}]
    assert list(strip_prefixes({})) == [{}]
