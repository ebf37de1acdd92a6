"""Short SIMD vectors for loops that the compiler cannot vectorise because they also count.

Counting waits for memory while sums need arithmetic: in one loop, both cost little more than counting alone. A vector
is one register of float64, or eight 32-bit patterns; processors with shorter registers compute it in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba.core import cgutils, types
from numba.extending import intrinsic, models, register_model

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.datamodel.manager import DataModelManager
    from numba.core.typing import Signature

    Arguments = Sequence[ir.Value]
    Emit = Callable[[BaseContext, ir.IRBuilder, Signature, Arguments], ir.Value]
    # The parts of a numba intrinsic: its signature, and the code generator of a call.
    Typed = tuple[Signature, Emit]
    Typing = Callable[..., Typed]
    Operation = Callable[[ir.IRBuilder, ir.Value, ir.Value], ir.Value]
    # Called in kernels only, where numba checks the types.
    Intrinsic = Callable[..., Any]

# Float64 values per register. With AVX2's sixteen registers, five sums of two registers each would have to be spilled
# at every step, which doubles the time.
FLOATS = 8 if get_host_cpu_features().get("avx512f") else 4
PATTERNS = 8

_FLOATS = ir.VectorType(ir.DoubleType(), FLOATS)
_PATTERNS = ir.VectorType(ir.IntType(32), PATTERNS)
_INDEX = ir.IntType(32)
# Allow fused multiply-add.
_FUSED = ("contract",)


class FloatLanes(types.Type):
    def __init__(self) -> None:
        super().__init__("FloatLanes")


class PatternLanes(types.Type):
    def __init__(self) -> None:
        super().__init__("PatternLanes")


@register_model(FloatLanes)
class _FloatModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: DataModelManager, kind: types.Type) -> None:
        super().__init__(manager, kind, _FLOATS)


@register_model(PatternLanes)
class _PatternModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: DataModelManager, kind: types.Type) -> None:
        super().__init__(manager, kind, _PATTERNS)


_floats, _patterns = FloatLanes(), PatternLanes()


def _address(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Arguments) -> ir.Value:
    """The address of element arguments[1] of the array arguments[0]."""
    data = cgutils.create_struct_proxy(signature.args[0])(context, builder, value=arguments[0]).data
    return builder.gep(data, [arguments[1]])


def _prefetch(_context: BaseContext, array: types.Array, _index: types.Type) -> Typed:
    """prefetch(array, index): request a cache line that is needed soon; an index past the end is harmless.

    Counting fills the out-of-order window of a core, so without this it would request the next line too late.
    """

    def emit(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Arguments) -> ir.Value:
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        call = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        place = builder.bitcast(_address(context, builder, signature, arguments), byte)
        # For reading, into all levels of the cache, of data.
        builder.call(call, [place, flag(0), flag(3), flag(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), emit


def _load_floats(_context: BaseContext, array: types.Array, _index: types.Type) -> Typed:
    """load_floats(array of float32, index): `FLOATS` values from there, as float64."""

    def emit(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Arguments) -> ir.Value:
        kind = ir.VectorType(ir.FloatType(), FLOATS)
        place = builder.bitcast(_address(context, builder, signature, arguments), kind.as_pointer())
        return builder.fpext(builder.load(place, align=4), _FLOATS)

    return _floats(array, types.intp), emit


def _load_patterns(_context: BaseContext, array: types.Array, _index: types.Type) -> Typed:
    """load_patterns(array of int32, index): eight patterns from there."""

    def emit(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Arguments) -> ir.Value:
        place = builder.bitcast(_address(context, builder, signature, arguments), _PATTERNS.as_pointer())
        return builder.load(place, align=4)

    return _patterns(array, types.intp), emit


def _spread(kind: types.Type, vector: ir.VectorType, scalar: types.Type) -> Typing:
    """One number in every lane."""

    def typed(_context: BaseContext, _value: types.Type) -> Typed:
        def emit(_context: BaseContext, builder: ir.IRBuilder, _signature: Signature, arguments: Arguments) -> ir.Value:
            lanes = ir.Constant(vector, ir.Undefined)
            for lane in range(vector.count):
                lanes = builder.insert_element(lanes, arguments[0], ir.Constant(_INDEX, lane))
            return lanes

        return kind(scalar), emit

    return typed


def _binary(kind: types.Type, operation: Operation) -> Typing:
    def typed(_context: BaseContext, _first: types.Type, _second: types.Type) -> Typed:
        def emit(_context: BaseContext, builder: ir.IRBuilder, _signature: Signature, arguments: Arguments) -> ir.Value:
            return operation(builder, *arguments)

        return kind(kind, kind), emit

    return typed


def _folded(kind: types.Type, scalar: types.Type, operation: Operation) -> Typing:
    """All lanes to one number."""

    def typed(_context: BaseContext, _value: types.Type) -> Typed:
        def emit(_context: BaseContext, builder: ir.IRBuilder, _signature: Signature, arguments: Arguments) -> ir.Value:
            count = arguments[0].type.count
            lanes = [builder.extract_element(arguments[0], ir.Constant(_INDEX, lane)) for lane in range(count)]
            return reduce(lambda first, second: operation(builder, first, second), lanes)

        return scalar(kind), emit

    return typed


def _from_pattern(kind: types.Type, float_type: ir.Type, pattern: types.Type) -> Typing:
    """The float that has this bit pattern."""

    def typed(_context: BaseContext, _pattern: types.Type) -> Typed:
        def emit(_context: BaseContext, builder: ir.IRBuilder, _signature: Signature, arguments: Arguments) -> ir.Value:
            return builder.bitcast(arguments[0], float_type)

        return kind(pattern), emit

    return typed


def _magnitudes(_context: BaseContext, _value: types.Type) -> Typed:
    def emit(_context: BaseContext, builder: ir.IRBuilder, _signature: Signature, arguments: Arguments) -> ir.Value:
        kind = ir.FunctionType(_FLOATS, [_FLOATS])
        call = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fabs.v{FLOATS}f64")
        return builder.call(call, arguments)

    return _floats(_floats), emit


def _add(builder: ir.IRBuilder, first: ir.Value, second: ir.Value) -> ir.Value:
    return builder.fadd(first, second, flags=_FUSED)


def _subtract(builder: ir.IRBuilder, first: ir.Value, second: ir.Value) -> ir.Value:
    return builder.fsub(first, second, flags=_FUSED)


def _multiply(builder: ir.IRBuilder, first: ir.Value, second: ir.Value) -> ir.Value:
    return builder.fmul(first, second, flags=_FUSED)


def _lesser(builder: ir.IRBuilder, first: ir.Value, second: ir.Value) -> ir.Value:
    return builder.select(builder.icmp_signed("<", first, second), first, second)


def _greater(builder: ir.IRBuilder, first: ir.Value, second: ir.Value) -> ir.Value:
    return builder.select(builder.icmp_signed(">", first, second), first, second)


def _greater_unsigned(builder: ir.IRBuilder, first: ir.Value, second: ir.Value) -> ir.Value:
    return builder.select(builder.icmp_unsigned(">", first, second), first, second)


prefetch: Intrinsic = intrinsic(_prefetch)
single_from: Intrinsic = intrinsic(_from_pattern(types.float32, ir.FloatType(), types.int32))
double_from: Intrinsic = intrinsic(_from_pattern(types.float64, ir.DoubleType(), types.int64))
load_floats: Intrinsic = intrinsic(_load_floats)
load_patterns: Intrinsic = intrinsic(_load_patterns)
spread_float: Intrinsic = intrinsic(_spread(_floats, _FLOATS, types.float64))
spread_pattern: Intrinsic = intrinsic(_spread(_patterns, _PATTERNS, types.int32))
magnitudes: Intrinsic = intrinsic(_magnitudes)
plus: Intrinsic = intrinsic(_binary(_floats, _add))
minus: Intrinsic = intrinsic(_binary(_floats, _subtract))
product: Intrinsic = intrinsic(_binary(_floats, _multiply))
total: Intrinsic = intrinsic(_folded(_floats, types.float64, _add))
lesser: Intrinsic = intrinsic(_binary(_patterns, _lesser))
greater: Intrinsic = intrinsic(_binary(_patterns, _greater))
greater_unsigned: Intrinsic = intrinsic(_binary(_patterns, _greater_unsigned))
least: Intrinsic = intrinsic(_folded(_patterns, types.int32, _lesser))
greatest: Intrinsic = intrinsic(_folded(_patterns, types.int32, _greater))
greatest_unsigned: Intrinsic = intrinsic(_folded(_patterns, types.uint32, _greater_unsigned))
