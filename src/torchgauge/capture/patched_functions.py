"""Functions of torch that read values without passing a dispatch mode, patched during a run.

`torch.tensor([a, b])` of fake tensors reads their memory; `one_hot` of them skips the checks that it makes for
other tensors.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache, reduce
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from torchgauge.capture.argument_checks import check_classes
from torchgauge.capture.copier import Code
from torchgauge.capture.fake_tensor import FakeTensor
from torchgauge.capture.values import is_known
from torchgauge.nested import leaves

_MAKERS: tuple[tuple[Any, str, int], ...] = (
    (torch, "tensor", 0),
    (torch, "as_tensor", 0),
    (torch, "asarray", 0),
    (torch.Tensor, "new_tensor", 1),
)


_one_hot = torch.nn.functional.one_hot


@contextmanager
def elements_given(
    code: Iterable[Code] = (), note: Callable[[str, torch.Tensor], None] = lambda *_: None
) -> Iterator[None]:
    """In this thread, tensor factories accept lists with fake tensors; where the content of one is not known, that of
    the result is not known either. `note` receives the tensors in such lists, whose values go through the host.
    Wherever the `code` of the model has `one_hot`, it refuses unfit classes."""
    thread = threading.get_ident()

    def dtype_of(leaf: object) -> torch.dtype:
        if isinstance(leaf, torch.Tensor):
            return leaf.dtype
        is_int = isinstance(leaf, int)
        return torch.bool if isinstance(leaf, bool) else torch.int64 if is_int else torch.get_default_dtype()

    def one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
        if type(tensor) is FakeTensor and threading.get_ident() == thread:
            check_classes(tensor, num_classes)
        return _one_hot(tensor, num_classes)

    def giving(original: Callable[..., torch.Tensor], place: int) -> Callable[..., torch.Tensor]:
        def make(*args: object, **kwargs: object) -> torch.Tensor:
            data = args[place] if len(args) > place else None
            numbers = list(leaves(data)) if isinstance(data, list | tuple) else []
            tensors = [leaf for leaf in numbers if isinstance(leaf, torch.Tensor)]
            if not tensors or threading.get_ident() != thread:
                return original(*args, **kwargs)
            for tensor in tensors:
                note("tensor", tensor)
            fakes = [leaf for leaf in tensors if type(leaf) is FakeTensor]
            if not fakes:
                return original(*args, **kwargs)
            if kwargs.get("dtype") is None and place == 0:
                kwargs["dtype"] = reduce(torch.promote_types, map(dtype_of, numbers))
            made = original(*args[:place], _numbers(data), *args[place + 1 :], **kwargs)
            if not all(map(is_known, fakes)):
                made.value = None  # type: ignore[attr-defined]
            return made

        return make

    with ExitStack() as stack:
        for owner, name, place in _MAKERS:
            original = getattr(owner, name)
            if name in vars(owner):
                stack.callback(setattr, owner, name, original)
            else:
                stack.callback(delattr, owner, name)
            setattr(owner, name, giving(original, place))
        # The modules of Python that define the model's classes, torch's own left out.
        homes = {each.__module__ for each in code if isinstance(each, type)}
        defining = [sys.modules[home] for home in homes if not home.startswith("torch.") and home in sys.modules]
        for names in (vars(torch._C._nn), vars(torch.nn.functional), *map(vars, defining)):
            for name in [name for name, value in names.items() if value is _one_hot]:
                stack.callback(names.__setitem__, name, _one_hot)
                names[name] = one_hot
        yield


def _numbers(data: object) -> object:
    if isinstance(data, list | tuple):
        return [_numbers(item) for item in data]
    if type(data) is not FakeTensor:
        return data
    with _disable_current_modes():  # not an op of the model, nor a call of its code
        content = data.value if is_known(data) else None
        return torch._C.TensorBase.tolist(torch.zeros(data.shape) if content is None else content)


# Kernels of the Hugging Face hub that a layer loads in its forward: on fake tensors they are ops with the schema of
# their entry points, so that nothing is downloaded and no GPU is needed.

# Function of a module that loads the kernel (transformers 5.22), namespace of the ops, and for each attribute of what
# the function returns the schema of its op. Cost and shapes are in `cost/hub_kernels.py`.
_LOADERS: tuple[tuple[str, str, str, Mapping[str, str]], ...] = (
    (
        "transformers.integrations.finegrained_fp8",
        "load_finegrained_fp8_kernel",
        "finegrained_fp8",
        {
            "matmul": "matmul_2d(Tensor A, Tensor B, Tensor Bs, int[]? block_size, ScalarType? output_dtype=None, "
            "Tensor? activation_scale=None) -> Tensor",
            "batched_matmul": "matmul_batched(Tensor A, Tensor B, Tensor Bs, Tensor expert_ids, int[]? block_size, "
            "ScalarType? output_dtype=None) -> Tensor",
            "grouped_matmul": "matmul_grouped(Tensor A, Tensor B, Tensor Bs, Tensor offsets, "
            "Tensor tokens_per_expert, int[]? block_size, ScalarType? output_dtype=None) -> Tensor",
        },
    ),
)
_libraries: list[torch.library.Library] = []  # their ops go when they go


@contextmanager
def hub_functions_given() -> Iterator[None]:
    """Replace the loaders in modules that are loaded: no others can ask for a kernel."""
    with ExitStack() as stack:
        for module_name, loader, namespace, schemas in _LOADERS:
            module: Any = sys.modules.get(module_name)
            if hasattr(module, loader):
                stack.callback(setattr, module, loader, getattr(module, loader))
                ops = _define(namespace, tuple(schemas.items()))
                setattr(module, loader, lambda ops=ops: ops)
        yield


@cache
def _define(namespace: str, schemas: tuple[tuple[str, str], ...]) -> SimpleNamespace:
    library = torch.library.Library(namespace, "FRAGMENT")
    _libraries.append(library)
    ops = {}
    for attribute, schema in schemas:
        library.define(schema)
        ops[attribute] = getattr(getattr(torch.ops, namespace), schema.partition("(")[0])
    return SimpleNamespace(**ops)


# Ways from a tensor to its memory around the dispatcher: no run sees `weight.data.numpy()[:] = 0`. During a run, code
# of its thread that asks for the memory of a tensor gets what the run answers: a run on fake tensors gives a copy, a
# real run saves the content first.

# Other ways come down to these: `__array__` and `np.asarray` call `numpy`, ctypes is given a `data_ptr`.
_WAYS: tuple[tuple[Any, str], ...] = (
    *((torch.Tensor, name) for name in ("numpy", "data_ptr", "untyped_storage", "storage", "_typed_storage")),
    *((torch.Tensor, name) for name in ("__dlpack__", "share_memory_")),
    *((torch._C, "_to_dlpack"), (torch.utils.dlpack, "to_dlpack")),
)
_DLPACK = ("_to_dlpack", "to_dlpack")
# Calls that bring values to the host; a model that makes them makes a device wait. `print`, `str` and formats come down
# to `__repr__`.
_TO_HOST = ("cpu", "numpy", "tolist")
_PRINTS = "__repr__"


@contextmanager
def real_memory_for_numpy(
    lend: Callable[[torch.Tensor], torch.Tensor], note: Callable[[str, torch.Tensor], None] = lambda *_: None
) -> Iterator[None]:
    """`lend` gives the tensor whose memory is handed out for that of a tensor with data; `note` receives the
    names of calls that bring values to the host, and the tensors."""
    thread = threading.get_ident()
    is_lending = False

    def guarded(name: str, original: Callable[..., object]) -> Callable[..., object]:
        def access(tensor: torch.Tensor, *args: object, **kwargs: object) -> object:
            nonlocal is_lending
            if type(tensor) is FakeTensor and name in _DLPACK:
                return tensor.__dlpack__()
            if threading.get_ident() != thread or type(tensor) is FakeTensor or is_lending:
                return original(tensor, *args, **kwargs)
            is_lending = True  # `storage` calls `untyped_storage`
            try:
                return original(lend(tensor), *args, **kwargs)
            finally:
                is_lending = False

        return access

    def noted(name: str, original: Callable[..., object]) -> Callable[..., object]:
        def call(tensor: torch.Tensor, *args: object, **kwargs: object) -> object:
            if threading.get_ident() == thread:
                note(name, tensor)
            return original(tensor, *args, **kwargs)

        return call

    def printed(original: Callable[..., str]) -> Callable[..., str]:
        def call(tensor: torch.Tensor, **kwargs: object) -> str:
            if threading.get_ident() != thread:
                return original(tensor, **kwargs)
            note("print", tensor)
            with _disable_current_modes():  # the text is made of many small ops, which are not the model's
                return original(tensor, **kwargs)

        return call

    with ExitStack() as stack:
        for kind in (torch.Tensor, FakeTensor):
            stack.callback(setattr, kind, _PRINTS, vars(kind)[_PRINTS])
            setattr(kind, _PRINTS, printed(vars(kind)[_PRINTS]))
        for place, name in _WAYS:
            if name in vars(place):
                stack.callback(setattr, place, name, vars(place)[name])
            else:  # inherited
                stack.callback(delattr, place, name)
            setattr(place, name, guarded(name, getattr(place, name)))
        for name in _TO_HOST:
            for kind in (torch.Tensor, FakeTensor):
                if name in vars(kind):
                    stack.callback(setattr, kind, name, vars(kind)[name])
                elif kind is torch.Tensor:  # inherited
                    stack.callback(delattr, kind, name)
                else:
                    continue
                setattr(kind, name, noted(name, getattr(kind, name)))
        yield
