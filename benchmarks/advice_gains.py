"""Expected gains against measured ones: models before and after the change that advice asks for.

    python benchmarks/advice_gains.py predict [--on h200] -o expected.json      # static analysis, no runs
    python benchmarks/advice_gains.py measure [--cuda] -o measured.json         # both sides in turns
    python benchmarks/advice_gains.py compare expected.json measured.json

`--set second` takes the models of `advice_models.py`, `--set third` those of `advice_unseen.py`.

On the CPU runs take one thread, and its processor time is what counts: other processes on the machine do not add to it.
Predictions for a device are made and saved before anything is measured there.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Forward = Callable[..., Any]
# The model, the changed model and the inputs.
Sides = tuple[nn.Module, nn.Module, tuple[Any, ...]]


class Does(nn.Module):
    def __init__(self, forward: Forward, **parts: Any) -> None:
        super().__init__()
        self.does = forward
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *args: Any) -> Any:
        return self.does(self, *args)


@dataclass(frozen=True)
class Case:
    """`build` gives the model, the changed model and the inputs; `scale` is larger for a GPU."""

    name: str
    rules: tuple[str, ...]
    build: Callable[[int], Sides]


def x(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def sines(scale: int) -> Sides:
    length, width = 256 * scale, 256

    def table() -> Tensor:
        at = torch.arange(length, dtype=torch.float32)[:, None]
        rate = torch.exp(torch.arange(0, width, 2, dtype=torch.float32) * (-math.log(1e4) / width))
        return torch.cat([torch.sin(at * rate), torch.cos(at * rate)], dim=1)

    layer = nn.Linear(width, width)
    before = Does(lambda self, h: self.fc(h + table().to(h.device)), fc=layer)
    after = Does(lambda self, h: self.fc(h + self.table), fc=layer, table=table())
    return before, after, (x(2, length, width),)


def rotary(scale: int) -> Sides:
    """Angles in every layer."""
    length, width, layers = 128 * scale, 256, nn.ModuleList(nn.Linear(256, 256) for _ in range(4))

    def angles(device: torch.device) -> tuple[Tensor, Tensor]:
        rate = 1e4 ** (-torch.arange(0, width, 2, device=device).float() / width)
        angle = torch.arange(length, device=device).float()[:, None] * rate
        return angle.cos(), angle.sin()

    def turned(h: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        one, two = h.chunk(2, -1)
        return torch.cat([one * cos - two * sin, one * sin + two * cos], -1)

    def each(self: Any, h: Tensor) -> Tensor:
        for layer in self.layers:
            h = h + turned(layer(h), *angles(h.device))
        return h

    def once(self: Any, h: Tensor) -> Tensor:
        for layer in self.layers:
            h = h + turned(layer(h), self.cos, self.sin)
        return h

    cos, sin = angles(torch.device("cpu"))
    return Does(each, layers=layers), Does(once, layers=layers, cos=cos, sin=sin), (x(2, length, width),)


def normalised(scale: int) -> Sides:
    weight = nn.Parameter(x(512 * scale, 512))
    before = Does(lambda self, h: h @ F.normalize(self.weight, dim=-1).T, weight=weight)
    after = Does(lambda self, h: h @ self.weight.T, weight=nn.Parameter(F.normalize(weight.detach(), dim=-1)))
    return before, after, (x(16, 512),)


def twice(scale: int) -> Sides:
    parts = {"one": nn.Linear(256 * scale, 256 * scale), "two": nn.Linear(256 * scale, 256 * scale)}

    def once(self: Any, h: Tensor) -> Tensor:
        made = self.one(h)
        return torch.relu(made) + self.two(made)

    return (
        Does(lambda self, h: torch.relu(self.one(h)) + self.two(self.one(h)), **parts),
        Does(once, **parts),
        (x(64, 256 * scale),),
    )


def cells(scale: int) -> Sides:
    cell, layer = nn.LSTMCell(64, 128), nn.LSTM(64, 128, batch_first=True)
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        getattr(layer, f"{name}_l0").data.copy_(getattr(cell, name).data)

    def steps(self: Any, h: Tensor) -> Tensor:
        state = (h.new_zeros(h.shape[0], 128), h.new_zeros(h.shape[0], 128))
        out = []
        for t in range(h.shape[1]):
            state = self.cell(h[:, t], state)
            out.append(state[0])
        return torch.stack(out, 1)

    return Does(steps, cell=cell), Does(lambda self, h: self.layer(h)[0], layer=layer), (x(4 * scale, 50, 64),)


def heads(scale: int) -> Sides:
    many = nn.ModuleList(nn.Linear(256, 32) for _ in range(8))
    one = nn.Linear(256, 256)
    before = Does(lambda self, h: torch.cat([head(h) for head in self.heads], -1), heads=many)
    return before, Does(lambda self, h: self.one(h), one=one), (x(16 * scale, 256),)


def samples(scale: int) -> Sides:
    layer = nn.Sequential(nn.Linear(128, 128), nn.ReLU())
    before = Does(lambda self, h: torch.stack([self.fc(row) for row in h]), fc=layer)
    return before, Does(lambda self, h: self.fc(h), fc=layer), (x(32 * scale, 128),)


def one_hot(scale: int) -> Sides:
    table = nn.Parameter(x(4000, 128))
    ids = torch.randint(0, 4000, (32 * scale,), generator=torch.Generator().manual_seed(0))
    before = Does(lambda self, i: F.one_hot(i, 4000).float() @ self.table, table=table)
    return before, Does(lambda self, i: F.embedding(i, self.table), table=table), (ids,)


def causal(scale: int) -> Sides:
    length, parts = 256 * scale, {"qkv": nn.Linear(256, 768), "out": nn.Linear(256, 256)}

    def attended(self: Any, h: Tensor, **settings: Any) -> Tensor:
        q, k, v = self.qkv(h).view(*h.shape[:2], 3, 8, 32).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, **settings).transpose(1, 2).flatten(2))

    def masked(self: Any, h: Tensor) -> Tensor:
        mask = torch.ones(length, length, dtype=torch.bool, device=h.device).tril()
        return attended(self, h, attn_mask=mask)

    return Does(masked, **parts), Does(lambda self, h: attended(self, h, is_causal=True), **parts), (x(2, length, 256),)


def by_hand(scale: int) -> Sides:
    length, parts = 128 * scale, {"qkv": nn.Linear(256, 768), "out": nn.Linear(256, 256)}

    def written(self: Any, h: Tensor) -> Tensor:
        q, k, v = self.qkv(h).view(*h.shape[:2], 3, 8, 32).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1) / 32**0.5).softmax(-1)
        return self.out((scores @ v).transpose(1, 2).flatten(2))

    def fused(self: Any, h: Tensor) -> Tensor:
        q, k, v = self.qkv(h).view(*h.shape[:2], 3, 8, 32).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    return Does(written, **parts), Does(fused, **parts), (x(4, length, 256),)


def gelu(scale: int) -> Sides:
    parts = {"up": nn.Linear(256, 1024), "down": nn.Linear(1024, 256)}

    def written(self: Any, h: Tensor) -> Tensor:
        h = self.up(h)
        return self.down(0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * torch.pow(h, 3)))))

    fused = Does(lambda self, h: self.down(F.gelu(self.up(h), approximate="tanh")), **parts)
    return Does(written, **parts), fused, (x(256 * scale, 256),)


def norm(scale: int) -> Sides:
    parts = {"fc": nn.Linear(256, 256), "weight": nn.Parameter(x(256)), "bias": nn.Parameter(x(256))}

    def written(self: Any, h: Tensor) -> Tensor:
        h = self.fc(h)
        mean, spread = h.mean(-1, keepdim=True), h.var(-1, keepdim=True, unbiased=False)
        return (h - mean) / torch.sqrt(spread + 1e-5) * self.weight + self.bias

    fused = Does(lambda self, h: F.layer_norm(self.fc(h), (256,), self.weight, self.bias), **parts)
    return Does(written, **parts), fused, (x(256 * scale, 256),)


def frozen(scale: int) -> Sides:
    size = 28 * scale
    conv, folded = nn.Conv2d(64, 64, 1, bias=False), nn.Conv2d(64, 64, 1)
    scaling, shift = x(1, 64, 1, 1), x(1, 64, 1, 1)
    before = Does(lambda self, h: torch.relu(self.conv(h) * self.s + self.b), conv=conv, s=scaling, b=shift)
    return before, Does(lambda self, h: torch.relu(self.conv(h)), conv=folded), (x(4, 64, size, size),)


def enlarged(scale: int) -> Sides:
    parts = {"conv": nn.Conv2d(64, 32, 1)}
    before = Does(lambda self, h: self.conv(F.interpolate(h, scale_factor=2.0, mode="bilinear")), **parts)
    after = Does(lambda self, h: F.interpolate(self.conv(h), scale_factor=2.0, mode="bilinear"), **parts)
    return before, after, (x(2, 64, 28 * scale, 28 * scale),)


def grouped_keys(scale: int) -> Sides:
    given = (x(2, 8, 128 * scale, 64), x(2, 2, 128 * scale, 64), x(2, 2, 128 * scale, 64))

    def repeated(self: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k.repeat_interleave(4, 1), v.repeat_interleave(4, 1))

    after = Does(lambda self, q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True))
    return Does(repeated), after, given


def permuted(scale: int) -> Sides:
    conv = nn.Conv2d(32, 32, 1)

    def turned(self: Any, h: Tensor) -> Tensor:
        h = self.conv(h).permute(0, 2, 3, 1).contiguous()
        return F.gelu(h).permute(0, 3, 1, 2).contiguous()

    return Does(turned, conv=conv), Does(lambda self, h: F.gelu(self.conv(h)), conv=conv), (x(2, 32, 56, 56 * scale),)


def grown(scale: int) -> Sides:
    fc = nn.Linear(128, 128)

    def growing(self: Any, h: Tensor) -> Tensor:
        out = self.fc(h[:, :1])
        for t in range(1, 32):
            out = torch.cat([out, self.fc(h[:, t : t + 1])], 1)
        return out

    def joined(self: Any, h: Tensor) -> Tensor:
        return torch.cat([self.fc(h[:, t : t + 1]) for t in range(32)], 1)

    return Does(growing, fc=fc), Does(joined, fc=fc), (x(16 * scale, 32, 128),)


def double(scale: int) -> Sides:
    fc, table = nn.Linear(256, 256), x(256).double()
    before = Does(lambda self, h: (self.fc(h) * self.table).tanh().float(), fc=fc, table=table)
    return (
        before,
        Does(lambda self, h: (self.fc(h) * self.table).tanh(), fc=fc, table=table.float()),
        (x(128 * scale, 256),),
    )


def round_trip(scale: int) -> Sides:
    fc = nn.Linear(256, 256)
    before = Does(lambda self, h: self.fc(h.half().float()), fc=fc)
    return before, Does(lambda self, h: self.fc(h), fc=fc), (x(256 * scale, 256),)


def chomped(scale: int) -> Sides:
    conv = nn.Conv1d(64, 64, 3, padding=2)
    before = Does(lambda self, h: torch.relu(self.conv(h)[..., :-2].contiguous()), conv=conv)
    return before, Does(lambda self, h: torch.relu(self.conv(h)[..., :-2]), conv=conv), (x(4, 64, 512 * scale),)


def weight_norms(scale: int) -> Sides:
    def convs() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(*(nn.Conv1d(128, 128, 7, padding=3) for _ in range(4)))

    before, after = convs(), convs()
    for layer in before:
        nn.utils.parametrizations.weight_norm(layer)
    return before, after, (x(1, 128, 64 * scale),)


def folded(name: str) -> Callable[[int], Sides]:
    def build(scale: int) -> Sides:
        from torchgauge.source.packages import import_optional

        models = import_optional("torchvision", "the benchmark").models
        torch.manual_seed(0)
        before, after = getattr(models, name)().eval(), getattr(models, name)().eval()
        _fold(after)
        return before, after, (x(scale, 3, 224, 224),)

    return build


def _fold(model: nn.Module) -> None:
    """Convolutions and the batch norms that follow them among the children of each module."""
    for parent in list(model.modules()):
        previous: tuple[str, nn.Module] | None = None
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.BatchNorm2d) and previous is not None and isinstance(previous[1], nn.Conv2d):
                setattr(parent, previous[0], nn.utils.fusion.fuse_conv_bn_eval(previous[1], child))
                setattr(parent, name, nn.Identity())
            previous = (name, child)


CASES = [
    Case("a table of sines in a buffer", ("recomputed-constant",), sines),
    Case("rotary angles in buffers", ("recomputed-constant", "repeated-work"), rotary),
    Case("a weight normalised once", ("recomputed-weight",), normalised),
    Case("weight norm removed", ("recomputed-weight",), weight_norms),
    Case("a layer called once", ("repeated-work",), twice),
    Case("LSTM for LSTMCell, 50 steps", ("loop-over-steps",), cells),
    Case("one linear for 8 heads", ("parallel-linears",), heads),
    Case("one call for a loop over samples", ("loop-over-samples",), samples),
    Case("a lookup for a one-hot product", ("one-hot-product",), one_hot),
    Case("`is_causal` for a mask", ("causal-mask", "recomputed-constant"), causal),
    Case("fused attention", ("attention-by-hand",), by_hand),
    Case("torch's GELU", ("gelu-by-hand",), gelu),
    Case("torch's layer norm", ("norm-by-hand",), norm),
    Case("a frozen norm folded", ("affine-after-layer",), frozen),
    Case("1×1 before upsampling", ("resample-before-pointwise",), enlarged),
    Case("`enable_gqa` for repeated keys", ("repeated-keys",), grouped_keys),
    Case("permutes left out", ("cancelling-permutes",), permuted),
    Case("one cat for 31", ("grown-by-cat",), grown),
    Case("float32 for float64", ("double-precision",), double),
    Case("no cast to half and back", ("cast-round-trip",), round_trip),
    Case("no contiguous() before ReLU", ("needless-copy",), chomped),
    *(
        Case(f"batch norms folded: {name}", ("conv-bn-fusion",), folded(name))
        for name in ("resnet18", "mobilenet_v2", "shufflenet_v2_x1_0", "mnasnet1_0", "regnet_y_400mf",
                     "mobilenet_v3_small", "efficientnet_b0", "googlenet")
    ),
]  # fmt: skip
CUDA_SCALE = 8


def cases(which: str) -> list[Case]:
    if which == "first":
        return CASES
    if which == "third":
        import advice_unseen

        return advice_unseen.CASES
    import advice_models

    return advice_models.CASES


def predict(chosen: list[Case], on: str | None) -> dict[str, Any]:
    import torchgauge as tg

    found = {}
    for case in chosen:
        before, _, inputs = case.build(CUDA_SCALE if on else 1)
        settings = {"on": on} if on else {}
        analysis = tg.analyze(before.eval(), inputs=inputs, device="cpu", all_advice=True, progress=False, **settings)
        rows = [row for row in analysis.to_dict()["advice"] if row["rule"] in case.rules]
        gains = [row["expected_gain"] for row in rows]
        gains = [gain for gain in gains if gain["quantity"] == "time_s"]
        low, high = sum(gain["low"] for gain in gains), min(sum(gain["high"] for gain in gains), 1.0)
        found[case.name] = {"low": low, "high": high} if gains else None
        print(case.name, found[case.name], flush=True)
    return found


def measure(chosen: list[Case], *, cuda: bool, only: str = "") -> dict[str, Any]:
    torch.set_num_threads(1)
    device = "cuda" if cuda else "cpu"
    found = {}
    for case in chosen:
        if only not in case.name:
            continue
        before, after, inputs = case.build(CUDA_SCALE if cuda else 1)
        sides = [side.eval().to(device) for side in (before, after)]
        given = tuple(value.to(device) for value in inputs)
        try:
            with torch.inference_mode():
                found[case.name] = _ratios(sides, given, cuda=cuda)
        except Exception as error:  # one that cannot run there must not cost the others
            found[case.name] = {"error": f"{type(error).__name__}: {error}"[:200]}
        print(case.name, found[case.name], flush=True)
    return found


def _ratios(sides: list[nn.Module], given: tuple[Any, ...], *, cuda: bool) -> dict[str, float]:
    """The gain of the second side from the least time of each in turns, and its range over four rounds."""
    clock = time.perf_counter if cuda else time.thread_time
    for side in sides:
        for _ in range(3):
            side(*given)
    gains, best_of_all = [], [math.inf, math.inf]
    for _ in range(4):
        best = [math.inf, math.inf]
        end = time.perf_counter() + (0.12 if cuda else 0.5)
        turns = 0
        while time.perf_counter() < end or turns < (5 if cuda else 25):
            for at, side in enumerate(sides):
                if cuda:
                    torch.cuda.synchronize()
                begin = clock()
                side(*given)
                if cuda:
                    torch.cuda.synchronize()
                best[at] = min(best[at], clock() - begin)
            turns += 1
        gains.append(1 - best[1] / best[0])
        best_of_all = [min(pair) for pair in zip(best_of_all, best, strict=True)]
    return {
        "gain": statistics.median(gains),
        "low": min(gains),
        "high": max(gains),
        "before_s": best_of_all[0],
        "after_s": best_of_all[1],
    }


def compare(expected: dict[str, Any], measured: dict[str, Any]) -> None:
    held, widths, rows = 0, [], []
    for name, range_ in expected.items():
        real = measured.get(name)
        if range_ is None or real is None or "error" in real:
            print(f"| {name} | {'no advice' if range_ is None else 'not run'} | | |")
            continue
        low, high, gain = range_["low"], range_["high"], real["gain"]
        is_held = low - 0.005 <= gain <= high + 0.005
        held += is_held
        rows.append(name)
        widths.append(high / low if low else math.inf)
        print(
            f"| {name} | {low:.1%} to {high:.1%} | {gain:.1%} ({real['low']:.1%} to {real['high']:.1%}) | "
            f"{'yes' if is_held else 'no'} |"
        )
    print(f"\nheld {held} of {len(rows)}; median width {statistics.median(widths):.2f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("predict", "measure", "compare"))
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--set", choices=("first", "second", "third"), default="first")
    parser.add_argument("--on")
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("-o", dest="output", type=Path)
    options = parser.parse_args()
    if options.what == "compare":
        compare(*(json.loads(path.read_text(encoding="utf-8")) for path in options.files))
        return 0
    chosen = cases(options.set)
    if options.what == "predict":
        found = predict(chosen, options.on)
    else:
        found = measure(chosen, cuda=options.cuda, only=options.only)
    if options.output:
        options.output.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
