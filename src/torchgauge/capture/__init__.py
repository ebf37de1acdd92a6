"""One pass over a model: ops, modules, shapes and live memory, without its arithmetic."""

from torchgauge.capture.fake_run import FakeRun
from torchgauge.capture.paths import ModulePaths, unwrap
from torchgauge.capture.recorder import Recorder, imported_module, source_line, source_text
from torchgauge.capture.restored_state import SETTINGS, nesting, undisturbed
from torchgauge.capture.run import Request, Trace, observed, trace, trace_fake, trace_real
from torchgauge.capture.supported import death_text, missing_arithmetic, unsupported

__all__ = [
    "SETTINGS", "FakeRun", "ModulePaths", "Recorder", "Request", "Trace", "death_text", "imported_module",
    "missing_arithmetic", "nesting", "observed", "source_line", "source_text", "trace", "trace_fake", "trace_real",
    "undisturbed", "unsupported", "unwrap",
]  # fmt: skip
