"""What a model needs on a device that one need not have: memory, time and energy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.lazy import lazy_names

if TYPE_CHECKING:
    from torchgauge.predict.allocator import (
        UNLIMITED,
        AllocatorSettings,
        Block,
        CachingAllocator,
        Event,
        OutOfMemory,
        replay,
        smallest_limit,
    )
    from torchgauge.predict.blocks import ATTENTION_DEFAULTS, BlockModel, attention_microseconds
    from torchgauge.predict.calibration import Layer, calibrate_kernels, only_place, open_table
    from torchgauge.predict.convolutions import Convolution, estimate, workspace
    from torchgauge.predict.coordinates import Place, locate
    from torchgauge.predict.devices import device_names, find_device, find_devices
    from torchgauge.predict.fit import CLASSES, Prediction
    from torchgauge.predict.host import CUDNN_ATTENTION, Host
    from torchgauge.predict.host_sample import HostSample, host_speed
    from torchgauge.predict.kernel_tables import (
        FOLDER,
        KernelTable,
        Rates,
        interpolate,
        load_table,
        read_table,
        write_table,
    )
    from torchgauge.predict.kernels import Library
    from torchgauge.predict.optimizers import make_optimizer
    from torchgauge.predict.steps import CudaRun, Trace
    from torchgauge.predict.tiles import DEFAULTS, Product, Tiled, TileModel, Tiling
    from torchgauge.predict.time import MEASURED, RunTime, combined_error, predict_kernel, predict_ops, profile_of
    from torchgauge.predict.trees import Grown, planted
    from torchgauge.predict.workspaces import (
        Chip,
        Recurrent,
        attention_backward_cudnn,
        attention_backward_efficient,
        embedding_backward,
        reduction,
    )

__all__ = [
    "ATTENTION_DEFAULTS",
    "CLASSES",
    "CUDNN_ATTENTION",
    "DEFAULTS",
    "FOLDER",
    "MEASURED",
    "UNLIMITED",
    "AllocatorSettings",
    "Block",
    "BlockModel",
    "CachingAllocator",
    "Chip",
    "Convolution",
    "CudaRun",
    "Event",
    "Grown",
    "Host",
    "HostSample",
    "KernelTable",
    "Layer",
    "Library",
    "OutOfMemory",
    "Place",
    "Prediction",
    "Product",
    "Rates",
    "Recurrent",
    "RunTime",
    "TileModel",
    "Tiled",
    "Tiling",
    "Trace",
    "attention_backward_cudnn",
    "attention_backward_efficient",
    "attention_microseconds",
    "calibrate_kernels",
    "combined_error",
    "device_names",
    "embedding_backward",
    "estimate",
    "find_device",
    "find_devices",
    "host_speed",
    "interpolate",
    "load_table",
    "locate",
    "make_optimizer",
    "only_place",
    "open_table",
    "planted",
    "predict_kernel",
    "predict_ops",
    "profile_of",
    "read_table",
    "reduction",
    "replay",
    "smallest_limit",
    "workspace",
    "write_table",
]  # fmt: skip

__getattr__ = lazy_names(__name__)
