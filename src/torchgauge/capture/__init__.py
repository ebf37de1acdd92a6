"""One pass over a model: ops, modules, shapes and live memory, without its arithmetic."""

from torchgauge.capture.fake_run import FakeRun
from torchgauge.capture.isolation import undisturbed
from torchgauge.capture.paths import ModulePaths, unwrap
from torchgauge.capture.recorder import Recorder, source_text
from torchgauge.capture.run import Request, Trace, trace

__all__ = ["FakeRun", "ModulePaths", "Recorder", "Request", "Trace", "source_text", "trace", "undisturbed", "unwrap"]
