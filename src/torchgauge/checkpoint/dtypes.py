"""From the names of element types in file formats to torch's names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from torchgauge.facts import ITEM_BITS, TensorSpec

STORAGE_CLASSES: Mapping[str, str] = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "LongStorage": "int64",
    "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8",
    "BoolStorage": "bool", "BFloat16Storage": "bfloat16", "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64", "QInt8Storage": "qint8", "QInt32Storage": "qint32", "QUInt8Storage": "quint8",
    "QUInt4x2Storage": "quint4x2", "QUInt2x4Storage": "quint2x4",
}  # fmt: skip
UNTYPED_STORAGE_CLASSES = frozenset({"UntypedStorage", "_UntypedStorage"})

DTYPE_ALIASES: Mapping[str, str] = {
    "float": "float32", "double": "float64", "half": "float16", "long": "int64", "int": "int32", "short": "int16",
    "cfloat": "complex64", "cdouble": "complex128", "chalf": "complex32",
}  # fmt: skip
TORCH_DTYPES = frozenset(
    {
        *ITEM_BITS, *DTYPE_ALIASES, "bits1x8", "bits2x4", "bits4x2",
        *(f"{kind}{width}" for kind in ("int", "uint") for width in range(1, 8)),
    }
)  # fmt: skip

# code -> (torch's name, bits per element). Where torch packs two values in a byte, the file counts the values.
SAFETENSORS: Mapping[str, tuple[str, int]] = {
    "BOOL": ("bool", 8), "U8": ("uint8", 8), "I8": ("int8", 8), "U16": ("uint16", 16), "I16": ("int16", 16),
    "U32": ("uint32", 32), "I32": ("int32", 32), "U64": ("uint64", 64), "I64": ("int64", 64),
    "F16": ("float16", 16), "BF16": ("bfloat16", 16), "F32": ("float32", 32), "F64": ("float64", 64),
    "C64": ("complex64", 64), "F8_E4M3": ("float8_e4m3fn", 8), "F8_E5M2": ("float8_e5m2", 8),
    "F8_E8M0": ("float8_e8m0fnu", 8), "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8), "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8),
    "F4": ("float4_e2m1fn_x2", 4), "F6_E2M3": ("float6_e2m3fn", 6), "F6_E3M2": ("float6_e3m2fn", 6),
}  # fmt: skip

# `ScalarType` of torch's export schema.
EXPORT_SCALARS: Mapping[int, str] = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64",
    9: "complex32", 10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16", 28: "uint16",
    29: "float8_e4m3fn", 30: "float8_e5m2", 31: "float8_e4m3fnuz", 32: "float8_e5m2fnuz", 33: "float8_e8m0fnu",
    34: "uint32", 35: "uint64",
}  # fmt: skip

# `numpy.dtype` as pickled: kind and width.
NUMPY: Mapping[str, str] = {
    "f2": "float16", "f4": "float32", "f8": "float64", "c8": "complex64", "c16": "complex128", "b1": "bool",
    **{f"{kind[0]}{size}": f"{kind}{size * 8}" for kind in ("int", "uint") for size in (1, 2, 4, 8)},
}  # fmt: skip

# Values packed into one byte of these types; their shapes count the values.
VALUES_PER_BYTE: Mapping[str, int] = {"quint4x2": 2, "quint2x4": 4}


@lru_cache(maxsize=256)
def item_bytes(dtype: str) -> int:
    return 1 if dtype.startswith("bits") and "x" in dtype else TensorSpec((), dtype).itemsize
