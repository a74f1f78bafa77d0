"""PyTorch's functions and modules as subjects of gradcheck: their values and what autograd says of them, in float64.

Nothing here is imported before somebody checks something of PyTorch's; it must never change a module that is given.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vkdnn import tree
from vkdnn.check.subjects import NARROW, Array, Subject, input_names, name_of
from vkdnn.check.users import check_count, is_torch_thing
from vkdnn.errors import ArgumentError, DtypeError
from vkdnn.ir.arguments import short


def is_torch(function: Any, inputs: Any) -> bool:
    """Whether a function is of PyTorch: a Function, a module, or one that is given tensors."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    return is_torch_thing(function) or any(isinstance(x, torch.Tensor) for x in tree.flatten(inputs)[0])


class TorchSubject:
    """A function of tensors, called in float64, or in float32 where it refuses float64."""

    analytic = False

    def __init__(self, name: str, names: list[str], function: Callable[..., Any], inputs: list[Any], dtype: Any):
        self.name, self.names, self.function, self.dtype = name, names, function, dtype
        self.tensors = inputs
        self.shapes: list[tuple[int, ...]] = []
        self.note = NARROW if str(dtype) == "torch.float32" else ""
        self.floats = [k for k, x in enumerate(inputs) if x.is_floating_point()]
        self.inputs = [_array(x) for x in inputs]
        if not self.floats:
            raise ArgumentError(f"gradcheck: {name} has no input of a float dtype, expected one to differentiate by")

    def values(self, arrays: Sequence[Array], copies: int) -> list[Array]:
        parts = []
        for c in range(copies):
            given = [x[c] if x.ndim > i.ndim else x for x, i in zip(arrays, self.inputs, strict=True)]
            parts.append(self._near(given))
        return [np.stack(p) for p in zip(*parts, strict=True)]

    def _near(self, arrays: Sequence[Array]) -> list[Array]:
        """The values at a point; NaN where the function refuses it, but not the first one."""
        import torch

        try:
            with torch.enable_grad():  # there may be derivatives in the function
                found = [_array(r) for r in self._results(self._leaves(arrays))]
            self.shapes = self.shapes or [x.shape for x in found]
            if self.shapes == [x.shape for x in found]:
                return found
        except Exception:  # out of the domain, as the function says it
            if not self.shapes:
                raise
        return [np.full(s, np.nan) for s in self.shapes]

    def gradients(self, cotangents: Sequence[Array]) -> list[Array]:
        leaves = self._leaves(self.inputs)
        found = self._pull(leaves, [self._tensor(c) for c in cotangents], False)
        return [_array(g) for g in found]

    def second(self, cotangents: Sequence[Array]) -> Subject:
        count = len(self.tensors)
        names = [*self.names, *(f"cotangent {k}" if k else "cotangent" for k in range(len(cotangents)))]
        inputs = [*self.tensors, *(self._tensor(c) for c in cotangents)]
        return TorchSubject(
            f"gradient of {self.name}", names, lambda *xs: self._twice(xs[:count], xs[count:]), inputs, self.dtype
        )

    def _twice(self, inputs: Sequence[Any], cotangents: Sequence[Any]) -> tuple[Any, ...]:
        import torch

        with torch.enable_grad():
            leaves = [x if not x.is_floating_point() or x.requires_grad else x.requires_grad_() for x in inputs]
            return tuple(self._pull(leaves, list(cotangents), True))

    def _pull(self, leaves: list[Any], cotangents: list[Any], again: bool) -> list[Any]:
        import torch

        results = self._results(leaves)
        wrt = [leaves[k] for k in self.floats]
        pairs = [(r, c) for r, c in zip(results, cotangents, strict=True) if r.requires_grad]
        if not pairs:
            return [torch.zeros_like(x) for x in wrt]
        try:
            found = torch.autograd.grad(
                [r for r, _ in pairs], wrt, [c.to(r.dtype) for r, c in pairs], allow_unused=True, create_graph=again
            )
        except RuntimeError as error:
            raise ArgumentError(f"gradcheck: the backward pass of {self.name} fails: {_line(error)}") from error
        return [torch.zeros_like(x) if g is None else g for g, x in zip(found, wrt, strict=True)]

    def _results(self, leaves: Sequence[Any]) -> list[Any]:
        import torch

        value = self.function(*(x.clone() for x in leaves))  # not the leaves: it may write to its inputs
        found = [r for r in tree.flatten(value)[0] if isinstance(r, torch.Tensor) and r.is_floating_point()]
        if not found:
            raise DtypeError(f"gradcheck: {self.name} gives no tensor of floats (it gave {short(value)})")
        return found

    def _leaves(self, arrays: Sequence[Array]) -> list[Any]:
        found = []
        for k, (x, t) in enumerate(zip(arrays, self.tensors, strict=True)):
            found.append(self._tensor(x).requires_grad_() if k in self.floats else t)
        return found

    def _tensor(self, x: Array) -> Any:
        import torch

        return torch.tensor(np.array(x)).to(self.dtype)


def torch_subject(function: Any, inputs: Any, name: str = "", narrow: bool = False) -> TorchSubject:
    """The subject of an autograd.Function, a module (its parameters are inputs too) or a function of tensors.

    It is evaluated in float64, or in float32 if ``narrow`` or if it refuses float64.

    Raises ArgumentError for a function that fails on its inputs, with what PyTorch says.
    """
    import torch

    leaves, structure = tree.flatten(list(inputs))
    tensors = [_tensor(f"input {k}", x) for k, x in enumerate(leaves)]
    name = name or name_of(function)
    called = getattr(function, "apply") if isinstance(function, type) else function  # noqa: B009  (for mypy)
    names = input_names(function, inputs)
    check_count(name, function, len(inputs))
    count = len(tensors)
    parameters: dict[str, Any] = {}
    if isinstance(function, torch.nn.Module):
        parameters = dict(function.named_parameters())
        names = [*names, *parameters]

    def subject(dtype: Any) -> TorchSubject:
        module = called
        if isinstance(function, torch.nn.Module):
            module = copy.deepcopy(function).to(dtype)

        def call(*xs: Any) -> Any:
            arguments = tree.unflatten(structure, list(xs[:count]))
            if not isinstance(function, torch.nn.Module):
                return module(*arguments)
            return torch.func.functional_call(module, dict(zip(parameters, xs[count:], strict=True)), tuple(arguments))

        given = [*tensors, *(p.detach() for p in parameters.values())]
        return TorchSubject(name, names, call, given, dtype)

    wide = subject(torch.float32 if narrow else torch.float64)
    try:
        wide.values(wide.inputs, 1)
        return wide
    except RuntimeError as first:
        thin = subject(torch.float32)
        try:
            thin.values(thin.inputs, 1)
            return thin
        except RuntimeError:
            raise ArgumentError(f"gradcheck: {name} fails on its inputs: {_line(first)}") from first


def _tensor(name: str, value: Any) -> Any:
    import torch

    try:
        found = value.detach().clone() if isinstance(value, torch.Tensor) else as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(f"gradcheck: {name} is {short(value)}, expected a tensor or an array") from None
    if found.is_complex():
        raise DtypeError(f"gradcheck: {name} is {found.dtype}, expected floats, integers or bools")
    return found


def as_tensor(value: Any) -> Any:
    """A tensor of an array; NumPy's bfloat16, which PyTorch does not know, as its own. Raises what PyTorch raises."""
    import torch

    host = np.array(value)
    if host.dtype.name == "bfloat16":
        return torch.as_tensor(host.astype(np.float32)).to(torch.bfloat16)
    return torch.as_tensor(host)


def _array(tensor: Any) -> Array:
    found = tensor.detach().cpu()
    found = found.to_dense() if found.is_sparse else found
    return np.array((found.double() if found.is_floating_point() else found).numpy())


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
