"""Models as `torch.compile` runs them: Dynamo's graphs and breaks, Inductor's kernels, the modules they serve."""

from torchgauge.measure.compiled.inductor import Options, is_compiled, root_options
from torchgauge.measure.compiled.run import compile_model, require_code
from torchgauge.measure.compiled.timing import CompiledRuns, with_times

__all__ = [
    "CompiledRuns", "Options", "compile_model", "is_compiled", "require_code", "root_options", "with_times",
]  # fmt: skip
