"""Targets in Python code: `path/to/file.py:Name` and `package.module:Name`."""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from torch import nn

from torchgauge.errors import TargetError, UsageError
from torchgauge.source.packages import torchvision_importable
from torchgauge.source.process_state import arguments_of, importable, rng_untouched
from torchgauge.source.target_check import did_you_mean

_serial = itertools.count()
# Modules that file targets imported from their own folders: name -> folder.
_neighbours: dict[str, Path] = {}


def build_from_file(path: Path, name: str) -> nn.Module:
    """The model `name` of a Python file."""
    with _loaded(path) as module:
        return _build(module, name, str(path))


def build_only_model(path: Path) -> tuple[str, nn.Module]:
    """The only model of a Python file, and its name; if there are several, the error lists them."""
    with _loaded(path) as module:
        own = {name: value for name, value in vars(module).items() if not name.startswith("_")}
        here = {name: value for name, value in own.items() if getattr(value, "__module__", None) == module.__name__}
        classes = [name for name, value in here.items() if isinstance(value, type) and issubclass(value, nn.Module)]
        instances = [name for name, value in own.items() if isinstance(value, nn.Module)]
        # If the file builds an instance itself, a class that needs arguments is not a candidate.
        built = [name for name in instances if len(classes) < 2 and all(map(_needed_arguments, map(own.get, classes)))]
        chosen = built if len(built) == 1 else classes
        if len(chosen) == 1:
            return chosen[0], _build(module, chosen[0], str(path))
        if not classes and not instances:
            functions = [name for name, value in here.items() if inspect.isfunction(value)]
            hint = f": give the function that builds it, such as {path}:{functions[0]}" if functions else ""
            raise TargetError(f"'{path}' defines no torch.nn.Module{hint}")
        listed = [
            f"  {path}:{name}{f' (needs arguments: {needed})' if needed else ''}"
            for name in (*classes, *instances)
            for needed in [", ".join(_needed_arguments(own[name])) if name in classes else ""]
        ]
        raise UsageError(f"'{path}' defines several models; give one of them:", *listed)


class _FromSource(SourceFileLoader):
    """What runs is the text of the file, as for a script: a `__pycache__` that came with it could hold other code."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


@contextmanager
def _loaded(path: Path) -> Iterator[ModuleType]:
    """The module of a Python file. Its folder is importable while it is loaded and built, as for a script."""
    path = path.absolute()
    if not path.is_file():
        names = [entry.name for entry in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise TargetError(f"there is no file '{path}'.{did_you_mean(path.name, names)}")
    # Two projects may both have a `layers.py`; each target imports its own.
    for name in [name for name, home in _neighbours.items() if home != path.parent]:
        sys.modules.pop(name, None)
        del _neighbours[name]
    known = set(sys.modules)
    with importable(path.parent), torchvision_importable(), rng_untouched():
        try:
            name = f"torchgauge_target_{next(_serial)}_{re.sub(r'[^0-9a-zA-Z_]', '_', path.stem)}"
            spec = importlib.util.spec_from_file_location(name, path, loader=_FromSource(name, str(path)))
            if spec is None or spec.loader is None:
                raise TargetError(f"'{path}' cannot be loaded as Python")
            module = importlib.util.module_from_spec(spec)
            # Dataclasses and pickles look their module up by name.
            sys.modules[name] = module
            try:
                with arguments_of(path):
                    spec.loader.exec_module(module)
            # User code: it may raise anything, and a script without a main guard may exit.
            except (Exception, SystemExit) as error:
                del sys.modules[name]
                raise _failed(f"'{path}' failed while it was loaded", error, path) from error
            yield module
        finally:
            for name in set(sys.modules) - known:
                file = Path(getattr(sys.modules[name], "__file__", None) or "")
                is_near = file.is_relative_to(path.parent) and not name.startswith("torchgauge_target_")
                # A virtual environment inside the project holds installed packages, not neighbours.
                if is_near and "site-packages" not in file.relative_to(path.parent).parts:
                    _neighbours[name] = path.parent


def build_from_module(module: str, name: str) -> nn.Module:
    """The model `name` of an importable module; the current directory is importable, as for `python -m`."""
    with importable(Path.cwd(), module.partition(".")[0]), torchvision_importable(), rng_untouched():
        try:
            imported = import_module(module)
        except (Exception, SystemExit) as error:
            if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
                known = {*sys.stdlib_module_names, *(entry.stem for entry in Path.cwd().glob("*.py"))}
                raise TargetError(
                    f"there is no module '{error.name}' here or among the installed packages."
                    f"{did_you_mean(error.name, known)}"
                ) from error
            raise _failed(f"the module '{module}' failed while it was imported", error) from error
        return _build(imported, name, module)


def _build(module: ModuleType, name: str, place: str) -> nn.Module:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [public for public in vars(found) if not public.startswith("_")]
            raise TargetError(f"there is no '{part}' in '{place}'.{did_you_mean(part, known)}")
        found = getattr(found, part)
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        raise TargetError(
            f"'{name}' in '{place}' is of type {type(found).__name__}: neither a model nor code that builds one"
        )
    needed = _needed_arguments(found)
    if needed:
        listed = ", ".join(needed)
        raise TargetError(
            f"'{name}' in '{place}' needs arguments ({listed}): write a function without arguments that builds it, "
            f"like `def build(): return {name}({', '.join(f'{argument}=…' for argument in needed)})`, and give that"
        )
    try:
        model = found()
    except (Exception, SystemExit) as error:
        raise _failed(f"'{name}' in '{place}' failed while it built the model", error, module.__file__) from error
    if isinstance(model, nn.Module) and "_modules" not in vars(model):
        raise TargetError(f"'{name}' in '{place}': {_NO_SUPER}")
    if not isinstance(model, nn.Module):
        raise TargetError(
            f"'{name}' in '{place}' returned an object of type {type(model).__name__}, not a torch.nn.Module"
        )
    return model


def _needed_arguments(found: Any) -> list[str]:
    try:
        parameters = inspect.signature(found).parameters.values()
    except ValueError:  # built-in callables have no signature
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]


_NO_SUPER = "__init__() must call super().__init__() before it sets attributes"


def _failed(what: str, error: BaseException, path: str | Path | None = None) -> TargetError:
    text = str(error).strip()
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if path and frame.filename == str(path)]
    where = f" (line {lines[-1]})" if lines else ""
    if isinstance(error, SystemExit) and any(frame.filename.endswith("argparse.py") for frame in frames):
        return TargetError(
            f"{what}{where}: it parses the command line of a script. Move that below "
            '`if __name__ == "__main__":`, so that the model can be imported'
        )
    if "before Module.__init__() call" in text:
        return TargetError(f"{what}{where}: {_NO_SUPER}")
    message = f"{what}{where}: {type(error).__name__}{f': {text}' if text else ''}"
    if isinstance(error, ImportError) and "relative import" in text:
        message += (
            ". It is part of a package: give it as package.module:Name, from the folder that contains the package"
        )
    return TargetError(message)
