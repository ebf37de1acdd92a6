"""Statistics of parameter tensors, streamed: stored symbols are counted once, and every figure follows from the counts.

The way of a tensor: plan (which bytes) → reader → kernels (bytes to a tally) → tensors (statistics, quantization,
pruning, matrix, packings, memory layout) → scanner (aggregate, outliers, journal, threads or a Dask cluster).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.registry import lazy_names

if TYPE_CHECKING:
    from torchgauge.weights.aggregate import *
    from torchgauge.weights.cluster import *
    from torchgauge.weights.comparison import compare_checkpoints as compare_checkpoints
    from torchgauge.weights.distribution import *
    from torchgauge.weights.journal import *
    from torchgauge.weights.kernels import *
    from torchgauge.weights.memory_layout import *
    from torchgauge.weights.number_formats import *
    from torchgauge.weights.passes import *
    from torchgauge.weights.plan import *
    from torchgauge.weights.pruning import *
    from torchgauge.weights.quantization import *
    from torchgauge.weights.reader import *
    from torchgauge.weights.rows import *
    from torchgauge.weights.scanner import *
    from torchgauge.weights.statistics import *
    from torchgauge.weights.symbols import *
    from torchgauge.weights.tally import *
    from torchgauge.weights.tensors import *
    from torchgauge.weights.threads import *

_HOMES = {
    "aggregate": ("Aggregate", "KINDS", "find_outliers", "tensor_kinds"),
    "cluster": ("Cluster",),
    "comparison": ("compare_checkpoints",),
    "distribution": ("Bins", "Ranges"),
    "journal": ("Journal", "scan_id"),
    "kernels": ("tally_bytes",),
    "memory_layout": ("alignment", "shuffle_bytes", "stride_class", "zstd_ratios"),
    "number_formats": (
        "FORMATS", "FP8_E4M3", "FP8_E5M2", "Float8Format", "Format", "INT4", "INT8", "IntegerFormat", "NF4",
    ),
    "passes": ("SMALL_ELEMENTS",),
    "plan": (
        "Batch", "PIECE_BYTES", "Piece", "TensorPlan", "make_batches", "plan_checkpoint", "plan_tensor", "same_views",
    ),
    "pruning": ("structured_pruning", "unstructured_pruning"),
    "quantization": ("row_quantization", "tensor_quantization"),
    "reader": ("FileReader", "LiveTensors", "Reader", "read_piece", "stamp_files"),
    "rows": ("ArrayRows", "FileRows", "Rows", "decode", "decode_rows", "zero_nonfinite"),
    "scanner": ("ScanRequest", "ScanResult", "scan"),
    "statistics": ("HISTOGRAM_BINS", "QUANTILES", "narrower_dtype", "value_statistics"),
    "symbols": (
        "SYMBOLS", "code_bounds", "is_exact", "stored_symbols", "subnormal_of", "symbol_of", "value_bounds",
        "values_of",
    ),
    "tally": (
        "Moments", "Tally", "combine_moments", "empty_tally", "merge_tallies", "moments_of_counts", "tally_from_json",
        "tally_to_json", "to_float32_codes",
    ),
    "tensors": ("tally_batch",),
    "threads": ("Threads", "in_order"),
}  # fmt: skip
__getattr__ = lazy_names(__name__, _HOMES)
