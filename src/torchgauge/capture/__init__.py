"""One pass over a model: ops, modules, shapes and live memory, without its arithmetic."""

from torchgauge.capture.fake_run import FakeRun
from torchgauge.capture.paths import ModulePaths, unwrap
from torchgauge.capture.recorder import Recorder, source_text
from torchgauge.capture.run import Request, Trace, trace
from torchgauge.capture.surroundings import undisturbed

__all__ = ["FakeRun", "ModulePaths", "Recorder", "Request", "Trace", "source_text", "trace", "undisturbed", "unwrap"]
