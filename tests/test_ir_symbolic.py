"""One set of kernels for a range of lengths, with the bits of the concrete functions on both devices."""

from __future__ import annotations

from typing import Any

import pytest
from symbolic import TARGET, check, traced

import vkdnn as vk
from vkdnn import tree
from vkdnn.codegen.render import render
from vkdnn.errors import ArgumentError, ShapeError
from vkdnn.fusion.schedule import schedule
from vkdnn.ir import build
from vkdnn.ir.dims import formula, guards, symbol
from vkdnn.ir.node import leaf
from vkdnn.ir.symbolic import symbols
from vkdnn.nn import cross_entropy

F, N = "float32", "int32"
UP_TO_300 = {"tokens": (1, 300)}
LENGTHS = [{"tokens": n} for n in (1, 2, 63, 64, 65, 127, 128, 129, 131, 300)]
BATCHES = {"batch": (1, 4), "tokens": (1, 300)}
SIZES = [{"batch": b, "tokens": n} for b, n in ((1, 1), (3, 3), (4, 64), (2, 128), (3, 131), (4, 300))]
FEW = [{"batch": b, "tokens": n} for b, n in ((4, 65), (1, 128), (2, 131))]
ROWS = [(("tokens", 5), F)]
BATCH_ROWS = [(("batch", "tokens", 5), F)]
HEADS = (("batch", "tokens", 2, 8), F)


def test_one_kernel_serves_a_range_of_lengths() -> None:
    def function(x: Any, y: Any) -> Any:
        return vk.exp(x) * y + 1.0

    arguments = [(("batch", "tokens", 8), F), (("tokens", 1), F)]
    program = check(function, arguments, BATCHES, *SIZES)
    (step,) = program.steps
    assert [formula(n) for n in step.sizes] == [["*", ["*", 8, "batch"], "tokens"]]
    assert formula(program.outputs[0].shape[1]) == "tokens"
    groups = step.spec.groups(step.sizes, step.spec.schedules(TARGET)[0])
    assert formula(groups[0]) == ["//", ["+", ["*", "batch", "tokens"], 63], 64]  # 512 elements a group
    # The words of the symbols that a kernel needs come after its sizes, by name: here the batch is in the count alone.
    assert [s.name for s in symbols(step.spec)] == ["tokens"]
    glsl = render(step.spec, step.spec.schedules(TARGET)[0], ())
    assert "uint count;\n    uint symbol_tokens;\n" in glsl
    assert "#define size0u (8u * symbol_tokens)\n#define size0 int(size0u)\n" in glsl


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x[1:-1] * 2 if x.shape[0] > 500 else (x[-1], x[::-1], x[:, 1:]), id="slices"),
        pytest.param(lambda x: x + vk.arange(x.shape[0]).reshape(-1, 1), id="arange"),
        pytest.param(lambda x: vk.pad(x, ((2, 3), (0, 0))), id="pad"),
        pytest.param(lambda x: vk.stack([vk.flip(x, 0), x], 1), id="stack, flip"),
        pytest.param(lambda x: vk.repeat(vk.tile(x, (2, 1)), 2, axis=1), id="tile, repeat"),
        pytest.param(lambda x: x + vk.random.normal(vk.random.key(3), x.shape), id="random"),
        pytest.param(lambda x: vk.sort(x, axis=1), id="sorted rows"),
        pytest.param(lambda x: vk.tril(vk.matmul(x, x.T)), id="tril"),
    ],
)
def test_elementwise_and_views(function: Any) -> None:
    check(function, ROWS, UP_TO_300, *LENGTHS)


def test_two_lengths_in_one_array() -> None:
    sizes = [{"tokens": 129, "more": 1}, {"tokens": 1, "more": 20}, {"tokens": 20, "more": 20}]
    arguments = [(("tokens", 5), F), (("more", 5), F)]
    check(lambda x, y: vk.concatenate([x, y], 0), arguments, {"tokens": (1, 300), "more": (1, 20)}, *sizes)
    check(lambda x, y: (x[:, None] * y).sum(1), arguments, {"tokens": (1, 300), "more": (1, 20)}, *sizes)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_storage_types(dtype: str) -> None:
    arguments = [(("tokens", 5), dtype)]
    check(lambda x: (x * 2 + 1, vk.softmax(x, 0), vk.mean(x, 1)), arguments, UP_TO_300, *LENGTHS)


def test_conditions_and_one_hot() -> None:
    arguments = [(("batch", "tokens"), F), (("batch", 1), N)]
    check(lambda x, n: vk.where(vk.arange(x.shape[1]) < n, x, 0.0), arguments, BATCHES, *SIZES)
    check(lambda i: vk.one_hot(i, 9), [(("batch", "tokens"), N)], BATCHES, *SIZES)


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: vk.softmax(x, -1), id="softmax"),
        pytest.param(lambda x: vk.softmax(x, 1), id="softmax over tokens"),
        pytest.param(lambda x: vk.layer_norm(x.transpose(2, 0, 1)), id="layer norm over tokens"),
        pytest.param(lambda x: (vk.mean(x, 1), vk.sum(x), vk.argmax(x, 1), vk.max(x, (0, 2))), id="reductions"),
        pytest.param(lambda x: vk.moments(x, 1), id="moments"),
        pytest.param(vk.grad(lambda x: vk.sum(vk.softmax(x, 1) ** 2) + vk.sum(vk.rms_norm(x))), id="gradient"),
    ],
)
def test_folds(function: Any) -> None:
    check(function, BATCH_ROWS, BATCHES, *SIZES)


def test_the_longest_fold() -> None:
    sizes = [{"tokens": n} for n in (1, 32_749, 32_768)]
    check(lambda x: vk.softmax(x, -1), [((2, "tokens"), F)], {"tokens": (1, 32_768)}, *sizes)


def test_folds_of_several_spans() -> None:
    sizes = [{"tokens": n} for n in (1, 129, 32_767, 32_768, 32_769, 65_536, 65_537, 100_000)]
    arguments = [((2, "tokens"), F)]

    def function(x: Any) -> Any:
        return vk.sum(x, 1), vk.max(x), vk.argmax(x, 1), vk.moments(x, 1)

    check(function, arguments, {"tokens": (1, 100_000)}, *sizes)
    loss = vk.value_and_grad(lambda x: vk.mean(vk.tanh(x) ** 2))
    sizes = [{"batch": b, "tokens": n} for b, n in ((1, 1), (16, 2048), (11, 4093))]
    check(loss, [(("batch", "tokens"), F)], {"batch": (1, 16), "tokens": (1, 4096)}, *sizes)


def test_a_variance_needs_two_elements() -> None:
    arguments, sizes = ROWS, [{"tokens": n} for n in (2, 129, 300)]
    check(lambda x: vk.var(x, 0, correction=1), arguments, {"tokens": (2, 300)}, *sizes)
    with pytest.raises(ArgumentError, match="tokens from 2 to 300"):
        traced(lambda x: vk.var(x, 0, correction=1), arguments, UP_TO_300)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        pytest.param(lambda x, w: vk.relu(vk.matmul(x, w) + 1), [("batch", "tokens", 33), (33, 20)], id="rows"),
        pytest.param(lambda x, w: vk.matmul(x, w), [(5, "tokens"), ("tokens", 20)], id="k"),
        pytest.param(lambda x, w: vk.matmul(x, w), [(5, 33), (33, "tokens")], id="columns"),
        pytest.param(lambda q, k: vk.einsum("bti,bsi->bts", q, k), [("batch", "tokens", 8)] * 2, id="scores"),
        pytest.param(
            vk.grad(lambda x, w: vk.sum(vk.matmul(x, w) ** 2), (0, 1)),
            [("batch", "tokens", 9), (9, 5)],
            id="gradient",
        ),
    ],
)
def test_products(function: Any, shapes: Any) -> None:
    ranges = {name: BATCHES[name] for name in ("batch", "tokens") if any(name in s for s in shapes)}
    check(function, [(s, F) for s in shapes], ranges, *(SIZES if len(ranges) > 1 else LENGTHS))


def test_embeddings() -> None:
    arguments = [((9, 12), F), (("batch", "tokens"), N)]
    check(lambda t, i: vk.take(t, i) * 2.0, arguments, BATCHES, *SIZES)
    check(vk.grad(lambda t, i: vk.sum(vk.take(t, i) ** 2)), arguments, BATCHES, *SIZES)
    rows = [((9, 5), F), (("tokens",), N), (("tokens", 5), F)]
    check(lambda x, i, u: (vk.scatter_add(x, i, u), vk.scatter(x, i, u)), rows, UP_TO_300, *LENGTHS)


def test_cumulations() -> None:
    sizes = [*SIZES, {"batch": 2, "tokens": 256}, {"batch": 2, "tokens": 257}]
    check(lambda x: (vk.cumsum(x, 1), vk.cummax(x, 1, reverse=True)), BATCH_ROWS, BATCHES, *sizes)
    check(
        vk.grad(lambda a, b: vk.sum(vk.linear_recurrence(a, b, axis=1) ** 2), (0, 1)), BATCH_ROWS * 2, BATCHES, *sizes
    )
    short = [{"tokens": n} for n in (1, 127, 128)]
    check(lambda x: vk.cumsum(x, 0), ROWS, {"tokens": (1, 128)}, *short)
    long = [{"tokens": n} for n in (1, 128, 129, 16_383, 16_384, 16_385, 100_000)]  # one, two and three levels
    check(lambda x: vk.cumsum(x), [(("tokens",), F)], {"tokens": (1, 100_000)}, *long)


def test_attention() -> None:
    check(lambda q, k, v: vk.attention(q, k, v, causal=True), [HEADS] * 3, BATCHES, *SIZES)
    check(lambda q, k, v: vk.attention(q, k, v, window=(5, 0)), [HEADS] * 3, BATCHES, *FEW)
    loss = vk.grad(lambda q, k, v: vk.sum(vk.attention(q, k, v, causal=True) ** 2), (0, 1, 2))
    arguments = [((2, "tokens", 2, 8), F), ((2, "keys", 2, 8), F), ((2, "keys", 2, 8), F)]
    sizes = [{"tokens": t, "keys": k} for t, k in ((7, 131), (128, 128), (200, 1))]  # more keys, as many, fewer
    check(loss, arguments, {"tokens": (1, 200), "keys": (1, 300)}, *sizes)


def test_attention_over_blocks_side_by_side() -> None:
    arguments = [((1, 1, 2, 8), F), ((1, "keys", 2, 8), F), ((1, "keys", 2, 8), F)]
    sizes = [{"keys": n} for n in (1, 127, 1025, 1700)]
    program = check(lambda q, k, v: vk.attention(q, k, v), arguments, {"keys": (1, 1700)}, *sizes)
    assert len(program.steps) == 2  # for all of a range that reaches far
    short = traced(lambda q, k, v: vk.attention(q, k, v), arguments, {"keys": (1, 255)})
    assert len(short.steps) == 1


@pytest.mark.parametrize("order", ["sequential", "chunked"])
def test_scans(order: str) -> None:
    def everything(k: Any, v: Any, p: Any, r: Any) -> Any:
        s = vk.scan_prefix_outer(k, v, p, r, order=order)
        return s.bp, s.ap, s.btr, s.pap, s.rbp, s.a, s.b

    check(everything, [HEADS] * 4, BATCHES, *SIZES)

    def loss(k: Any, v: Any, p: Any, boundary: Any) -> Any:
        return vk.sum(vk.scan_prefix_outer(k, v, p, order=order, boundary=boundary).bp ** 2)

    documents = [*[HEADS] * 3, (("batch", "tokens"), N)]
    check(vk.value_and_grad(loss, (0, 1, 2)), documents, BATCHES, *FEW, top=2)


def _model(model: Any) -> tuple[Any, Any]:
    """The model as a function of tokens and its parameters' leaves, and the arguments of that function."""
    leaves, structure = tree.flatten(model.init(seed=0))
    arguments = [(("batch", "tokens"), N), *((x.shape, F) for x in leaves)]
    return lambda tokens, *weights: model(tree.unflatten(structure, list(weights)), tokens), (arguments, structure)


RAPT = {"vocab": 11, "width": 16, "layers": 2, "heads": 2, "key_width": 8, "value_width": 8, "hidden": 16}
GPT = {"vocab": 11, "width": 16, "layers": 2, "heads": 2, "hidden": 16, "max_tokens": 300}


@pytest.mark.parametrize("order", ["sequential", "chunked"])
def test_rapt(order: str) -> None:
    forward, (arguments, _) = _model(vk.nn.RAPTModel(vk.nn.RAPTConfig(**RAPT, order=order)))  # type: ignore[arg-type]
    check(forward, arguments, BATCHES, *SIZES)


@pytest.mark.parametrize("settings", [{}, {"positions": "learned"}, {"window": 5}])
def test_gpt(settings: dict[str, Any]) -> None:
    forward, (arguments, _) = _model(vk.nn.GPTModel(vk.nn.GPTConfig(**GPT, **settings)))  # type: ignore[arg-type]
    check(forward, arguments, BATCHES, *(FEW if settings else SIZES))


@pytest.mark.parametrize(
    "model", [vk.nn.RAPTModel(vk.nn.RAPTConfig(**RAPT)), vk.nn.GPTModel(vk.nn.GPTConfig(**GPT))], ids=["rapt", "gpt"]
)
def test_several_documents_in_a_row(model: Any) -> None:
    _, (arguments, structure) = _model(model)

    def forward(tokens: Any, boundary: Any, *weights: Any) -> Any:
        return model(tree.unflatten(structure, list(weights)), tokens, boundary)

    check(forward, [arguments[0], *arguments], BATCHES, *FEW[1:], top=3)


def test_a_gradient_of_rapt() -> None:
    model = vk.nn.RAPTModel(vk.nn.RAPTConfig(**{**RAPT, "layers": 1}))  # type: ignore[arg-type]
    _, (arguments, structure) = _model(model)

    def step(tokens: Any, *weights: Any) -> Any:
        def loss(params: Any) -> Any:
            return vk.mean(cross_entropy(model(params, tokens[:, :-1]), tokens[:, 1:]))

        return vk.value_and_grad(loss)(tree.unflatten(structure, list(weights)))

    check(step, arguments, {"batch": (1, 4), "tokens": (2, 300)}, {"batch": 1, "tokens": 2}, *FEW)


# ---- what is refused, and how


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        pytest.param(lambda x: vk.sort(x, 0), ROWS, "sort: an axis of symbolic length tokens", id="sort"),
        pytest.param(lambda x: x * 2 if x.shape[0] == 1 else x, ROWS, "expected tokens from 2 to 300", id="branch"),
        pytest.param(lambda x: x * 2 if x.shape[0] < 128 else x, ROWS, "expected tokens from 128 to 300", id="less"),
        pytest.param(lambda x: x * len(range(x.shape[0])), ROWS, "keep that axis concrete", id="leak"),
        pytest.param(lambda x: x / float(x.shape[0]), ROWS, r"float\(\) of the symbolic size", id="float"),
        pytest.param(lambda x: x[::2], ROWS, "slice step is 2", id="step"),
        pytest.param(lambda x: x.reshape(10, -1), ROWS, "does not fit", id="reshape"),
    ],
)
def test_refused(function: Any, arguments: Any, message: str) -> None:
    with pytest.raises((ArgumentError, ShapeError), match=message):
        traced(function, arguments, UP_TO_300)


def test_lengths_that_may_differ_do_not_meet() -> None:
    with pytest.raises(ShapeError, match="do not broadcast"):
        traced(lambda x, y: x + y, [(("batch", 1), F), (("tokens", 1), F)], BATCHES)
    with pytest.raises(ShapeError, match="do not broadcast"):
        traced(lambda x: x + vk.zeros((7, 5)), ROWS, UP_TO_300)


def test_too_many_elements_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"expected tokens from 1 to 32767 .*2147483647"):
        traced(lambda x: x + 1, [(("tokens", 1 << 16), F)], {"tokens": (1, 40_000)})


def test_what_a_shader_is_made_for_stays_concrete() -> None:
    arguments = [((2, 5, 2, "width"), F)] * 3
    with pytest.raises(ArgumentError, match="width"):
        traced(lambda k, v, p: vk.scan_prefix_outer(k, v, p).bp, arguments, {"width": (4, 16)})
    with pytest.raises(ArgumentError, match="width"):
        traced(lambda q, k, v: vk.attention(q, k, v), arguments, {"width": (4, 16)})


def test_more_symbols_than_push_constants_are_refused() -> None:
    with guards():
        sizes = [symbol(f"n{i}", 2, 2, 3) for i in range(30)]
        x, y = (leaf(tuple(n if i % 2 == k else 1 for i, n in enumerate(sizes)), build.float32) for k in (0, 1))
        (step,) = schedule([build.apply("add", x, y)])
    with pytest.raises(ArgumentError, match="push-constant words, expected at most 32"):
        render(step.spec, step.spec.schedules(TARGET)[0], ())
