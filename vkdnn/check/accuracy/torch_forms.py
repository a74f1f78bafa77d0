"""PyTorch's form of the operators that it has, for comparisons side by side; its gradients are autograd's own.

A form must be PyTorch's public function of that meaning, never a copy of vkdnn's formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from vkdnn import tree
from vkdnn.check.accuracy.backends import NotHere
from vkdnn.check.accuracy.subjects import Array, upstream
from vkdnn.check.operator import Case

_SAME = (
    "abs acos asin atan atan2 ceil copysign cos cosh divide erf erfc exp exp2 expm1 floor fmod log log1p log2 "
    "logical_and logical_not logical_or logical_xor matmul maximum minimum multiply negative outer pow reciprocal "
    "remainder round rsqrt sigmoid sign sin sinh sqrt square subtract tan tanh trunc add tril triu"
)
"""Those that have the same name, arguments and meaning there."""
_NAMED = {
    "relu": "relu", "silu": "silu", "mish": "mish", "hardswish": "hardswish", "log_sigmoid": "logsigmoid",
    "softplus": "softplus", "gelu": "gelu",
}  # fmt: skip
"""Those of torch.nn.functional."""


def run(case: Case, arrays: list[Array], gradient: bool, device: str) -> list[Array]:
    """The leaves of PyTorch's results, or gradients, on one of its devices. Raises NotHere where it has no form."""
    form = _form(case.operator.name)
    if form is None:
        raise NotHere(f"PyTorch has no form of {case.operator.name} here")
    import torch

    given = [_tensor(torch, a, device) for a in arrays]
    numbers = case.differentiable if gradient else []
    for i in numbers:
        given[i].requires_grad_()
    with torch.set_grad_enabled(gradient):
        leaves = tree.flatten(form(torch, *given, **case.options))[0]
    if gradient:
        floats = [x for x in leaves if x.is_floating_point()]
        total = sum(
            (x.float() * torch.tensor(upstream(case, k, tuple(x.shape)), device=device)).sum()
            for k, x in enumerate(floats)
        )
        found = torch.autograd.grad(total, [given[i] for i in numbers], allow_unused=True)
        leaves = [torch.zeros_like(given[i]) if g is None else g for i, g in zip(numbers, found, strict=True)]
    return [_array(torch, x) for x in leaves]


def _tensor(torch: Any, array: Array, device: str) -> Any:
    if array.dtype.name == "bfloat16":
        return torch.tensor(array.astype(np.float32), device=device).to(torch.bfloat16)
    return torch.tensor(array.astype(np.int64) if array.dtype == np.uint32 else array, device=device)


def _array(torch: Any, tensor: Any) -> Array:
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        import ml_dtypes

        return np.asarray(tensor.float().numpy().astype(ml_dtypes.bfloat16))
    return np.asarray(tensor.numpy())


def _form(name: str) -> Callable[..., Any] | None:
    if name in _SAME.split():
        return lambda torch, *xs, **options: getattr(torch, name)(
            *xs, **{_OPTIONS.get(k, k): v for k, v in options.items()}
        )
    if name in _NAMED:
        return lambda torch, x: getattr(torch.nn.functional, _NAMED[name])(x)
    return _FORMS.get(name)


_OPTIONS = {"k": "diagonal"}


def _softmax(torch: Any, x: Any, axis: Any) -> Any:
    return torch.softmax(x, _one_axis(axis))


def _log_softmax(torch: Any, x: Any, axis: Any) -> Any:
    return torch.log_softmax(x, _one_axis(axis))


def _one_axis(axis: Any) -> int:
    if not isinstance(axis, int):
        raise NotHere("PyTorch normalizes over one axis")
    return axis


def _fold(name: str) -> Callable[..., Any]:
    def fold(torch: Any, x: Any, axis: Any, keepdims: bool, **options: Any) -> Any:
        axes = tuple(range(x.ndim)) if axis is None else axis
        return getattr(torch, name)(x, axes, keepdim=keepdims, **options)

    return fold


def _logsumexp(torch: Any, x: Any, axis: Any, keepdims: bool, one_pass: bool) -> Any:
    return torch.logsumexp(x, axis, keepdim=keepdims)


def _cumsum(torch: Any, x: Any, axis: Any, reverse: bool = False) -> Any:
    if reverse or axis is None:
        raise NotHere("PyTorch's cumsum has one direction and needs an axis")
    return torch.cumsum(x, axis)


def _layer_norm(torch: Any, x: Any, weight: Any, bias: Any, axis: Any, eps: float) -> Any:
    if axis != -1:
        raise NotHere("this form is over the last axis")
    return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, eps)


def _rms_norm(torch: Any, x: Any, weight: Any, axis: Any, eps: float) -> Any:
    if axis != -1:
        raise NotHere("this form is over the last axis")
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)


def _attention(
    torch: Any, q: Any, k: Any, v: Any, *, causal: bool = False, window: Any = None, softcap: Any = None,
    scale: Any = None, dropout: float = 0.0, layout: str = "BTHD",
) -> Any:  # fmt: skip
    """(out, LSE), the second computed apart: PyTorch's function does not give it."""
    if window is not None or softcap is not None or dropout:
        raise NotHere("PyTorch's attention has no window, no softcap and draws dropout its own way")
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    m, n = q.shape[2], k.shape[2]
    seen = torch.ones(m, n, dtype=torch.bool, device=q.device)
    if causal:
        seen = seen.tril(n - m)
    found = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale)
    scores = q.float() @ k.float().transpose(-1, -2) * (scale if scale is not None else 1 / math.sqrt(q.shape[-1]))
    lse = torch.logsumexp(scores.masked_fill(~seen, -math.inf), -1)
    return found.transpose(1, 2), lse


_FORMS: dict[str, Callable[..., Any]] = {
    "softmax": _softmax, "log_softmax": _log_softmax, "logsumexp": _logsumexp, "sum": _fold("sum"),
    "mean": _fold("mean"), "max": _fold("amax"), "min": _fold("amin"), "var": _fold("var"), "std": _fold("std"),
    "cumsum": _cumsum, "layer_norm": _layer_norm, "rms_norm": _rms_norm, "attention": _attention,
    "gelu_tanh": lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"),
    "dot": lambda torch, a, b: torch.matmul(a, b),
    "where": lambda torch, c, a, b: torch.where(c, a, b),
    "einsum": lambda torch, a, b, subscripts: torch.einsum(subscripts, a, b),
    "nn.cross_entropy": lambda torch, x, targets: torch.nn.functional.cross_entropy(x, targets.long()),
    "nn.Linear": lambda torch, x, bias, weight: torch.nn.functional.linear(x, weight.T, bias),
}  # fmt: skip
