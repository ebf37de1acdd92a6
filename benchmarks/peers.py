"""One adapter per tool: a model and its positional arguments -> multiply-accumulates as the tool reports them.

An adapter that is given operations instead of multiply-accumulates halves them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor, nn

Count = Callable[[nn.Module, tuple[Tensor, ...]], int]


@dataclass(frozen=True, slots=True)
class Peer:
    """`package`: what to install; `on_meta`: the tool is given the model and its inputs on the meta device."""

    name: str
    package: str
    count: Count
    on_meta: bool = False

    @property
    def version(self) -> str | None:
        """None where the package is not installed."""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return None


PEERS: dict[str, Peer] = {}


def peer(name: str, package: str, *, on_meta: bool = False) -> Callable[[Count], Count]:
    def register(count: Count) -> Count:
        if name in PEERS:
            raise ValueError(f"there is a peer '{name}' already")
        PEERS[name] = Peer(name, package, count, on_meta)
        return count

    return register


@peer("FlopCounterMode on meta", "torch", on_meta=True)
@peer("FlopCounterMode", "torch")
def flop_counter_mode(model: nn.Module, args: tuple[Tensor, ...]) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*args)
    return counter.get_total_flops() // 2


@peer("torch.profiler", "torch")
def torch_profiler(model: nn.Module, args: tuple[Tensor, ...]) -> int:
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, with_flops=True) as profile, torch.no_grad():
        model(*args)
    return sum(event.flops for event in profile.key_averages()) // 2


@peer("torchinfo", "torchinfo")
def torchinfo(model: nn.Module, args: tuple[Tensor, ...]) -> int:
    from torchinfo import summary

    return int(summary(model, input_data=args, verbose=0).total_mult_adds)


@peer("fvcore", "fvcore")
def fvcore(model: nn.Module, args: tuple[Tensor, ...]) -> int:
    from fvcore.nn import FlopCountAnalysis

    analysis = FlopCountAnalysis(model, args).unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    return int(analysis.total())


def _ptflops(model: nn.Module, args: tuple[Tensor, ...], backend: str) -> int:
    from ptflops import get_model_complexity_info

    macs, _ = get_model_complexity_info(
        model,
        tuple(args[0].shape[1:]),
        input_constructor=lambda _: args[0],
        as_strings=False,
        print_per_layer_stat=False,
        verbose=False,
        backend=backend,
    )
    if macs is None:
        raise RuntimeError("ptflops gave no count")
    return int(macs)


@peer("ptflops (pytorch)", "ptflops")
def ptflops_modules(model: nn.Module, args: tuple[Tensor, ...]) -> int:
    return _ptflops(model, args, "pytorch")


@peer("ptflops (aten)", "ptflops")
def ptflops_aten(model: nn.Module, args: tuple[Tensor, ...]) -> int:
    return _ptflops(model, args, "aten")


@peer("ultralytics-thop", "ultralytics-thop")
def thop(model: nn.Module, args: tuple[Tensor, ...]) -> int:
    from thop import profile

    macs: Any = profile(model, inputs=args, verbose=False)[0]
    return int(macs)


@peer("torchprofile", "torchprofile")
def torchprofile(model: nn.Module, args: tuple[Tensor, ...]) -> int:
    from torchprofile import profile_macs

    return int(profile_macs(model, args))


@peer("calflops", "calflops")
def calflops(model: nn.Module, args: tuple[Tensor, ...]) -> int:
    from calflops import calculate_flops

    _, macs, _ = calculate_flops(model, args=list(args), print_results=False, output_as_string=False)
    return int(macs)


@peer("deepspeed", "deepspeed")
def deepspeed(model: nn.Module, args: tuple[Tensor, ...]) -> int:
    from deepspeed.profiling.flops_profiler import get_model_profile

    # Without the warm-up run that it does by default.
    _, macs, _ = get_model_profile(model, args=list(args), print_profile=False, warm_up=0, as_string=False)
    return int(macs)


@peer("moduleprofiler", "moduleprofiler")
def moduleprofiler(model: nn.Module, args: tuple[Tensor, ...]) -> int:
    from moduleprofiler import ModuleProfiler

    with torch.no_grad():
        rows = ModuleProfiler().estimate_ops(model, args[0])
    return sum(row["ops"] or 0 for row in rows.values()) // 2


@peer("torchlens", "torchlens")
def torchlens(model: nn.Module, args: tuple[Tensor, ...]) -> int:
    from torchlens import trace

    with torch.no_grad():
        return int(trace(model, args).total_macs_forward)
