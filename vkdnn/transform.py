"""Function transforms: jit, vjp, grad, value_and_grad.

They trace Python functions of Arrays; a traced function must be pure: it sees its arguments and constants only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vkdnn import dtypes, tracing, tree
from vkdnn.array import Array, asarray, common_device, host_words
from vkdnn.autodiff.vjp import pullback
from vkdnn.device import Device, Progress, Storage, Words, current_device
from vkdnn.errors import ArgumentError, DtypeError, ShapeError
from vkdnn.ir import build
from vkdnn.ir.node import leaf
from vkdnn.program import Program

Function = Callable[..., Any]


def vjp(function: Function, *arguments: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """The value of ``function(*arguments)`` and its pullback: from a gradient of the value (same tree of arrays) to
    the gradients of all arguments (trees of arrays; zeros where there is no dependence).
    """
    leaves, structure = tree.flatten(list(arguments))
    # Aliases keep equal arguments apart, and an argument apart from the same array captured as a constant.
    arrays = [Array(build.alias(x.node), x._device) for x in (asarray(y, leaves) for y in leaves)]
    with tracing.trace():
        value = function(*tree.unflatten(structure, list(arrays)))
    outputs, out_structure = tree.flatten(value)
    results = [Array(asarray(o).node, asarray(o)._device) for o in outputs]  # the value may be read before the pullback

    def pull(gradient: Any) -> tuple[Any, ...]:
        given, given_structure = tree.flatten(gradient)
        if given_structure != out_structure:
            raise ArgumentError("vjp: the gradient's tree differs from that of the function's value")
        seeds = []
        for g, r in zip(given, results, strict=True):
            g = asarray(g, [r])
            if g.shape != r.shape:
                raise ShapeError(f"vjp: gradient of shape {g.shape} for a value of shape {r.shape}")
            seeds.append(g)
        found = pullback(
            [r.node for r in results], [build.cast(g.node, dtypes.float32) for g in seeds], [a.node for a in arrays]
        )
        device = common_device("vjp", [*arrays, *results, *seeds])
        gradients = [
            Array(build.full(a.shape, 0.0, a.dtype) if node is None else build.cast(node, a.dtype), device)
            for a, node in zip(arrays, found, strict=True)
        ]
        return tuple(tree.unflatten(structure, gradients))

    return value, pull


def value_and_grad(function: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function:
    """A function that gives (value, gradient) of a scalar ``function`` with respect to the arguments ``argnums``.

    With ``has_aux`` the function returns (scalar, anything), and the value is that pair. Gradients are trees like
    their arguments. Raises ShapeError when the value is not a scalar and DtypeError for arguments that are not float32.

    >>> import vkdnn as vk
    >>> value, slope = vk.value_and_grad(lambda x: vk.sum(x * x))(vk.array([1.0, 2.0]))
    >>> slope.numpy().tolist()
    [2.0, 4.0]
    """
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @functools.wraps(function)
    def wrapped(*arguments: Any, **constants: Any) -> Any:
        for i in numbers:
            if i >= len(arguments):
                raise ArgumentError(f"argnums: got {i}, but the function was called with {len(arguments)} arguments")
            for name, x in zip(tree.paths(arguments[i]), tree.flatten(arguments[i])[0], strict=True):
                if asarray(x).dtype.category != "f":
                    raise DtypeError(f"grad: argument {i} {name} is {asarray(x).dtype}, expected float32")
        aux: list[Any] = []

        def partial(*chosen: Any) -> Any:
            full = list(arguments)
            for i, value in zip(numbers, chosen, strict=True):
                full[i] = value
            result = function(*full, **constants)
            if has_aux:
                result, extra = result
                aux.append(extra)
            return result

        value, pull = vjp(partial, *(arguments[i] for i in numbers))
        if not isinstance(value, Array) or value.size != 1:
            raise ShapeError(
                f"grad: the value is {getattr(value, 'shape', type(value).__name__)}, expected a scalar array"
            )
        gradients = pull(Array(build.full(value.shape, 1.0), value._device))
        answer = gradients[0] if isinstance(argnums, int) else gradients
        return ((value, aux[0]) if has_aux else value), answer

    return wrapped


def grad(function: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function:
    """The gradient alone of value_and_grad() (with ``has_aux``, the pair of gradient and the extra result).

    >>> import vkdnn as vk
    >>> vk.grad(lambda x: vk.sum(vk.exp(x)))(vk.array([0.0])).numpy().tolist()
    [1.0]
    """
    both = value_and_grad(function, argnums, has_aux)

    @functools.wraps(function)
    def wrapped(*arguments: Any, **constants: Any) -> Any:
        value, gradient = both(*arguments, **constants)
        return (gradient, value[1]) if has_aux else gradient

    return wrapped


# ---- jit


class _Traced:
    """One signature of a jitted function: its Program and how to build the result."""

    def __init__(
        self, function: Function, structure: tree.Structure, leaves: list[Any], donated: list[int], device: Device
    ):
        parameters = [Array(leaf(_shape(x), _dtype(x), f"argument {i}"), device) for i, x in enumerate(leaves)]
        with device, tracing.trace():
            result = function(*tree.unflatten(structure, list(parameters)))
        outputs, self.structure = tree.flatten(result)
        arrays = [asarray(o) for o in outputs]
        self.program = Program(device, [a.node for a in arrays], [p.node for p in parameters], donated)
        self.outputs = [(a.shape, a.dtype) for a in arrays]
        self.device = device

    def __call__(self, leaves: list[Any], progress: Progress | None) -> Any:
        arguments: list[Storage | Words] = [_argument(x) for x in leaves]
        results = []
        for storage, (shape, dtype) in zip(self.program(arguments, progress), self.outputs, strict=True):
            node = leaf(shape, dtype)
            node.buffer = storage
            results.append(Array(node, self.device))
        return tree.unflatten(self.structure, results)


class Jitted:
    """A function compiled for each signature it is called with; see jit()."""

    def __init__(self, function: Function, donate_argnums: Sequence[int], progress: Progress | None):
        self.function, self.donate, self.progress = function, tuple(donate_argnums), progress
        self.traces: dict[Any, _Traced] = {}
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        if tracing.active():
            return self.function(*arguments)  # part of what is being traced
        for i in self.donate:
            if i >= len(arguments):
                raise ArgumentError(f"donate_argnums: got {i}, but there are {len(arguments)} arguments")
        return self._traced(arguments)(tree.flatten(list(arguments))[0], self.progress)

    def program(self, *arguments: Any) -> Program:
        """The Program that these arguments run, traced but not run."""
        return self._traced(arguments).program

    def _traced(self, arguments: tuple[Any, ...]) -> _Traced:
        leaves, structure = tree.flatten(list(arguments))
        for x in leaves:
            if isinstance(x, Array) and x.node.buffer is None:
                from vkdnn.array import realize

                realize([y for y in leaves if isinstance(y, Array)])
                break
        device = common_device("jit", [x for x in leaves if isinstance(x, Array)]) or current_device()
        key = (structure, tuple((_shape(x), _dtype(x)) for x in leaves), id(device))
        if key not in self.traces:
            donated, first = [], 0
            for i, argument in enumerate(arguments):
                count = len(tree.flatten(argument)[0])
                if i in self.donate:
                    donated += list(range(first, first + count))
                first += count
            self.traces[key] = _Traced(self.function, structure, leaves, donated, device)
        return self.traces[key]


def jit(
    function: Function | None = None, *, donate_argnums: int | Sequence[int] = (), progress: Progress | None = None
) -> Any:
    """Compile a function of arrays (trees of them) into one Program for each input signature, and replay it.

    Arguments are Arrays, NumPy arrays or Python numbers; shapes and dtypes are the signature. NumPy arrays are staged
    in the same submission: give data that changes from call to call so. ``donate_argnums`` are arguments whose memory
    the results may take over (parameters and optimizer state); they cannot be used afterwards. ``progress`` is called
    with (done, total, label) while kernels are compiled.

    >>> import vkdnn as vk
    >>> double = vk.jit(lambda x: x + x)
    >>> double(vk.array([1.0, 2.0])).numpy().tolist()
    [2.0, 4.0]
    """
    numbers = (donate_argnums,) if isinstance(donate_argnums, int) else tuple(donate_argnums)
    if function is None:
        return lambda f: Jitted(f, numbers, progress)
    return Jitted(function, numbers, progress)


def _shape(x: Any) -> tuple[int, ...]:
    return x.shape if isinstance(x, Array) else np.shape(x)


def _dtype(x: Any) -> dtypes.DType:
    if isinstance(x, Array):
        return x.dtype
    return dtypes.of_numpy(np.asarray(x))


def _argument(x: Any) -> Storage | Words:
    if isinstance(x, Array):
        return x.storage()
    host = np.asarray(x)
    return host_words(host, dtypes.of_numpy(host))


__all__ = ["Jitted", "grad", "jit", "value_and_grad", "vjp"]
