"""Function transforms: jit, vjp, grad, value_and_grad.

They trace Python functions of Arrays; a traced function must be pure: it sees its arguments and constants only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vkdnn import dtypes, tracing, tree
from vkdnn.array import Array, asarray, common_device, host_array, host_words
from vkdnn.autodiff.vjp import pullback
from vkdnn.device import Device, Progress, Storage, Words, current_device
from vkdnn.errors import ArgumentError, DtypeError, ShapeError
from vkdnn.fusion.schedule import storage
from vkdnn.ir import build
from vkdnn.ir.arguments import integer, integers, short
from vkdnn.ir.memory import settle
from vkdnn.ir.node import Node, leaf
from vkdnn.program import Program
from vkdnn.timeline import stretch

Function = Callable[..., Any]


def vjp(function: Function, *arguments: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """The value of ``function(*arguments)`` and its pullback: from a gradient of the value (same tree of arrays) to
    the gradients of all arguments (trees of arrays; zeros where there is no dependence).
    """
    _check_callable("vjp", function)
    leaves, structure = tree.flatten(list(arguments))
    # Aliases keep equal arguments apart, and an argument apart from the same array captured as a constant.
    arrays = [Array(build.alias(x.node), x._device) for x in (asarray(y, leaves, "vjp: argument") for y in leaves)]
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
            g = asarray(g, [r], "vjp: gradient")
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
    their arguments. Values may be read inside (printed, compared), but what is made of a NumPy array or a Python number
    is a constant: no gradient flows through x.numpy(). Raises ShapeError when the value is not a scalar, DtypeError
    when the value or an argument is not of a float dtype, and ArgumentError for argnums that name no argument or one
    twice.

    >>> import vkdnn as vk
    >>> value, slope = vk.value_and_grad(lambda x: vk.sum(x * x))(vk.array([1.0, 2.0]))
    >>> slope.numpy().tolist()
    [2.0, 4.0]
    """
    _check_callable("grad", function)
    given = argument_numbers("argnums", argnums)

    @functools.wraps(function)
    def wrapped(*arguments: Any, **constants: Any) -> Any:
        numbers = positions("argnums", given, len(arguments))
        for i in numbers:
            for path, x in zip(tree.paths(arguments[i]), tree.flatten(arguments[i])[0], strict=True):
                name = f"grad: argument {i} {path}".rstrip()
                if asarray(x, name=name).dtype.category != "f":
                    raise DtypeError(
                        f"{name} is {asarray(x).dtype}, expected a float dtype; convert it with .astype(vk.float32)"
                    )
        aux: list[Any] = []

        def partial(*chosen: Any) -> Any:
            full = list(arguments)
            for i, value in zip(numbers, chosen, strict=True):
                full[i] = value
            result = function(*full, **constants)
            if has_aux:
                if not isinstance(result, (tuple, list)) or len(result) != 2:
                    raise ArgumentError(
                        f"grad: with has_aux the function returned {short(result)}, expected the pair (value, extra)"
                    )
                result, extra = result
                aux.append(extra)
            return result

        value, pull = vjp(partial, *(arguments[i] for i in numbers))
        if not isinstance(value, Array) or value.size != 1:
            raise ShapeError(
                f"grad: the value is {getattr(value, 'shape', type(value).__name__)}, expected a scalar array; "
                "reduce it, as with vk.sum or vk.mean"
            )
        if value.dtype.category != "f":
            raise DtypeError(f"grad: the value is {value.dtype}, expected float32; it has no gradient")
        gradients = pull(Array(build.full(value.shape, 1.0), value._device))
        answer = gradients if isinstance(argnums, (list, tuple)) else gradients[0]
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
        with stretch("trace"), device, tracing.trace():
            positional, keywords = tree.unflatten(structure, list(parameters))
            result = function(*positional, **keywords)
        outputs, self.structure = tree.flatten(result)
        arrays = [asarray(o, name="jit: result") for o in outputs]
        self.program = Program(device, apart([a.node for a in arrays]), [p.node for p in parameters], donated)
        self.outputs = [(a.shape, a.dtype) for a in arrays]
        self.device = device

    def __call__(self, leaves: list[Any], progress: Progress | None) -> Any:
        arguments: list[Storage | Words] = [_argument(x) for x in leaves]
        results = []
        for result, (shape, dtype) in zip(self.program(arguments, progress), self.outputs, strict=True):
            node = leaf(shape, dtype)
            node.buffer = result
            results.append(Array(node, self.device))
        return tree.unflatten(self.structure, results)


def apart(results: list[Node]) -> list[Node]:
    """Results with memory of their own: a value that is returned twice, or that the function captured, is copied, so
    that one of them can be donated later."""
    seen: set[Node] = set()
    apart = []
    for node, same in zip(results, settle(results)[0], strict=True):
        base = storage(same)
        if base in seen or base.buffer is not None:
            node = build.apply("stop_gradient", build.alias(node))
            base = node
        seen.add(base)
        apart.append(node)
    return apart


class Jitted:
    """A function compiled for each signature it is called with; see jit()."""

    def __init__(self, function: Function, donate_argnums: tuple[int, ...], progress: Progress | None):
        self.function, self.donate, self.progress = function, donate_argnums, progress
        self.traces: dict[Any, _Traced] = {}
        functools.update_wrapper(self, function, updated=())  # attributes of a jitted function inside are its own

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        leaves, structure = tree.flatten((arguments, keywords))
        if tracing.active():  # part of what is being traced
            positional, named = tree.unflatten(structure, [asarray(x, leaves, "jit: argument") for x in leaves])
            return self.function(*positional, **named)
        return self._traced(arguments, leaves, structure)(leaves, self.progress)

    def program(self, *arguments: Any, **keywords: Any) -> Program:
        """The Program that these arguments run, traced but not run."""
        return self._traced(arguments, *tree.flatten((arguments, keywords))).program

    def _traced(self, arguments: tuple[Any, ...], leaves: list[Any], structure: tree.Structure) -> _Traced:
        for x in leaves:
            if isinstance(x, Array) and x.node.buffer is None:
                from vkdnn.array import realize

                realize([y for y in leaves if isinstance(y, Array)])
                break
        device = common_device("jit", [x for x in leaves if isinstance(x, Array)]) or current_device()
        key = (structure, tuple((_shape(x), _dtype(x)) for x in leaves), id(device))
        if key not in self.traces:
            donated = leaf_numbers(arguments, positions("donate_argnums", self.donate, len(arguments)))
            self.traces[key] = _Traced(self.function, structure, leaves, donated, device)
        return self.traces[key]


def leaf_numbers(arguments: Sequence[Any], positions: Sequence[int]) -> list[int]:
    """Numbers, among all leaves, of those of the arguments at these positions."""
    found, first = [], 0
    for i, argument in enumerate(arguments):
        count = len(tree.flatten(argument)[0])
        if i in positions:
            found += list(range(first, first + count))
        first += count
    return found


def jit(
    function: Function | None = None, *, donate_argnums: int | Sequence[int] = (), progress: Progress | None = None
) -> Any:
    """Compile a function of arrays (trees of them) into one Program for each input signature, and replay it.

    Arguments, by position or by keyword, are Arrays, NumPy arrays or Python numbers; shapes and dtypes are the
    signature. NumPy arrays are staged in the same submission: give data that changes from call to call so.
    ``donate_argnums`` are positions of arguments whose memory the results may take over (parameters and optimizer
    state); they cannot be used afterwards. ``progress`` is called with (done, total, label) while kernels are compiled.

    >>> import vkdnn as vk
    >>> double = vk.jit(lambda x: x + x)
    >>> double(vk.array([1.0, 2.0])).numpy().tolist()
    [2.0, 4.0]
    """
    numbers = argument_numbers("donate_argnums", donate_argnums)
    if progress is not None:
        _check_callable("jit: progress", progress)
    if function is None:
        return lambda f: jit(f, donate_argnums=numbers, progress=progress)
    _check_callable("jit", function)
    return Jitted(function, numbers, progress)


def _check_callable(name: str, function: Any) -> None:
    if not callable(function):
        raise ArgumentError(f"{name}: got {short(function)}, expected a function")


def argument_numbers(name: str, numbers: Any) -> tuple[int, ...]:
    """The ints of an int or a sequence of ints."""
    expected = "an int or a sequence of ints"
    if isinstance(numbers, (list, tuple)):
        return integers(name, numbers, expected)
    return (integer(name, numbers, expected),)


def positions(name: str, numbers: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Numbers of arguments counted from the first. Raises ArgumentError if there is no such argument, or one twice."""
    for i in numbers:
        if not -count <= i < count:
            raise ArgumentError(f"{name}: got {i}, but the function was called with {count} arguments, keywords aside")
    found = tuple(i % count for i in numbers)
    if len(set(found)) < len(found):
        raise ArgumentError(f"{name}: {numbers} names an argument twice, expected each once")
    return found


def _shape(x: Any) -> tuple[int, ...]:
    return x.shape if isinstance(x, Array) else np.shape(x)


def _dtype(x: Any) -> dtypes.DType:
    if isinstance(x, Array):
        return x.dtype
    return dtypes.of_numpy(host_array("jit: argument", x))


def _argument(x: Any) -> Storage | Words:
    if isinstance(x, Array):
        return x.storage()
    host = np.asarray(x)
    return host_words(host, dtypes.of_numpy(host))


__all__ = ["Jitted", "grad", "jit", "value_and_grad", "vjp"]
