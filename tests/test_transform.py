"""jit, grad, value_and_grad, vjp: signatures, trees, donation, results that stay valid, and errors."""

import numpy as np
import pytest

import vkdnn as vk
from vkdnn.check.hard import bits_equal
from vkdnn.errors import ArgumentError, DeviceError, DtypeError, ShapeError


@pytest.fixture(params=["cpu", None], ids=["reference", "vulkan"])
def device(request):
    with vk.device(request.param) as device:
        yield device


def ones(*shape, times=1.0):
    return np.full(shape, times, np.float32)


def test_a_training_step_is_one_program(device):
    @vk.jit(donate_argnums=0)
    def step(parameters, x):
        loss, slope = vk.value_and_grad(lambda p: vk.mean((x @ p["w"] + p["b"]) ** 2))(parameters)
        return {k: parameters[k] - 0.1 * slope[k] for k in parameters}, loss

    parameters = {"w": vk.array(np.linspace(-1, 1, 12).reshape(4, 3)), "b": vk.array(ones(3))}
    losses = []
    for _ in range(5):
        parameters, loss = step(parameters, ones(8, 4))
        losses.append(loss)
    values = [float(x) for x in losses]
    assert values == sorted(values, reverse=True) and len(step.traces) == 1


def test_one_submission_a_call():
    device = vk.device()
    with device:
        step = vk.jit(lambda x, w: vk.softmax(vk.gelu(x @ w) @ w))
        x, w = vk.array(ones(4, 8)), vk.array(ones(8, 8))
        step(x, w)
        before = device.opened.submissions
        step(x, w).numpy()  # a small result comes back with the submission
        assert device.opened.submissions == before + 1
        assert len(step.program(x, w).steps) >= 2


def test_jit_of_the_gradient_of_a_jitted_function(device):
    square = vk.jit(lambda x: vk.sum(x * x))
    value, slope = vk.jit(vk.value_and_grad(square))(ones(3, times=2.0))
    assert value.item() == 12 and slope.numpy().tolist() == [4, 4, 4]


# ---- gradients


def test_trees_of_arguments(device):
    def loss(parameters, scale):
        return vk.sum(parameters["a"][0] * parameters["b"]) * scale

    parameters = {"b": vk.array([3.0]), "a": [vk.array([2.0]), vk.array([9.0])]}
    value, slope = vk.value_and_grad(loss)(parameters, 2.0)
    assert value.item() == 12
    assert slope["a"][0].item() == 6 and slope["b"].item() == 4
    assert slope["a"][1].numpy().tolist() == [0]  # no dependence


def test_equal_arrays_as_two_arguments_have_gradients_of_their_own(device):
    x = vk.array([2.0, 3.0])
    first, second = vk.grad(lambda a, b: vk.sum(a * a * b), (0, 1))(x, x)
    assert first.numpy().tolist() == [8, 18] and second.numpy().tolist() == [4, 9]
    captured = vk.grad(lambda a: vk.sum(a * x))(x)
    assert captured.numpy().tolist() == [2, 3]
    jitted = vk.jit(lambda a, b: vk.grad(lambda a, b: vk.sum(a * a * b), (0, 1))(a, b))
    assert [g.numpy().tolist() for g in jitted(x, x)] == [[8, 18], [4, 9]]


def test_has_aux(device):
    def loss(x):
        return vk.sum(x * x), {"largest": vk.max(x)}

    (value, extra), slope = vk.value_and_grad(loss, has_aux=True)(vk.array([1.0, 2.0]))
    assert value.item() == 5 and extra["largest"].item() == 2 and slope.numpy().tolist() == [2, 4]
    slope, extra = vk.grad(loss, has_aux=True)(vk.array([1.0, 2.0]))
    assert extra["largest"].item() == 2 and slope.numpy().tolist() == [2, 4]


def test_argnums_count_from_either_end(device):
    x, y = vk.array([2.0]), vk.array([3.0])
    assert vk.grad(lambda a, b: vk.sum(a * a * b), -1)(x, y).item() == 4
    assert [g.item() for g in vk.grad(lambda a, b: vk.sum(a * a * b), (-1, 0))(x, y)] == [4, 12]
    assert vk.grad(lambda a: vk.sum(a), [0])(x)[0].item() == 1 and vk.grad(lambda a: vk.sum(a), ())(x) == ()


def test_gradients_of_steps_in_long_arrays():
    """Positions are counted in integers: float32 knows no odd numbers past 2**24."""
    with vk.device("cpu"):
        n = 2**24 + 2001
        slope = vk.grad(lambda x: vk.sum(x[1::7]))(vk.array(np.zeros(n, np.float32))).numpy()
    assert np.array_equal(np.flatnonzero(slope), np.arange(1, n, 7))


def test_vjp_takes_a_gradient_of_the_value_s_shape(device):
    value, pull = vk.vjp(lambda x, w: {"y": x @ w, "s": vk.sum(x)}, vk.array(ones(2, 3)), vk.array(ones(3, 2)))
    x_slope, w_slope = pull({"y": vk.array(ones(2, 2)), "s": vk.array(10.0)})
    assert value["y"].numpy().tolist() == [[3, 3], [3, 3]]
    assert x_slope.numpy().tolist() == [[12] * 3] * 2 and w_slope.numpy().tolist() == [[2, 2]] * 3
    with pytest.raises(ShapeError, match=r"vjp: gradient of shape \(3,\) for a value of shape \(2, 2\)"):
        pull({"y": vk.array(ones(3)), "s": vk.array(1.0)})
    with pytest.raises(ArgumentError, match="vjp: the gradient's tree differs"):
        pull(vk.array(ones(2, 2)))


def test_second_derivatives(device):
    def curvature(x):
        return vk.grad(lambda x: vk.sum(vk.grad(lambda y: vk.sum(y**4))(x)))(x)

    assert curvature(vk.array([1.0, 2.0])).numpy().tolist() == [12, 48]


def test_reading_a_value_inside_does_not_cut_the_gradient(device):
    def loss(x):
        y = x * x
        assert float(vk.sum(y)) > 0  # as a print or a check would
        y.numpy(), x.numpy()
        return vk.sum(y * x)

    assert vk.grad(loss)(vk.array([1.0, 2.0])).numpy().tolist() == [3, 12]


def test_the_gradient_of_a_jitted_function_is_right_or_refused(device):
    function = vk.jit(lambda x: vk.sum(x * x))
    try:
        slope = vk.grad(function)(vk.array([1.0, 2.0]))
    except vk.VkdnnError as error:
        assert "jit" in str(error)
    else:
        assert slope.numpy().tolist() == [2, 4]


def test_gradient_errors_name_the_argument(device):
    x = vk.array([1.0, 2.0])
    with pytest.raises(ShapeError, match=r"grad: the value is \(2,\), expected a scalar array"):
        vk.grad(lambda x: x * 2)(x)
    with pytest.raises(ShapeError, match="grad: the value is float"):
        vk.grad(lambda x: 1.0)(x)
    with pytest.raises(DtypeError, match="grad: argument 0 a is int32, expected a float dtype"):
        vk.grad(lambda p: vk.sum(p["a"] * 1.0))({"a": vk.array([1, 2])})
    with pytest.raises(ArgumentError, match="argnums: got 1, but the function was called with 1 arguments"):
        vk.grad(lambda x: vk.sum(x), 1)(x)


# ---- jit: signatures


def test_one_trace_for_each_shape_dtype_and_structure(device):
    calls = []

    @vk.jit
    def double(x):
        calls.append(1)
        return vk.sum(x["a"] if isinstance(x, dict) else x) * 2

    for value in (1.0, 2.0, 3.5):
        assert double(ones(3, times=value)).item() == 6 * value
    assert len(calls) == 1
    assert double(vk.array(ones(3))).item() == 6  # an Array of the same shape and dtype
    assert len(calls) == 1
    double(ones(4)), double({"a": ones(3)}), double(np.float64(2.0) * ones(4).astype(np.float64))
    assert len(calls) == 3
    for number in (1.0, 2, 3.0):
        assert double(vk.zeros(()) + number).item() == 2 * number
    assert len(calls) == 4


def test_python_numbers_are_arguments_not_constants(device):
    scale = vk.jit(lambda x, s, flag: vk.where(flag, x * s, x))
    x = ones(2)
    assert [scale(x, s, True).numpy()[0] for s in (0.5, 2.0, -1.0)] == [0.5, 2, -1]
    assert scale(x, 7.0, False).numpy()[0] == 1
    assert len(scale.traces) == 1
    assert vk.jit(lambda i: i + 1)(5).item() == 6


def test_keyword_arguments_are_arguments(device):
    @vk.jit(donate_argnums=0)
    def scaled(x, *, by, plus=0.0):
        return x * by["a"] + plus

    for by, plus in ((2.0, 1.0), (3.0, 5.0)):
        found = scaled(vk.array(ones(2)), plus=plus, by={"a": by})
        assert found.numpy().tolist() == [by + plus] * 2
    assert len(scaled.traces) == 1
    assert scaled(vk.array(ones(2)), by={"a": 2}).numpy().tolist() == [2, 2] and len(scaled.traces) == 2
    assert vk.grad(lambda x: vk.sum(scaled(x, by={"a": np.float64(3)})))(vk.array(ones(2))).numpy().tolist() == [3, 3]
    assert len(scaled.program(vk.array(ones(2)), by={"a": 2}).steps) == 1


def test_structures_of_results(device):
    x = ones(2, 3)
    found = vk.jit(lambda x: {"a": (x, None), "b": [x.T, x[:1], vk.zeros(2), x.reshape(6), x]})(x)
    assert found["a"][1] is None and (found["a"][0].numpy() == x).all()
    assert [r.shape for r in found["b"]] == [(3, 2), (1, 3), (2,), (6,), (2, 3)]
    assert all((r.numpy() == (0 if r.shape == (2,) else 1)).all() for r in found["b"])


def test_what_needs_no_kernel_still_comes_back(device):
    x = np.arange(3, dtype=np.float32)
    assert vk.jit(lambda x: x)(x).numpy().tolist() == [0, 1, 2]
    assert vk.jit(lambda x: x.reshape(3, 1))(vk.array(x)).shape == (3, 1)
    assert vk.jit(lambda: [])() == []


def test_arguments_of_size_zero(device):
    empty = np.zeros((0, 3), np.float32)
    for argument in (empty, vk.array(empty)):
        first, second, third = vk.jit(lambda x: (x + 1, vk.sum(x), x))(argument)
        assert first.shape == third.shape == (0, 3) and second.item() == 0 and first.numpy().size == 0


def test_functions_that_jit_does_not_know_work_inside(device):
    def normed(x):
        return vk.rms_norm(x) if x.ndim > 1 else x

    found = vk.jit(lambda xs: [normed(x) * len(xs) for x in xs])([ones(2, 4), ones(3)])
    assert found[1].numpy().tolist() == [2, 2, 2]


def test_a_traced_value_is_not_known(device):
    def branch(x):
        return x if vk.sum(x) > 0 else -x

    with pytest.raises(ArgumentError, match=r"a traced array has no truth value.*vk\.where"):
        vk.jit(branch)(ones(2))
    with pytest.raises(ArgumentError, match="a traced array has no value yet"):
        vk.jit(lambda x: x * float(vk.sum(x)))(ones(2))
    assert branch(vk.array(ones(2))).numpy().tolist() == [1, 1]  # without jit it is
    shown = []
    vk.jit(lambda x: shown.append(f"{x} {x!r}") or x + 1)(ones(2))
    assert shown == ["<traced float32[2]> vk.Array(<traced float32[2]>)"]


def test_arrays_of_two_devices_do_not_meet():
    with vk.device("cpu"):
        here = vk.array(ones(2))
    with vk.device():
        there = vk.array(ones(2))
    for function in (
        lambda: here + there,
        lambda: here @ there,
        lambda: vk.jit(lambda a, b: a + b)(here, there),
    ):
        with pytest.raises(DeviceError, match=r"arrays live on .* and .*; move one with vk\.array"):
            function()
    assert (here + vk.array(there, device=here.device)).numpy().tolist() == [2, 2]


# ---- jit: what stays valid


def test_earlier_results_stay_valid(device):
    function = vk.jit(lambda x, y: (x, x * 2, y + 1, x.reshape(1, 2)))
    y = vk.array(ones(2))
    kept = [function(ones(2, times=k), y) for k in range(4)]
    for k, (first, second, third, fourth) in enumerate(kept):
        assert first.numpy().tolist() == [k, k] and second.numpy().tolist() == [2 * k, 2 * k]
        assert third.numpy().tolist() == [2, 2] and fourth.numpy().tolist() == [[k, k]]


def test_earlier_results_can_be_used_later(device):
    function = vk.jit(lambda x: vk.exp(x) - vk.sum(x))
    kept = [function(ones(3, times=k)) for k in range(3)]
    unfinished = kept[0] + kept[1]
    for k in range(3, 9):
        kept.append(function(ones(3, times=k)))
    want = np.concatenate([function(ones(3, times=k)).numpy() for k in range(9)])
    assert bits_equal(vk.concatenate(kept).numpy(), want).all()
    assert bits_equal(unfinished.numpy(), want[:3] + want[3:6]).all()


def test_results_feed_the_same_function(device):
    function = vk.jit(lambda x: x * 2)
    x = vk.array(ones(2))
    for _ in range(8):
        x = function(x)
    assert x.numpy().tolist() == [256, 256]


def test_captured_arrays_keep_their_value(device):
    make = vk.jit(lambda x: x * 2)
    captured = make(ones(2))
    use = vk.jit(lambda x: x + captured)
    assert use(ones(2)).numpy().tolist() == [3, 3]
    make(ones(2, times=50))  # writes a new result where the captured one was
    assert use(ones(2)).numpy().tolist() == [3, 3]


# ---- donation


def test_donated_arrays_are_updated_in_place(device):
    step = vk.jit(lambda p, g: p - g, donate_argnums=0)
    p = vk.array(ones(4))
    buffer = p.storage().handle()
    after = step(p, ones(4))
    assert after.storage().handle() is buffer and after.numpy().tolist() == [0] * 4
    with pytest.raises(DeviceError, match=r"donated to a jitted function.*donate_argnums"):
        p.numpy()
    with pytest.raises(DeviceError, match="donated"):
        (p + 1).numpy()
    with pytest.raises(DeviceError, match="donated"):
        step(p, ones(4))
    assert step(after, ones(4)).numpy().tolist() == [-1] * 4


def test_donation_never_changes_a_result(device):
    functions = [
        lambda p, q: (p, p + 1),
        lambda p, q: (p + 1, p.reshape(4, 1), q),
        lambda p, q: (p[::-1] + p, p),
        lambda p, q: (p + vk.sum(p), q * p, p - q),
        lambda p, q: (q, p),
        lambda p, q: (vk.softmax(p) + q, vk.softmax(q) + p),
        lambda p, q: (p * 2, vk.sum(p * q), vk.concatenate([q, p])),
        lambda p, q: (vk.where(vk.arange(4) > 1, p[::-1], q), vk.exp(q)),
        lambda p, q: (p @ vk.stack([q, p], 1), p * 1.5),
    ]
    p, q = np.array([1, 2, 3, 5], np.float32), np.array([-1, 0.5, 4, 2], np.float32)
    for k, function in enumerate(functions):
        want = [r.numpy() for r in vk.jit(function)(p, q)]
        donating = vk.jit(function, donate_argnums=(0, 1))
        for _ in range(2):
            found = donating(vk.array(p), vk.array(q))
            for a, b in zip(want, found, strict=True):
                assert bits_equal(a, b.numpy()).all(), k


def test_one_array_given_twice_and_donated_once(device):
    function = vk.jit(lambda a, b: (a + 1, vk.sum(b) + vk.zeros(3)), donate_argnums=0)
    x = vk.array(ones(2))
    try:
        first, second = function(x, x)
    except vk.VkdnnError as error:
        assert "donat" in str(error)
    else:
        assert first.numpy().tolist() == [2, 2] and second.numpy().tolist() == [2, 2, 2]


def test_a_donated_array_that_another_function_captured_is_refused_there(device):
    captured = vk.array(ones(2))
    use = vk.jit(lambda x: x + captured)
    assert use(ones(2)).numpy().tolist() == [2, 2]
    vk.jit(lambda c: c + 1, donate_argnums=0)(captured)
    with pytest.raises(DeviceError, match="donated"):
        use(ones(2)).numpy()


def test_a_donated_result_is_safe_from_its_maker(device):
    make, step = vk.jit(lambda seed: vk.zeros(2) + seed), vk.jit(lambda p: p * 2, donate_argnums=0)
    p = step(make(1.0))
    make(7.0)
    assert p.numpy().tolist() == [2, 2]
    p = step(p)
    q = step(make(5.0))
    assert p.numpy().tolist() == [4, 4] and q.numpy().tolist() == [10, 10]


def test_an_expression_whose_value_was_donated_is_computed_again(device):
    x = vk.array(ones(2))
    y = x + 1
    view, later = y.reshape(2, 1), y * 3
    vk.realize([y, view])
    assert vk.jit(lambda q: q * 1.5, donate_argnums=0)(y).numpy().tolist() == [3, 3]
    assert later.numpy().tolist() == [6, 6] and (x + 1).numpy().tolist() == [2, 2]


def test_donate_argnums_beyond_the_arguments(device):
    with pytest.raises(ArgumentError, match="donate_argnums: got 1, but the function was called with 1 arg"):
        vk.jit(lambda x: x, donate_argnums=1)(ones(2))


def test_progress_tells_of_each_kernel():
    seen = []
    salt = float(np.random.default_rng().random())  # a kernel that no store holds
    with vk.device():
        vk.jit(lambda x: vk.sum(x * salt), progress=lambda *step: seen.append(step))(ones(2, 3)).numpy()
    assert [step[:2] for step in seen] == [(1, 1)] and seen[0][2].startswith("fold")


def test_a_captured_expression_whose_value_was_donated_is_refused_by_name():
    """A Program that was traced over a known value says so when the value is gone, and does not crash."""
    x = vk.array([1.0, 2.0])
    y = x * 2.0
    w = y + 1.0
    y.numpy()
    f = vk.jit(lambda a: a + w)
    assert f(vk.array([1.0, 1.0])).numpy().tolist() == [4.0, 6.0]
    vk.jit(lambda q: q * 3.0, donate_argnums=0)(y)
    with pytest.raises(DeviceError, match="donated"):
        f(vk.array([1.0, 1.0]))


@pytest.mark.parametrize("name", ["cpu", None])
def test_donated_host_data_leaves_the_results_alone(name):
    function = vk.jit(lambda a: a + 1, donate_argnums=0)
    with vk.device(name):
        first, second = function(np.array([1, 2, 3])), function(np.array([10, 20, 30]))
        assert first.numpy().tolist() == [2, 3, 4] and second.numpy().tolist() == [11, 21, 31]


@pytest.mark.parametrize("name", ["cpu", None])
def test_results_have_memory_of_their_own(name):
    with vk.device(name):
        constant, x = vk.array([5.0, 6.0]), vk.array([1.0, 2.0])
        first, second, held = vk.jit(lambda x: (x * 0, x * 0, constant))(x)
        total, twice = vk.jit(lambda a, b: (a + 1, b + 2), donate_argnums=(0, 1))(first, second)
        assert total.tolist() == [1, 1] and twice.tolist() == [2, 2]
        vk.jit(lambda c: c * 2, donate_argnums=0)(held)
        assert constant.tolist() == [5, 6] and vk.jit(lambda x: (constant, x))(x)[0].tolist() == [5, 6]
