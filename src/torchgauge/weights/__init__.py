"""Statistics of parameter tensors, streamed: stored symbols are counted once, and every figure follows from the counts.

The way of a tensor: plan (which bytes) → reader → kernels (bytes to a tally) → tensors (statistics, quantization,
pruning, matrix, packings, memory layout) → scanner (aggregate, outliers, journal, threads or a Dask cluster).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.lazy import lazy_names

if TYPE_CHECKING:
    from torchgauge.weights.aggregate import KINDS, Aggregate, find_outliers, tensor_kinds
    from torchgauge.weights.cluster import Cluster
    from torchgauge.weights.comparison import compare_checkpoints
    from torchgauge.weights.distribution import Bins, Ranges
    from torchgauge.weights.journal import Journal, journal_path
    from torchgauge.weights.kernels import tally_bytes
    from torchgauge.weights.memory_layout import alignment, shuffle_bytes, stride_class, zstd_ratios
    from torchgauge.weights.number_formats import (
        FORMATS,
        FP8_E4M3,
        FP8_E5M2,
        INT4,
        INT8,
        NF4,
        Float8Format,
        Format,
        IntegerFormat,
    )
    from torchgauge.weights.passes import SMALL_ELEMENTS
    from torchgauge.weights.plan import (
        PIECE_BYTES,
        Batch,
        Piece,
        TensorPlan,
        make_batches,
        plan_checkpoint,
        plan_tensor,
        same_views,
    )
    from torchgauge.weights.pruning import structured_pruning, unstructured_pruning
    from torchgauge.weights.quantization import row_quantization, tensor_quantization
    from torchgauge.weights.reader import FileReader, LiveTensors, Reader, read_piece, stamp_files
    from torchgauge.weights.rows import ArrayRows, FileRows, Rows, decode, decode_rows, zero_nonfinite
    from torchgauge.weights.scanner import ScanRequest, ScanResult, scan, weight_statistics
    from torchgauge.weights.statistics import HISTOGRAM_BINS, QUANTILES, narrower_dtype, value_statistics
    from torchgauge.weights.symbols import (
        SYMBOLS,
        code_bounds,
        is_exact,
        stored_symbols,
        subnormal_of,
        symbol_of,
        value_bounds,
        values_of,
    )
    from torchgauge.weights.tally import (
        Moments,
        Tally,
        combine_moments,
        empty_tally,
        merge_tallies,
        moments_of_counts,
        tally_from_json,
        tally_to_json,
        to_float32_codes,
    )
    from torchgauge.weights.tensors import tally_batch
    from torchgauge.weights.threads import Threads, in_order

__all__ = [
    "FORMATS", "FP8_E4M3", "FP8_E5M2", "HISTOGRAM_BINS", "INT4", "INT8", "KINDS", "NF4", "PIECE_BYTES", "QUANTILES",
    "SMALL_ELEMENTS", "SYMBOLS", "Aggregate", "ArrayRows", "Batch", "Bins", "Cluster", "FileReader", "FileRows",
    "Float8Format", "Format", "IntegerFormat", "Journal", "LiveTensors", "Moments", "Piece", "Ranges", "Reader",
    "Rows", "ScanRequest", "ScanResult", "Tally", "TensorPlan", "Threads", "alignment", "code_bounds",
    "combine_moments", "compare_checkpoints", "decode", "decode_rows", "empty_tally", "find_outliers", "in_order",
    "is_exact", "journal_path", "make_batches", "merge_tallies", "moments_of_counts", "narrower_dtype",
    "plan_checkpoint", "plan_tensor", "read_piece", "row_quantization", "same_views", "scan", "shuffle_bytes",
    "stamp_files", "stored_symbols", "stride_class", "structured_pruning", "subnormal_of", "symbol_of", "tally_batch",
    "tally_bytes", "tally_from_json", "tally_to_json", "tensor_kinds", "tensor_quantization", "to_float32_codes",
    "unstructured_pruning", "value_bounds", "value_statistics", "values_of", "weight_statistics", "zero_nonfinite",
    "zstd_ratios",
]  # fmt: skip

__getattr__ = lazy_names(__name__)
