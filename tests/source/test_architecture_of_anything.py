"""Names and shapes come from strangers' files: whatever they are, they are described without an error."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from torchgauge.checkpoint import Entry, Index
from torchgauge.facts import TensorSpec
from torchgauge.source import MAX_NAME_DEPTH, model_entries, module_records, param_records
from torchgauge.source.architecture import describe_shapes

WORDS = [
    "", "\x1b[31m", "0", "1", "2", "layers", "layer1", "layer2", "encoder", "decoder", "q_proj", "k_proj",
    "qkv", "attn", "experts", "in_proj_weight", "weight", "bias", "norm", "q_norm", "weight_ih_l0",
    "weight_hh_l0", "weight_ih", "weight_hh", "A_log", "running_mean", "embed_tokens", "wpe", "patch_embed",
    "conv", "fc", "head", "gate_up_proj", "down_proj", "lm_head", "relative_attention_bias", "rotary_emb",
    "inv_freq", "parametrizations", "original", "time_embed", "down_blocks", "up_blocks",
]  # fmt: skip
PARTS = st.sampled_from(WORDS)
NAMES = st.lists(PARTS, min_size=1, max_size=6).map(".".join)
SHAPES = st.lists(st.integers(0, 20), max_size=5).map(tuple)


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(NAMES, SHAPES, max_size=12))
def test_any_names_and_shapes_are_described(shapes: dict[str, tuple[int, ...]]) -> None:
    describe_shapes(shapes)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(NAMES, SHAPES, max_size=12))
def test_any_names_make_a_tree_whose_root_has_all_parameters(shapes: dict[str, tuple[int, ...]]) -> None:
    entries = [Entry(name, TensorSpec(shape), "f", 0, 0) for name, shape in shapes.items()]
    index = Index("f", "torch", ("f",), tuple(entries))
    params = param_records(index)
    modules = module_records(params, {})
    assert modules[0].path == ""
    assert modules[0].params == sum(param.spec.numel for param in params)
    paths = [record.path for record in modules]
    assert all(record.parent in paths[:position] for position, record in enumerate(modules) if record.path)


def test_a_name_of_a_million_folders_makes_no_deep_tree() -> None:
    entry = Entry("a." * 1_000_000 + "weight", TensorSpec((2,)), "f", 0, 8)
    index = Index("f", "torch", ("f",), (entry,))
    (name,) = model_entries(index)
    assert name.count(".") == MAX_NAME_DEPTH
    assert len(module_records(param_records(index), {})) == MAX_NAME_DEPTH + 1
    describe_shapes({name: (2,)})
