"""A capture made by hand, with all that a report must cope with.

    Sample
    ├─ stem          Sequential: Conv2d, ReLU
    ├─ blocks        12 equal blocks: fc (Linear) and an op without a formula in the block itself
    ├─ shared        Linear, registered a second time as `again`, called twice
    ├─ unused        Linear, never called
    └─ \\x1b[31m[b]   Linear whose name is hostile

The figures are closed forms of the constants below.
"""

from __future__ import annotations

from torchgauge.facts import (
    COUNTED,
    FREE,
    UNCOUNTED,
    Capture,
    Cost,
    Environment,
    InputRecord,
    ModuleRecord,
    OpRecord,
    ParamRecord,
    RunRecord,
    Signature,
    TargetRecord,
    TensorSpec,
    View,
)

BLOCKS = 12
WIDTH = 64
TOKENS = 16
HOSTILE = "\x1b[31m[b]<i>"

PIXELS = TensorSpec((1, 3, 32, 32))
FEATURES = TensorSpec((1, WIDTH, 4, 4))
HIDDEN = TensorSpec((TOKENS, WIDTH))
CONV_WEIGHT = TensorSpec((WIDTH, 3, 8, 8))
SQUARE = TensorSpec((WIDTH, WIDTH))
BIAS = TensorSpec((WIDTH,))

CONV_MACS = FEATURES.numel * 3 * 8 * 8
LINEAR_MACS = TOKENS * WIDTH * WIDTH
LINEAR_PARAMS = WIDTH * WIDTH + WIDTH
LINEARS = [*(f"blocks.{i}.fc" for i in range(BLOCKS)), "shared", "unused", HOSTILE]

ENVIRONMENT = Environment("3.11.7", "2.13.0", "Linux-x86_64", "A CPU", 8, 2**34, 4, {"timm": "1.0.30"})


def _conv() -> Signature:
    moved = Cost(CONV_MACS, 2 * CONV_MACS, PIXELS.nbytes + CONV_WEIGHT.nbytes, FEATURES.nbytes)
    inputs = (PIXELS, CONV_WEIGHT)
    return Signature(
        "aten::convolution", "default", "convolution", COUNTED, (), inputs, (FEATURES,), {}, moved, FEATURES.nbytes
    )


def _relu() -> Signature:
    cost = Cost(0, FEATURES.numel, FEATURES.nbytes, FEATURES.nbytes)
    tags = ("pointwise",)
    return Signature("aten::relu_", "default", "activation", COUNTED, tags, (FEATURES,), (FEATURES,), {}, cost, 0)


def _linear() -> Signature:
    read = BIAS.nbytes + HIDDEN.nbytes + SQUARE.nbytes
    cost = Cost(LINEAR_MACS, 2 * LINEAR_MACS + HIDDEN.numel, read, HIDDEN.nbytes)
    inputs = (BIAS, HIDDEN, SQUARE)
    return Signature(
        "aten::addmm", "default", "matmul", COUNTED, (), inputs, (HIDDEN,), {"beta": 1}, cost, HIDDEN.nbytes
    )


def _view() -> Signature:
    return Signature("aten::view", "default", "view", FREE, ("view",), (FEATURES,), (HIDDEN,), {}, Cost(), 0)


def _mystery() -> Signature:
    cost = Cost(0, 0, HIDDEN.nbytes, HIDDEN.nbytes)
    attributes = {"fill": float("-inf")}
    return Signature("my::mix", "default", "other", UNCOUNTED, (), (HIDDEN,), (HIDDEN,), attributes, cost, 0)


def _ops(phase: str = "forward") -> tuple[OpRecord, ...]:
    linear, mystery = _linear(), _mystery()
    calls = [(_conv(), "stem.0", 30_000), (_relu(), "stem.1", 30_000), (_view(), "", 20_000)]
    for index in range(BLOCKS):
        calls += [(linear, f"blocks.{index}.fc", 24_000), (mystery, f"blocks.{index}", 22_000)]
    calls += [(linear, "shared", 40_000), (linear, "shared", 23_000), (linear, HOSTILE, 21_000)]
    return tuple(
        OpRecord(index, signature, module, live, (f"{module}.weight",) if signature.op == "aten::addmm" else (), phase)
        for index, (signature, module, live) in enumerate(calls)
    )


def _linear_record(path: str) -> ModuleRecord:
    calls = {"shared": 2, "unused": 0}.get(path, 1)
    seen = (HIDDEN, HIDDEN) if calls else (None, None)
    size = LINEAR_PARAMS
    aliases = ("again",) if path == "shared" else ()
    return ModuleRecord(path, "Linear", aliases, calls, size, size, 4 * size, (seen[0],), seen[1])


def _modules() -> tuple[ModuleRecord, ...]:
    conv, blocks = CONV_WEIGHT.numel, BLOCKS * LINEAR_PARAMS
    every = conv + len(LINEARS) * LINEAR_PARAMS
    records = [
        ModuleRecord("", "Sample", (), 1, every, every - conv, 4 * every, (PIXELS,), {"logits": HIDDEN}),
        ModuleRecord("stem", "Sequential", (), 1, conv, 0, 4 * conv, (PIXELS,), FEATURES),
        ModuleRecord("stem.0", "Conv2d", (), 1, conv, 0, 4 * conv, (PIXELS,), FEATURES),
        ModuleRecord("stem.1", "ReLU", (), 1, 0, 0, 0, (FEATURES,), FEATURES),
        ModuleRecord("blocks", "ModuleList", (), 0, blocks, blocks, 4 * blocks),
    ]
    for index in range(BLOCKS):
        size = LINEAR_PARAMS
        records.append(ModuleRecord(f"blocks.{index}", "Block", (), 1, size, size, 4 * size, (HIDDEN,), HIDDEN))
        records.append(_linear_record(f"blocks.{index}.fc"))
    return (*records, *(_linear_record(path) for path in LINEARS[BLOCKS:]))


def _params() -> tuple[ParamRecord, ...]:
    params = [ParamRecord("stem.0.weight", CONV_WEIGHT, trainable=False)]
    for path in LINEARS:
        for name, spec in (("weight", SQUARE), ("bias", BIAS)):
            aliases = (f"again.{name}",) if path == "shared" else ()
            params.append(ParamRecord(f"{path}.{name}", spec, trainable=True, aliases=aliases))
    return (*params, ParamRecord("scale", TensorSpec((2,)), trainable=False, is_buffer=True))


def sample_capture() -> Capture:
    return Capture(
        target=TargetRecord("sample.py:Sample"),
        environment=ENVIRONMENT,
        created="2026-01-02T03:04:05+00:00",
        version="0.1.0",
        run=RunRecord("real", "a branch on the values of x", "cpu", False, ("autocast was on",)),
        inputs=(InputRecord("x", PIXELS, "the first convolution takes 3 channels"),),
        modules=_modules(),
        params=_params(),
        ops=_ops(),
        input_bytes=PIXELS.nbytes,
    )


def sample_view() -> View:
    return View(sample_capture())
