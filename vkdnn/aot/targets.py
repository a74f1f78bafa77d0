"""What to build: functions and shapes of a command line, and the shaders that code would compile, by not running it.

Nothing here may run a kernel or compile one.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vkdnn import dtypes
from vkdnn.aot.target import BuildTarget
from vkdnn.device import Device, Progress, Run, Task, Words
from vkdnn.errors import ArgumentError
from vkdnn.shader.request import ShaderRequest

_ARGUMENT = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<sizes>[A-Za-z0-9_,x]*)(?::(?P<dtype>\w+))?")


class Collector(Device):
    """A device for a build target that computes nothing: every result is zeros, and ``requests`` has the shaders.

    Whatever picks its kernels by shapes alone can run on it: initialization, a training step, decoding of a prompt.
    """

    kind = "collector"

    def __init__(self, target: BuildTarget):
        self.lock = threading.RLock()
        self.target = target
        self.name = f"{target.name or 'any device'} (nothing is computed)"
        self.max_words = target.max_words[-1]
        self.software = target.target.software
        self.found: dict[str, ShaderRequest] = {}

    @property
    def requests(self) -> list[ShaderRequest]:
        """What would be compiled, each once, in the order in which it was met."""
        return list(self.found.values())

    def allocate(self, words: int, host: bool, remote: bool = False) -> Words:
        return np.zeros(words, np.uint32)

    def write(self, handle: Words, words: Words) -> None:
        handle[: words.size] = words

    def read(self, handle: Words, words: int) -> Words:
        return handle[:words].copy()

    def prepare(
        self,
        tasks: Sequence[Task],
        uploads: Sequence[Any],
        downloads: Sequence[Any],
        progress: Progress | None = None,
        cuts: Sequence[int] = (),
    ) -> Run:
        for task in tasks:
            request = self.target.request(task.spec, self.target.schedule(task.spec, task.sizes))
            self.found.setdefault(request.identity, request)
        return _NoRun()


class _NoRun:
    begun = 0

    def stage(self, handle: Words, words: Words) -> None:
        handle[: words.size] = words

    def __call__(self) -> None:
        pass

    def fetch(self, handle: Words) -> Words:
        return handle.copy()


@dataclass(frozen=True)
class Argument:
    """An argument of a function: its name (empty: by position), sizes, of which some may be symbols, and dtype, with
    whether that was written or is the default."""

    name: str
    sizes: tuple[int | str, ...]
    dtype: str = "float32"
    written: bool = field(default=False, repr=False, compare=False)


def parse_argument(text: str) -> Argument:
    """``x=8,128``, ``8x128:int32``, ``x=batch,512``; no sizes make a scalar. Raises ArgumentError for anything else.

    >>> parse_argument("x=batch,512:int32")
    Argument(name='x', sizes=('batch', 512), dtype='int32')
    """
    found = _ARGUMENT.fullmatch(text.replace(" ", ""))
    if found is None:
        raise ArgumentError(f"--shape: got {text!r}, expected such as x=8,128 or 8x128:int32")
    plain = re.sub(r"(?<=\d)x(?=\d)", ",", found["sizes"])
    sizes = tuple(_size(text, part) for part in plain.split(",")) if plain else ()
    return Argument(
        found["name"] or "", sizes, str(dtypes.as_dtype(found["dtype"] or "float32")), found["dtype"] is not None
    )


def _size(text: str, part: str) -> int | str:
    if part.isidentifier():
        return part
    if not re.fullmatch(r"\d{1,10}", part):
        raise ArgumentError(f"--shape: got {part!r} in {text!r}, expected a size such as 128 or the name of a symbol")
    return int(part)


def find_function(text: str) -> Callable[..., Any]:
    """The function that ``module:function`` names, from the working folder or what is installed.

    Raises ArgumentError that says which part does not exist, or what went wrong in the module.
    """
    function = find_value(text)
    if not callable(function):
        raise ArgumentError(f"function: {text} is {type(function).__name__}, expected a function of arrays")
    found: Callable[..., Any] = function
    return found


def find_value(text: str) -> Any:
    """What ``module:name`` names, of any type; see find_function()."""
    module_name, colon, name = text.partition(":")
    if not (colon and module_name and name):
        raise ArgumentError(f"function: got {text!r}, expected module:function, such as my_model:forward")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        value: Any = importlib.import_module(module_name)
    except Exception as error:  # whatever the user's module does
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            raise ArgumentError(
                f"function: {module_name!r} needs PyTorch, which is not here: pip install 'vkdnn[torch]'"
            ) from error
        raise ArgumentError(
            f"function: cannot import {module_name!r} ({type(error).__name__}: {error}); run this in the folder "
            "where it lies, or set PYTHONPATH"
        ) from error
    for part in name.split("."):
        if not hasattr(value, part):
            near = ", ".join(n for n, v in vars(value).items() if not n.startswith("_") and _is_target(v))
            raise ArgumentError(f"function: {module_name} has no {name!r}; it has {near or 'no functions'}")
        value = getattr(value, part)
    return value


def _is_target(value: Any) -> bool:
    """Whether some command takes it: a function or class, a pair of functions, an Operator or Case of vkdnn.check."""
    pair = isinstance(value, (tuple, list)) and len(value) == 2 and all(map(callable, value))
    return callable(value) or pair or type(value).__name__ in ("Operator", "Case")
