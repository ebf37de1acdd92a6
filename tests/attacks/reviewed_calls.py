"""Every call that `calls_by_name` finds, and why it is harmless. A new call fails the test until it is added here.

To review a call, ask whether the text can come from a file and what guards it. `docs/security.md` lists the guards.
"""

from __future__ import annotations

OWN = "the text is written in torchgauge, or looked up in its own table"
DATACLASS = "the names of a dataclass's own fields"
LIVE = "the user's own objects, in the user's own process: no file"
USER = "the user gave it: a path, a package, an option"
LIBRARY = "names and patterns of an installed library"
REGISTRY = "torch's registry of operators gave the name: a file's text is only looked up in it"
LISTED = "only names that transformers itself lists"
PLAIN_NAME = "a name in a file must be a plain file name in its folder (`is_file_name`)"
ARCHIVE = "torch's reader of archives lists and reads records; it executes nothing"
SCANNED = "after the code, the pickles and the graphs of the archive were found harmless"
PATHS = "of a model's modules: torch looks for attributes of a path that are modules, and raises for all others"
LITERALS = "torchgauge's own statements; they contain names of a live model as literals, never those of a file's model"
CHECKED = "from the sandboxed process: in a set of names, or one of the writable paths"
PARENT = "from the parent process, which made it"
ESCAPED = "a name of a model, escaped, in a pattern of torchgauge's own"
ASKED = "only with --allow-pickle, after what it runs was printed"

REVIEWED: dict[str, dict[str, str]] = {
    "advise/registry.py": {
        "import_module(TEXT)": OWN,
    },
    "advise/rules/pooling.py": {
        "_ROWS_FIRST.format(layer)": OWN,
    },
    "analysis/advice.py": {
        "getattr(module, attribute)": OWN,
        "hasattr(module, attribute)": OWN,
        "self._model.get_submodule(path)": PATHS,
        "self._model.get_buffer(name)": PATHS,
        "self._model.get_parameter(a)": PATHS,
        "self._model.get_parameter(b)": PATHS,
        "getattr(kind, name)": OWN,
        "getattr(nn.Module, name)": OWN,
        "re.compile(TEXT)": ESCAPED,
    },
    "analysis/fitting.py": {
        "getattr(config, name, None)": OWN,
    },
    "analysis/isolated.py": {
        "importlib.import_module(TEXT)": OWN,
        "importlib.import_module(module.name)": OWN,
    },
    "analysis/language.py": {
        "getattr(self, item.name)": DATACLASS,
        "getattr(self, name)": OWN,
    },
    "analysis/methods.py": {
        "getattr(around, block, ())": OWN,
        "hasattr(nn.Module, path[0])": LIVE,
    },
    "analysis/runs.py": {
        "getattr(torch, _AMP[asked])": OWN,
    },
    "capture/copier.py": {
        "type(kind.__name__, (kind,), harmless)": LIVE,
    },
    "capture/failures.py": {
        "getattr(module, attribute, None)": OWN,
    },
    "capture/fake_run.py": {
        "getattr(tensor, name)": LIVE,
        "torch.ops.aten.clone.default": OWN,
        "torch.ops.aten.lift_fresh.default": OWN,
        "torch.ops.aten.mkldnn_rnn_layer_backward.default": OWN,
        "getattr(module, kind)": OWN,
    },
    "capture/restored_state.py": {
        "getattr(flex, name, False)": OWN,
        "setattr(flex, name, True)": OWN,
        "getattr(table, getter)": OWN,
        "getattr(table, setter)": OWN,
        "hasattr(table, getter)": OWN,
        "hasattr(table, setter)": OWN,
    },
    "capture/leftovers.py": {
        "getattr(function, name)": LIVE,
        "hasattr(value, slot.__name__)": LIVE,
    },
    "capture/patched_functions.py": {
        "getattr(owner, name)": OWN,
        "setattr(owner, name, giving(original, place))": OWN,
        "torch.ops": OWN,
        "setattr(module, loader, lambda ops=ops: ops)": OWN,
        "hasattr(module, loader)": OWN,
        "getattr(torch.ops, namespace)": OWN,
        "getattr(module, loader)": OWN,
        "getattr(getattr(torch.ops, namespace), schema.partition('(')[0])": OWN,
        "getattr(place, name)": OWN,
        "getattr(kind, name)": OWN,
        "setattr(kind, _PRINTS, printed(vars(kind)[_PRINTS]))": OWN,
        "setattr(place, name, guarded(name, getattr(place, name)))": OWN,
        "setattr(kind, name, noted(name, getattr(kind, name)))": OWN,
    },
    "capture/plan.py": {
        "getattr(torch, spec.dtype)": OWN,
    },
    "capture/quantized.py": {
        "getattr(module, name, None)": OWN,
        "getattr(member.module, name, None)": OWN,
        "getattr(tensor, name)": LIBRARY,
    },
    "capture/recorder.py": {
        "getattr(value, f.name, None)": DATACLASS,
        "Path(file)": OWN,
        "Path(str(package.__file__))": OWN,
        "Path(os.__file__)": OWN,
        # Only files that this process ran or imported.
        "Path(files[0])": LIVE,
        "open(files[0], 'rb')": LIVE,
        "open(files[0], encoding=encoding, newline='')": LIVE,
    },
    "capture/script/operators.py": {
        "getattr(torch, name)": OWN,
        "hasattr(torch, name)": OWN,
        "torch._C.parse_schema": REGISTRY,
        "torch.ops.aten": OWN,
    },
    "capture/supported.py": {
        "_PROBE.format(name=name)": OWN,
        "subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False, env=variable": OWN,
    },
    "capture/triton_kernels.py": {
        "getattr(sys.modules.get(module), name, None)": OWN,
    },
    "capture/values.py": {
        "_OPTIMIZER_SCALAR.format(op=name)": OWN,
        "torch.ops.aten.index.Tensor": OWN,
    },
    "checkpoint/byte_source.py": {
        "open(path, 'rb')": PLAIN_NAME,
    },
    "checkpoint/entries.py": {
        "open(entry.file, 'rb')": PLAIN_NAME,
    },
    "checkpoint/folders/listing.py": {
        "os.listdir(folder)": USER,
    },
    "checkpoint/folders/ranked.py": {
        "form.format(name)": PLAIN_NAME,
        "os.listdir(folder)": USER,
        "re.compile(TEXT)": OWN,
        "re.compile(_RANK)": OWN,
    },
    "checkpoint/folders/sharded.py": {
        "os.listdir(folder)": USER,
    },
    "checkpoint/folders/side_files.py": {
        "re.compile('|'.join((mark.pattern for mark in _MARKS.values())))": OWN,
        "os.listdir(folder)": USER,
    },
    "checkpoint/pickle/machine.py": {
        "re.compile(_GET + b'\\\\(\\\\(' + _GET + _GET + b'X(.)\\\\0\\\\0\\\\0(\\\\d{1,9})' + _PUT + _GET + b'(": OWN,
    },
    "checkpoint/signatures.py": {
        "os.listdir(folder)": USER,
    },
    "checkpoint/training.py": {
        "getattr(merged, name)": OWN,
        "getattr(record, name)": OWN,
    },
    "cli/check.py": {
        "getattr(args, key)": OWN,
    },
    "cli/main.py": {
        "getattr(sys, name)": OWN,
        "setattr(sys, name, open(os.devnull, mode, encoding='utf-8'))": OWN,
    },
    "compat/fvcore/nn/jit_analysis.py": {
        "getattr(self, name)": LIVE,
        "setattr(other, name, copy(getattr(self, name)))": LIVE,
        "setattr(other, name, getattr(self, name))": LIVE,
    },
    "compat/fvcore/nn/jit_handles.py": {
        "getattr(torch.ops.aten, op.removeprefix('aten::'))": LIVE,
        "torch.ops.aten": LIVE,
    },
    "compat/moduleprofiler/profiler.py": {
        "getattr(self, name)": OWN,
        "hasattr(member, name)": LIVE,
    },
    "compat/torchinfo/layer_info.py": {
        "getattr(mask, part, None)": LIVE,
    },
    "compat/torchstat/reporter.py": {
        "setattr(total, name, sum((getattr(node, name) for node in collected_nodes)))": OWN,
        "getattr(node, name)": LIVE,
    },
    "compat/torchstat/stat_tree.py": {
        "getattr(child, self.name)": LIVE,
        "getattr(node, self.own, 0)": LIVE,
        "setattr(node, self.own, value)": LIVE,
    },
    "energy/apple.py": {
        "re.search(TEXT, text, re.MULTILINE)": OWN,
        "subprocess.run(_COMMAND, capture_output=True, text=True, check=True, timeout=10)": OWN,
    },
    "facts/predictions.py": {
        "getattr(facts, item.name)": DATACLASS,
    },
    "facts/schema.py": {
        "getattr(value, item.name)": DATACLASS,
    },
    "facts/view.py": {
        "getattr(trace, name)": OWN,
    },
    "hardware/machine.py": {
        "subprocess.run(command, capture_output=True, text=True, timeout=2, check=False)": OWN,
    },
    "integrations/lightning.py": {
        "find_spec(name.partition('.')[0])": OWN,
        "import_module(name)": OWN,
    },
    "isolation/__main__.py": {
        "pickle.loads(work.payload)": PARENT,
    },
    "isolation/limits.py": {
        "Path(TEXT)": OWN,
        "Path(path)": USER,
        "os.open(file, os.O_RDONLY)": USER,
    },
    "isolation/process.py": {
        "Path(path)": USER,
        "getattr(errors, facts['type'], TorchgaugeError)": CHECKED,
        "os.fork()": OWN,
        "setattr(error, name, value)": CHECKED,
        "subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables, st": OWN,
    },
    "isolation/reader.py": {
        "os.listdir(listing)": OWN,
        "os.open(os.devnull, os.O_RDWR)": OWN,
    },
    "isolation/rights.py": {
        "ctypes.CDLL(None, use_errno=True)": OWN,
        "os.open(place, os.O_PATH | os.O_CLOEXEC)": OWN,
    },
    "measure/calibrate.py": {
        "subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, en": OWN,
    },
    "measure/compiled/inductor.py": {
        "hasattr(convert_frame, guards)": OWN,
        "fx.GraphModule": LIBRARY,
        "subprocess.run([get_cpp_compiler(), '--version'], capture_output=True, check=True)": USER,
    },
    "measure/nvml.py": {
        "ctypes.CDLL('nvml.dll' if sys.platform == 'win32' else 'libnvidia-ml.so.1')": OWN,
        "getattr(self._library, function, None)": OWN,
    },
    "measure/perf_events.py": {
        "ctypes.CDLL(None, use_errno=True)": OWN,
    },
    "measure/rates.py": {
        "getattr(torch, dtype)": OWN,
    },
    "nested.py": {
        "getattr(old, field.name)": DATACLASS,
        "getattr(value, field.name, None)": DATACLASS,
        "hasattr(old, field.name)": DATACLASS,
    },
    "predict/fit.py": {
        "getattr(replay, name)": OWN,
    },
    "predict/kernels.py": {
        "torch.ops.aten._cudnn_rnn": OWN,
        "torch.ops.aten._fused_rms_norm.default": OWN,
        "torch.ops.aten._fused_rms_norm_backward.default": OWN,
        "torch.ops.aten._log_softmax": OWN,
        "torch.ops.aten._safe_softmax": OWN,
        "torch.ops.aten._softmax": OWN,
        "torch.ops.aten._thnn_fused_gru_cell": OWN,
        "torch.ops.aten._thnn_fused_lstm_cell": OWN,
    },
    "predict/language/answers.py": {
        "whole.get_submodule(inside)": PATHS,
        "getattr(cost, name)": OWN,
    },
    "predict/language/costs.py": {
        "getattr(cost, name)": OWN,
    },
    "predict/language/folding.py": {
        "replica.get_submodule(layer.path)": PATHS,
    },
    "predict/steps.py": {
        "torch.ops.aten": OWN,
        "model.get_submodule(parent)": PATHS,
        "setattr(model.get_submodule(parent), name, _Adapted(module, rank))": PATHS,
        "setattr(model.get_submodule(parent), name, _Stored(layer, bits))": PATHS,
    },
    "registry.py": {
        "getattr(importlib.import_module(home), name)": OWN,
        "importlib.import_module(home)": OWN,
        "setattr(sys.modules[package], name, value)": OWN,
    },
    "report/budgets/verdicts.py": {
        "getattr(step, _OF_STEP[key])": OWN,
    },
    "report/comparison/readings.py": {
        "time_key.format(device)": OWN,
    },
    "report/content/__init__.py": {
        "import_module(TEXT)": OWN,
    },
    "report/escape.py": {
        "re.compile(TEXT)": OWN,
    },
    "report/fit.py": {
        "getattr(row, key)": OWN,
    },
    "report/formats/latex.py": {
        "note.format(format_exact(len(b.rows)))": OWN,
        "_PREAMBLE.format(version=escape_latex(view.capture.version))": OWN,
        "re.split(TEXT, text)": OWN,
    },
    "report/registry.py": {
        "getattr(import_module(TEXT), function)": OWN,
        "import_module(TEXT)": OWN,
    },
    "source/allowed_ops.py": {
        "getattr(getattr(getattr(torch.ops, namespace), name, None), overload, None)": REGISTRY,
        "getattr(getattr(torch.ops, namespace), name, None)": REGISTRY,
        "getattr(torch.ops, namespace)": REGISTRY,
        "torch._C._jit_get_all_schemas": REGISTRY,
        "torch._C._jit_get_schemas_for_operator": REGISTRY,
        "torch.ops": REGISTRY,
    },
    "source/architecture/evidence.py": {
        "re.compile(pattern)": OWN,
    },
    "source/attributes.py": {
        "getattr(holder, name, default)": OWN,
    },
    "source/archive_records.py": {
        "torch._C.PyTorchFileReader": ARCHIVE,
    },
    "source/candidate.py": {
        "getattr(module, name)": OWN,
    },
    "source/exported/document.py": {
        "Path(name)": USER,
        "getattr(torch, EXPORT_SCALARS[number])": OWN,
    },
    "source/exported/live.py": {
        "getattr(module, str(value.target))": LIVE,
    },
    "source/exported/plain_program.py": {
        "fx.GraphModule": LIVE,
    },
    "source/exported/program.py": {
        "getattr(operator, name)": OWN,
        "getattr(packet, overload)": OWN,
        "getattr(torch.ops.aten, name, None)": OWN,
        "torch.ops.aten": OWN,
    },
    "source/files.py": {
        "getattr(torch, elements.most_common(1)[0][0])": OWN,
        "torch.load(index.path, map_location='cpu', weights_only=False)": ASKED,
    },
    "source/first_layer.py": {
        "getattr(layer, rule.attribute)": OWN,
        "getattr(self.layer, self.rule.attribute)": OWN,
        "rule.says.format(getattr(layer, rule.attribute))": OWN,
        "self.rule.says.format(getattr(self.layer, self.rule.attribute))": OWN,
    },
    "source/gguf_model.py": {
        "getattr(self, TEXT)": OWN,
        "getattr(self, name)": OWN,
        "setattr(self, name, _linear(shapes, name))": OWN,
        "setattr(self, name, _norm(shapes, name))": OWN,
        "setattr(self, name, nn.ParameterDict({key.rpartition('.')[2]: nn.Parameter(torch.empty(sha": OWN,
    },
    "source/huggingface.py": {
        "Path(entry)": USER,
        "getattr(transformers, name, None)": LISTED,
    },
    "source/huggingface_inputs.py": {
        "getattr(config, name, None)": OWN,
    },
    "source/identify/outline.py": {
        "re.compile('|'.join(getattr(model, '_keys_to_ignore_on_save', None) or ('^$',)))": LIBRARY,
    },
    "source/identify/registry.py": {
        "model.get_submodule(path)": PATHS,
        "model.set_submodule(path, nn.Identity())": PATHS,
    },
    "source/identify/search.py": {
        "Path(file)": LIBRARY,
    },
    "source/identify/settings.py": {
        "getattr(config, name, None)": LIBRARY,
        "getattr(config, str(name))": LIBRARY,
        "getattr(config_class, key, None)": LIBRARY,
        "hasattr(default, key)": LIBRARY,
    },
    "source/identify/transformers.py": {
        "Path(str(import_module('transformers.models').__file__))": LIBRARY,
        "Path(str(models.__file__))": LIBRARY,
        "re.compile('|'.join(patterns))": LIBRARY,
    },
    "source/identify/trials.py": {
        "getattr(config, name)": LIBRARY,
        "getattr(config, name, None)": LIBRARY,
        "setattr(config, name, [value[index % len(value)] for index in range(depth)])": LIBRARY,
        "setattr(config, name, value)": LIBRARY,
        "setattr(config, name, words - 1)": LIBRARY,
    },
    "source/modules.py": {
        "hasattr(module, name)": OWN,
        "hasattr(type(module), name)": OWN,
    },
    "source/packages.py": {
        "import_module(package)": OWN,
        "Path(spec.origin)": LIBRARY,
        "PathFinder.find_spec(fullname, path)": LIBRARY,
        "torch.ops.load_library": LIBRARY,
        "torch.ops.torchvision": LIBRARY,
    },
    "source/offline.py": {
        "delattr(socket.socket, name)": OWN,
        "getattr(socket.socket, name)": OWN,
        "setattr(socket.socket, name, refusing(getattr(socket.socket, name), _connected))": OWN,
    },
    "source/process_state.py": {
        "Path(frame.f_code.co_filename)": LIVE,
        "PathFinder.find_spec(fullname, [str(self._folder)])": USER,
        "getattr(place, name)": OWN,
        "setattr(place, name, call)": OWN,
        "setattr(place, name, original)": OWN,
        "delattr(place, name)": OWN,
    },
    "source/python_code.py": {
        "Path(getattr(sys.modules[name], '__file__', None) or '')": USER,
        "getattr(found, part)": USER,
        "hasattr(found, part)": USER,
        "import_module(module)": USER,
        "importlib.util.module_from_spec(spec)": USER,
        "importlib.util.spec_from_file_location(name, path, loader=_FromSource(name, str(path)))": USER,
    },
    "source/real_model.py": {
        "Path(file)": PLAIN_NAME,
    },
    "source/source.py": {
        "Path(index.path)": USER,
    },
    "source/target.py": {
        "Path(path)": USER,
        "Path(in_file[0])": USER,
        "Path(text)": USER,
    },
    "source/target_check.py": {
        "open(path, 'rb')": USER,
        "Path(text)": USER,
        "Path(text.replace('.', '/') + '.py')": USER,
    },
    "source/torchscript/archive.py": {
        "open(name, 'rb')": USER,
        "torch._C.PyTorchFileReader": SCANNED,
    },
    "source/torchscript/graphs.py": {
        "torch._C._jit_pass_inline": SCANNED,
    },
    "source/user_inputs.py": {
        "getattr(torch, _SHORT_NAMES.get(name, name), None)": OWN,
    },
    "verify/bench.py": {
        "getattr(tensor, name, None)": OWN,
        "type(kind.__name__, kind.__bases__, dict(kind.__dict__))": LIVE,
    },
    "verify/check.py": {
        "getattr(traced, name)": OWN,
    },
    "verify/code.py": {
        "compile(text, '<optimise>', 'exec')": LITERALS,
        "exec(compile(text, '<optimise>', 'exec'), scope)": LITERALS,
    },
    "verify/edits.py": {
        "compile(text, path, 'exec', dont_inherit=True)": LIVE,
    },
    "verify/registry.py": {
        "import_module(TEXT)": OWN,
        "self.model.get_submodule(path or '')": PATHS,
    },
    "verify/second_process.py": {
        "torch.load(Path(folder, 'order'), weights_only=False)": PARENT,
        "subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subpro": OWN,
    },
    "verify/transformations/structure.py": {
        "trial.model.get_submodule(path)": PATHS,
    },
    "verify/transformations/weights.py": {
        "getattr(torch, kinds[name])": LITERALS,
        "text.format(layers=literal(some))": LITERALS,
        "model.get_submodule(path)": PATHS,
        "getattr(model.get_submodule(path), name)": PATHS,
        "hasattr(trial.module(entry[0]), entry[1])": LITERALS,
        "_TWO_FOUR.format(layers=literal(layers))": LITERALS,
    },
    "weights/kernels/jit.py": {
        "getattr(self._cache, name)": OWN,
    },
    "weights/kernels/numba_settings.py": {
        "Path(named, subfolder)": USER,
        "Path(py_file)": OWN,
        "PathFinder.find_spec(fullname, path)": OWN,
    },
    "weights/packings/words.py": {
        "open(os.path.join(folder, name), 'rb')": USER,
    },
    "weights/reader.py": {
        "getattr(os, name, None)": OWN,
    },
    "weights/tally.py": {
        "getattr(tally, field.name)": DATACLASS,
    },
    "weights/threads.py": {
        "Path(np.__file__)": LIBRARY,
        "ctypes.CDLL(str(file))": LIBRARY,
        "getattr(library, TEXT, None)": LIBRARY,
    },
    "weights/unix_sockets.py": {
        "os.unlink(socket_file(self._location))": OWN,
    },
}
