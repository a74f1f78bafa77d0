"""Every public function answers bad input with one of vkdnn's errors, which names the argument and what came."""

import numpy as np
import pytest

import vkdnn as vk
from vkdnn.errors import ArgumentError, DeviceError, DtypeError, MemoryLimitError, ShapeError, VkdnnError

with vk.device("cpu"):
    X = vk.array(np.arange(6.0).reshape(2, 3) - 2)
RAGGED = [[1, 2], [3]]


@pytest.fixture(autouse=True)
def reference():
    """What is refused is refused before any device is asked."""
    with vk.device("cpu") as device:
        yield device


# ---- data

DATA = [
    (lambda: vk.array(RAGGED), ArgumentError, "array: got nested lists of unequal lengths"),
    (lambda: vk.array(RAGGED, dtype="float32"), ArgumentError, "array: got nested lists of unequal lengths"),
    (lambda: vk.array("text"), DtypeError, "array: got 'text' .*expected numbers or bools"),
    (lambda: vk.array(["a"], dtype="float32"), DtypeError, r"array: got \['a'\]"),
    (lambda: vk.array(None), DtypeError, "array: got None"),
    (lambda: vk.array([None], dtype="float32"), DtypeError, r"array: got \[None\]"),
    (lambda: vk.array(1 + 2j), DtypeError, "array: got .*complex128"),
    (lambda: vk.array([1 + 2j], dtype="float32"), DtypeError, "array: got .*complex128"),
    (lambda: vk.array({"a": 1}), DtypeError, "array: got dict"),
    (lambda: vk.array({1.0}), DtypeError, "array: got set"),
    (lambda: vk.array(object()), DtypeError, "array: got object"),
    (lambda: vk.array(np.array(["2020-01-01"], dtype="M8[D]")), DtypeError, "array: got ndarray .*datetime64"),
    (lambda: vk.array([1, 2**40]), DtypeError, "array: integers from 1 to 1099511627776 do not fit in int32"),
    (lambda: vk.array(2**70), DtypeError, "array: got 1180591620717411303424"),
    (lambda: vk.array([1.0], dtype="float64"), DtypeError, "dtype: got 'float64', expected one of float32"),
    (lambda: vk.array([1.0], dtype=3), DtypeError, "dtype: got 3"),
    (lambda: vk.array([1.0], dtype={}), DtypeError, "dtype: got {}"),
    (lambda: vk.array([1.0], device="no such card"), DeviceError, "no such card"),
    (lambda: vk.array([1.0], device=1.5), ArgumentError, "device: selector: got 1.5"),
    (lambda: vk.full(2, 2**40, "int32"), DtypeError, "1099511627776 is not a value of int32"),
    (lambda: vk.full(2, -1, "uint32"), DtypeError, "-1 is not a value of uint32"),
    (lambda: vk.full(2, float("nan"), "int32"), DtypeError, "nan is not a value of int32"),
    (lambda: vk.full(2, None), ArgumentError, "full: fill_value: got None"),
    (lambda: vk.zeros((2.5,)), ArgumentError, "zeros: shape: got 2.5"),
    (lambda: vk.zeros(None), ArgumentError, "zeros: shape: got None"),
    (lambda: vk.zeros("ab"), ArgumentError, "zeros: shape: got 'ab'"),
    (lambda: vk.zeros(True), ArgumentError, "zeros: shape: got True"),
    (lambda: X.astype("float64"), DtypeError, "dtype: got 'float64'"),
    (lambda: X.astype(None), DtypeError, "dtype: got None"),
    (lambda: X.item(), ShapeError, r"item: the array has shape \(2, 3\)"),
    (lambda: float(X), ShapeError, "item: the array has shape"),
    (lambda: bool(X), ShapeError, "item: the array has shape"),
    (lambda: len(vk.array(1.0)), ShapeError, "len: the array has no axes"),
]
if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
    DATA.append((lambda: np.asarray(X, copy=False), ArgumentError, "asarray: copy is False"))

ELEMENTWISE = [
    (lambda: vk.exp(), ArgumentError, "exp: got 0 arguments"),
    (lambda: vk.exp(X, X), ArgumentError, "exp: got 2 arguments"),
    (lambda: vk.exp("a"), DtypeError, "exp: got 'a'"),
    (lambda: vk.exp(None), DtypeError, "exp: got None"),
    (lambda: vk.add(X), ArgumentError, "add: got 1 arguments"),
    (lambda: vk.add(X, "a"), ArgumentError, "add: got str"),
    (lambda: X + None, ArgumentError, "add: got NoneType"),
    (lambda: X + {}, ArgumentError, "add: got dict"),
    (lambda: X + RAGGED, ArgumentError, "add: got nested lists of unequal lengths"),
    (lambda: X + ["a"], DtypeError, r"add: got \['a'\]"),
    (lambda: X + np.ones(2), ShapeError, r"add: shapes \(2, 3\) and \(2,\) do not broadcast"),
    (lambda: vk.array([1]) + 2**40, DtypeError, "1099511627776 is not a value"),
    (lambda: vk.array([1]) + vk.array(np.uint32([1])), DtypeError, "add: int32 and uint32 do not mix"),
    (lambda: vk.where(X, X, X), DtypeError, "where: got float32, expected bool"),
    (lambda: vk.where(X > 0, X), ArgumentError, "where: got 2 arguments"),
]

REDUCTIONS = [
    (lambda: vk.sum(X, axis=5), ShapeError, "sum: axis 5 does not exist in an array of 2 axes"),
    (lambda: vk.sum(X, axis=(0, 0)), ShapeError, r"sum: axis \(0, 0\) names an axis .* twice"),
    (lambda: vk.sum(X, axis=(0, -2)), ShapeError, "sum: axis .* twice"),
    (lambda: vk.sum(X, axis="a"), ArgumentError, "sum: axis: got 'a', expected an int"),
    (lambda: vk.max(X, axis=1.0), ArgumentError, "max: axis: got 1.0"),
    (lambda: vk.mean(X, axis=[0, None]), ArgumentError, "mean: axis: got None"),
    (lambda: vk.min(X, axis=True), ArgumentError, "min: axis: got True"),
    (lambda: vk.softmax(vk.array(1.0)), ShapeError, "softmax: axis -1 does not exist in an array of 0 axes"),
    (lambda: vk.log_softmax(X, axis="q"), ArgumentError, "log_softmax: axis: got 'q'"),
    (lambda: vk.max(vk.zeros((0, 3)), axis=0), ShapeError, "max: no elements along axes"),
    (lambda: vk.layer_norm(X, eps=0), ArgumentError, "eps: got 0"),
    (lambda: vk.layer_norm(X, vk.zeros(2)), ShapeError, r"weight: shapes \(2,\) and \(2, 3\) do not broadcast"),
    (lambda: vk.layer_norm(X, bias=vk.zeros((4, 2, 3))), ShapeError, r"bias: got shape \(4, 2, 3\), expected one"),
    (lambda: vk.sum("a"), DtypeError, "sum: x: got 'a'"),
    (lambda: vk.mean(RAGGED), ArgumentError, "mean: x: got nested lists"),
    (lambda: vk.argmax(None), DtypeError, "argmax: x: got None"),
    (lambda: vk.softmax("a"), DtypeError, "softmax: x: got 'a'"),
    (lambda: vk.rms_norm(X, "a"), DtypeError, "weight: got 'a'"),
    (lambda: vk.rms_norm(X, eps="a"), ArgumentError, "eps: got 'a'"),
]


@pytest.mark.parametrize(("make", "kind", "message"), DATA + ELEMENTWISE + REDUCTIONS)
def test_the_argument_is_named(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


def test_what_numpy_takes_is_taken():
    assert vk.zeros(np.int64(3)).shape == vk.zeros([np.int32(3)]).shape == (3,)
    assert vk.array([1.0], device="cpu").device is vk.device("cpu")
    assert vk.sum(X, axis=np.int64(0)).shape == vk.sum(X, axis=[0]).shape == (3,)
    with vk.device(0):  # data goes where x is
        assert (vk.layer_norm(X, np.ones(3), np.ones(3)) @ np.ones((3, 2)) + [1.0, 2.0]).device is vk.device("cpu")
    assert vk.array([X[0], X[1]]).shape == (2, 3)  # read and copied, outside a traced function


# ---- devices


def test_selectors():
    first = vk.device(0)
    assert first is vk.device("0") and vk.device(np.int64(0)) is first and vk.device("CPU").kind == "reference"
    for selector, kind in ((99, DeviceError), ("99", DeviceError), (-1, DeviceError), (True, ArgumentError)):
        with pytest.raises(kind, match=f"{selector}"):
            vk.device(selector)
    with pytest.raises(ArgumentError, match=r"device: selector: got 3\.5, expected an index, a kind, part of a name"):
        vk.device(3.5)


# ---- transformations


def total(x):
    return vk.sum(x)


TRANSFORMS = [
    (lambda: vk.jit(3), ArgumentError, "jit: got 3, expected a function"),
    (lambda: vk.jit(None)(X), ArgumentError, "jit: got Array, expected a function"),
    (lambda: vk.jit(total, progress=3), ArgumentError, "jit: progress: got 3, expected a function"),
    (lambda: vk.jit(total, donate_argnums="a"), ArgumentError, "donate_argnums: got 'a', expected an int"),
    (lambda: vk.jit(total, donate_argnums=None), ArgumentError, "donate_argnums: got None"),
    (lambda: vk.jit(total, donate_argnums=1.5), ArgumentError, "donate_argnums: got 1.5"),
    (lambda: vk.jit(total, donate_argnums=3)(X), ArgumentError, "donate_argnums: got 3, but .* 1 arg"),
    (lambda: vk.jit(total, donate_argnums=-2)(X), ArgumentError, "donate_argnums: got -2, but .* 1 arg"),
    (lambda: vk.jit(lambda x, y: x, donate_argnums=(0, 0))(X, X), ArgumentError, "donate_argnums: .* twice"),
    (lambda: vk.jit(lambda x, y: x, donate_argnums=(0, -2))(X, X), ArgumentError, "donate_argnums: .* twice"),
    (lambda: vk.jit(total)("a"), DtypeError, "jit: argument: got 'a'"),
    (lambda: vk.jit(total)({X}), DtypeError, "jit: argument: got set"),
    (lambda: vk.jit(lambda d: d)({1: X, "a": X}), ArgumentError, r"tree: keys \[1, 'a'\] of a dict have no order"),
    (lambda: vk.jit(lambda x: "a")(X), DtypeError, "jit: result: got 'a'"),
    (lambda: vk.jit(lambda x: x.numpy())(X), ArgumentError, "a traced array has no value yet"),
    (lambda: vk.jit(lambda x: np.asarray(x))(X), ArgumentError, "a traced array has no value yet"),
    (
        lambda: vk.jit(lambda x: vk.array([x[0], x[1]]))(X),
        ArgumentError,
        "array: got a list that holds Arrays.*vk.stack",
    ),
    (lambda: vk.grad(3), ArgumentError, "grad: got 3, expected a function"),
    (lambda: vk.vjp(3, X), ArgumentError, "vjp: got 3, expected a function"),
    (lambda: vk.grad(total, argnums="a"), ArgumentError, "argnums: got 'a', expected an int"),
    (lambda: vk.grad(total, argnums=None), ArgumentError, "argnums: got None"),
    (lambda: vk.grad(total, argnums=5)(X), ArgumentError, "argnums: got 5, but .* 1 arg"),
    (lambda: vk.grad(total)(), ArgumentError, "argnums: got 0, but .* 0 arg"),
    (lambda: vk.grad(lambda a, b: vk.sum(a * b), argnums=(0, 0))(X, X), ArgumentError, r"argnums: \(0, 0\) .* twice"),
    (lambda: vk.grad(lambda a, b: vk.sum(a * b), argnums=(1, -1))(X, X), ArgumentError, "argnums: .* twice"),
    (lambda: vk.grad(total)(vk.array([1])), DtypeError, "grad: argument 0 is int32, expected a float dtype"),
    (lambda: vk.grad(total)({"a": [vk.array([1])]}), DtypeError, "grad: argument 0 a.0 is int32"),
    (lambda: vk.grad(total)("a"), DtypeError, "grad: argument 0: got 'a'"),
    (lambda: vk.grad(lambda x: vk.sum(x).astype("int32"))(X), DtypeError, "grad: the value is int32, expected float32"),
    (lambda: vk.grad(lambda x: vk.sum(x) > 0)(X), DtypeError, "grad: the value is bool, expected float32"),
    (lambda: vk.grad(lambda x: x)(X), ShapeError, r"grad: the value is \(2, 3\), expected a scalar array"),
    (lambda: vk.grad(lambda x: 3.0)(X), ShapeError, "grad: the value is float"),
    (lambda: vk.grad(lambda x: None)(X), ShapeError, "grad: the value is NoneType"),
    (lambda: vk.grad(total, has_aux=True)(X), ArgumentError, "grad: with has_aux the function returned Array"),
    (lambda: vk.grad(lambda x: (1, 2, 3), has_aux=True)(X), ArgumentError, r"returned \(1, 2, 3\), expected the pair"),
    (lambda: vk.grad(lambda x: vk.sum(vk.array([x[0], x[1]])))(X), ArgumentError, "array: got a list .*vk.stack"),
    (lambda: vk.vjp(lambda x: x * 2, X)[1](vk.array([1.0])), ShapeError, r"vjp: gradient of shape \(1,\)"),
    (lambda: vk.vjp(lambda x: x * 2, X)[1]((X, X)), ArgumentError, "vjp: the gradient's tree differs"),
    (lambda: vk.vjp(lambda x: x * 2, X)[1]("a"), DtypeError, "vjp: gradient: got 'a'"),
    (lambda: vk.vjp(lambda x: x * 2, "a"), DtypeError, "vjp: argument: got 'a'"),
]


@pytest.mark.parametrize(("make", "kind", "message"), TRANSFORMS)
def test_transformations_name_the_argument(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


def test_a_wrong_call_of_the_users_function_stays_the_users():
    """What Python itself says of a call that does not fit the function is not vkdnn's to reword."""
    for call in (
        lambda: vk.jit(total)(),
        lambda: vk.jit(total)(X, X),
        lambda: vk.jit(total)(y=X),
        lambda: vk.vjp(total),
    ):
        with pytest.raises(TypeError, match="argument") as caught:
            call()
        assert not isinstance(caught.value, VkdnnError)


def test_moving_an_array_inside_a_traced_function_is_refused():
    with vk.device("cpu"), pytest.raises(ArgumentError, match="array: an array cannot move to another device"):
        vk.grad(lambda x: vk.sum(vk.array(x, device=vk.device(0))))(X)


# ---- sizes


def test_more_elements_than_indices_is_refused_before_anything_is_allocated():
    column, row = vk.zeros((2**16, 1)), vk.zeros((1, 2**16))
    for make in (
        lambda: vk.zeros((2**20, 2**20)),
        lambda: vk.ones(2**31),
        lambda: column + row,
        lambda: vk.sum(column * row),
        lambda: column @ row,
        lambda: vk.broadcast_to(vk.array(1.0), (2**16, 2**15)),
        lambda: vk.pad(vk.array([1.0]), 2**31),
        lambda: vk.tile(vk.arange(2**16), 2**16),
        lambda: vk.jit(lambda a, b: vk.sum(a * b))(np.zeros((2**16, 1)), np.zeros((1, 2**16))),
    ):
        with pytest.raises(ShapeError, match=r"elements of shape .*, expected at most 2147483647"):
            make()


def test_more_bytes_than_a_buffer_is_a_memory_limit(monkeypatch):
    with vk.device(0) as device:
        monkeypatch.setattr(device, "max_words", 1000)
        x = vk.array(np.ones(1000, np.float32))
        for make in (
            lambda: vk.array(np.ones(1001)),
            lambda: vk.zeros(1001).numpy(),
            lambda: vk.concatenate([x, x]).numpy(),
            lambda: vk.jit(lambda x: vk.outer(x, x[:2]))(x),
            lambda: vk.jit(lambda x: x + 1)(np.ones(1001)),
        ):
            with pytest.raises(MemoryLimitError, match=r"bytes, but one buffer of .* holds 4000; split the array"):
                make()
        with pytest.raises(MemoryLimitError, match=r"an intermediate of shape \(40, 40\) takes 6400 bytes"):
            vk.sum(vk.exp(x[:40].reshape(40, 1) @ x[:40].reshape(1, 40))).numpy()
        assert vk.sum(x).item() == 1000  # and the device goes on


def test_more_workgroups_than_a_launch_has(both):
    """65,535 groups a launch: kernels stride over the rest. 5 million elements at 64 to a group are 78,125."""
    n = 5_000_001
    index = vk.arange(n)
    with vk.device(0):
        total_of_ones = vk.sum(vk.where((index & 1) == 1, 1.0, 0.0)).item()
        last = (vk.array(np.ones(n, np.float32)) + index)[-3:].numpy()
        rows = vk.max(vk.array(np.ones((70_001, 2), np.float32)) * vk.arange(70_001).reshape(-1, 1), axis=1)[
            -2:
        ].numpy()
    assert total_of_ones == n // 2 and last.tolist() == [n - 2, n - 1, n]
    assert rows.tolist() == [69_999, 70_000]


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: vk.realize(X), ArgumentError, "realize: got Array, expected a list"),
        (lambda: vk.zeros((1,) * 33), ShapeError, r"broadcast|axes"),
        (lambda: vk.array_split(X, 2**31), ShapeError, "array_split"),
        (lambda: vk.split(X, [[1], [1, 2]]), ArgumentError, "split: indices_or_sections"),
        (lambda: vk.repeat(X, [[1], [1, 2]]), ArgumentError, "repeat"),
        (lambda: vk.optim.SGD(None), ArgumentError, "learning_rate: got None, expected float"),
        (lambda: vk.optim.AdamW(betas=0.9), ArgumentError, "betas: got 0.9"),
        (lambda: vk.nn.RAPTConfig("a"), ArgumentError, "vocab: got 'a', expected int"),
        (lambda: vk.full_like(vk.array([1]), float("inf")), DtypeError, "inf is not a value of int32"),
        (lambda: vk.zeros(2, vk.array([1, 2])), DtypeError, "dtype"),
    ],
)
def test_odd_arguments_are_answered(call, kind, message):
    with pytest.raises(kind, match=message):
        call()
