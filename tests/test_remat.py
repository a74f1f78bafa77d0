"""remat and flush: the bits of the plain function, with less memory and in several submissions."""

import itertools
from random import Random

import numpy as np
import pytest

import vkdnn as vk
from vkdnn import tree
from vkdnn.check.hard import bits_equal
from vkdnn.errors import ArgumentError, DeviceError
from vkdnn.ir.memory import on_host
from vkdnn.ir.node import toposort
from vkdnn.runtime import kompute

BATCH, WIDTH, DEPTH = 8, 16, 6


@pytest.fixture(params=["cpu", None], ids=["reference", "vulkan"])
def device(request):
    with vk.device(request.param) as device:
        yield device


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32) / 3


def block(w, x):
    return x + vk.softmax(vk.relu(x @ w) @ w)


def chain(every=None, offload=False, cut=False):
    """The loss of DEPTH blocks, in segments of ``every``."""

    def loss(weights, x):
        def blocks(part, x):
            for w in part:
                x = vk.flush(block(w, x)) if cut else block(w, x)
            return x

        run = blocks if every is None else vk.remat(blocks, offload=offload)
        size = every or DEPTH
        for i in range(0, DEPTH, size):
            x = run(weights[i : i + size], x)
        return vk.mean(x * x)

    return loss


def gradient(loss, *arguments, numbers=0):
    """Its Program, and the bits of its value and gradients."""
    step = vk.jit(vk.value_and_grad(loss, numbers))
    found = tree.flatten(step(*arguments))[0]
    return step.program(*arguments), [x.numpy().tobytes() for x in found]


def same_bits(plain, other, *arguments, numbers=0):
    """Whether two functions have the same value and gradients, inside vk.jit and outside."""
    _, want = gradient(plain, *arguments, numbers=numbers)
    _, jitted = gradient(other, *arguments, numbers=numbers)
    lazy = tree.flatten(vk.value_and_grad(other, numbers)(*arguments))[0]
    vk.realize(lazy)
    return want == jitted == [x.numpy().tobytes() for x in lazy]


# ---- what the levers give


def test_every_lever_keeps_the_bits_and_gives_what_it_is_for(device):
    weights, x = [vk.array(numbers(WIDTH, WIDTH, seed=i)) for i in range(DEPTH)], numbers(BATCH, WIDTH, seed=9)
    plain, want = gradient(chain(), weights, x)
    assert plain.submissions == 1 and plain.host_words == 0
    all_of_them = itertools.product((1, 2, 3), (False, True))
    for every, cut in all_of_them if device.kind == "reference" else [(1, True), (3, False)]:
        again, bits = gradient(chain(every, cut=cut), weights, x)
        assert bits == want
        away, bits = gradient(chain(every, offload=True, cut=cut), weights, x)
        assert bits == want
        assert again.peak_words < plain.peak_words * 0.75
        # Two segments: the one input that waits is needed first, when memory is fullest.
        assert away.peak_words < again.peak_words or (every == 3 and away.peak_words == again.peak_words)
        assert again.host_words == 0
        assert away.host_words == BATCH * WIDTH * (DEPTH // every - 1)  # x itself is no value that is computed
        assert away.submissions == again.submissions
        assert again.submissions >= 2 * DEPTH if cut else again.submissions == 1
    cut, bits = gradient(chain(cut=True), weights, x)
    # An end for each block forward and backward, but one kernel computes the last result and its gradient.
    assert bits == want and cut.submissions == 2 * DEPTH


def test_without_levers_a_program_has_none_of_their_nodes(device):
    weights, x = [vk.array(numbers(WIDTH, WIDTH, seed=i)) for i in range(DEPTH)], vk.array(numbers(BATCH, WIDTH))
    kinds = {n.kind for n in toposort([vk.grad(chain())(weights, x)[0].node])}
    assert not kinds & {"after", "kept", "flush", "copy"}


def test_a_function_that_is_not_differentiated_has_the_kernels_of_the_plain_one(device):
    w, x = numbers(WIDTH, WIDTH), numbers(BATCH, WIDTH)
    plain, again = vk.jit(block).program(w, x), vk.jit(vk.remat(block, offload=True)).program(w, x)
    assert [s.spec for s in again.steps] == [s.spec for s in plain.steps]


def test_memory_grows_with_the_root_of_the_depth():
    """Segments of √n: what waits between them, and what is computed again in one of them."""

    def peak(depth, every):
        def loss(weights, x):
            run = vk.remat(lambda part, x: [x := vk.tanh(x @ w) for w in part][-1])
            for i in range(0, depth, every):
                x = run(weights[i : i + every], x)
            return vk.sum(x)

        weights, x = [np.zeros((1, 1), np.float32)] * depth, np.zeros((256, 1), np.float32)
        with vk.device("cpu"):
            return vk.jit(vk.grad(loss)).program(weights, x).peak_words / 256

    assert peak(64, 8) < 3 * 8 + 8
    assert peak(16, 4) < 3 * 4 + 8
    assert peak(64, 64) > 60


# ---- whatever the function is


def test_results_that_are_not_used_and_integers(device):
    def function(x, index, scale):
        y = vk.exp(vk.take(x, index) * scale)
        return {"sum": vk.sum(y * y, axis=-1), "unused": y, "count": index + 1, "note": "text", "none": None}

    def loss(run):
        def value(x, index):
            found = run(x, index, 0.5)
            assert found["note"] == "text" and found["none"] is None and found["count"].dtype is vk.int32
            return vk.sum(found["sum"] / vk.expand_dims(found["count"], -1).astype("float32")[..., 0])

        return value

    assert same_bits(loss(function), loss(vk.remat(function)), numbers(5, 3), np.int32([4, 1, 1]))
    assert same_bits(loss(function), loss(vk.remat(function, offload=True)), numbers(5, 3), np.int32([4, 1, 1]))


def test_the_order_of_additions_is_that_of_the_plain_function(device):
    """A shared weight and an input with uses inside and outside of two segments, and results used in turn."""

    def function(w, x, y):
        a = vk.tanh(x * w)
        b = vk.exp(y * a) * w
        return a + w * x, b - x

    def loss(run):
        def value(w, x):
            a, b = run(w, x * 1.5, x)
            c, d = run(w, b, a * x)
            e, f = run(w, d * w, x)
            return vk.sum(f * c) + vk.sum(e * w) + vk.sum(a) + vk.sum(b * d)

        return value

    x, w = numbers(7, 11, seed=1), numbers(7, 11, seed=2)
    assert same_bits(loss(function), loss(vk.remat(function)), w, x, numbers=(0, 1))
    assert same_bits(loss(function), loss(vk.remat(function, offload=True)), w, x, numbers=(0, 1))


def test_captured_arrays_have_gradients(device):
    def loss(run):
        def value(w, x):
            scaled = w * 3
            return vk.sum(run(lambda x: vk.exp(x * scaled) + vk.tanh(w * x) * vk.sum(w))(x))

        return value

    assert same_bits(loss(lambda f: f), loss(vk.remat), numbers(4, 5), numbers(4, 5, seed=1), numbers=(0, 1))


@pytest.mark.parametrize("offload", [False, True])
def test_segments_in_segments(device, offload):
    def loss(run):
        def value(weights, x):
            inner = run(block)

            def outer(part, x):
                captured = vk.tanh(x)
                for w in part:
                    x = inner(w, x) + run(lambda y: vk.exp(y) * captured)(x)
                return x, inner(part[0], x)

            for i in range(0, 6, 3):
                x, y = run(outer)(weights[i : i + 3], x)
                x = x + y
            return vk.mean(x)

        return value

    weights, x = [numbers(WIDTH, WIDTH, seed=i) for i in range(6)], numbers(BATCH, WIDTH)
    assert same_bits(loss(lambda f: f), loss(lambda f: vk.remat(f, offload=offload)), weights, x, numbers=(0, 1))


def test_jit_grad_and_remat_in_any_order(device):
    w, x = numbers(WIDTH, WIDTH), numbers(BATCH, WIDTH)

    def loss(w, x):
        return vk.sum(block(w, x))

    for other in (vk.remat(vk.jit(loss)), vk.jit(vk.remat(loss)), vk.remat(vk.remat(loss))):
        assert same_bits(loss, other, w, x)

    def slope(run):
        return lambda w, x: vk.sum(run(vk.grad(lambda w, x: vk.sum(vk.tanh(x @ w) @ w)))(w, x) ** 2)

    assert same_bits(slope(lambda f: f), slope(vk.remat), w, x)


def test_gradients_of_gradients(device):
    """The second pass meets what was computed again, and goes over the plain graph all the same."""

    def second(run):
        return lambda x: vk.sum(vk.grad(lambda y: vk.sum(run(lambda z: vk.sin(z @ y) * z * vk.exp(z))(y)))(x) ** 2)

    for levers in (vk.remat, lambda f: vk.remat(f, offload=True), lambda f: lambda x: f(vk.flush(x))):
        assert same_bits(second(lambda f: f), second(levers), numbers(N, N))


@pytest.mark.parametrize("seed", range(5))
def test_gradients_of_gradients_of_random_functions(seed):
    def second(levers):
        first = random_function(seed, levers)
        return lambda x: sum(vk.sum(g * g) for g in vk.grad(lambda y: first([y, x[1], x[2]]), 0)(x[0])[:2])

    with vk.device("cpu"):
        x = [numbers(N, N, seed=seed + i) for i in range(3)]
        assert gradient(second(True), x)[1] == gradient(second(False), x)[1]


def test_folds_scans_and_orders_inside(device):
    def function(x):
        y = vk.cumsum(vk.sort(x), axis=-1) * vk.max(x, axis=-1, keepdims=True)
        return vk.concatenate([y, vk.prod(x, axis=-1, keepdims=True) + vk.logsumexp(x, keepdims=True)], axis=-1)

    x = numbers(3, 40)
    assert same_bits(lambda x: vk.sum(function(x) ** 2), lambda x: vk.sum(vk.remat(function)(x) ** 2), x)


def test_attention_inside(device):
    """With a bias, and with what its score_mod captures inside and outside of the segment."""

    def loss(run):
        def value(weights, x, bias, slope):
            outside = slope * 2

            def part(w, x, bias, slope):
                q, k, v = vk.split((x @ w).reshape(2, 5, 2, 12), 3, axis=-1)
                mod = lambda s, b, h, i, j: s + slope * vk.tanh(s) * outside  # noqa: E731
                return x + vk.attention(q, k, v, causal=True, bias=bias, score_mod=mod).reshape(2, 5, 8)

            for w in weights:
                x = run(part)(w, x, bias, slope)
            return vk.mean(x * x)

        return value

    given = [numbers(8, 24, seed=i) for i in range(2)], numbers(2, 5, 8), numbers(2, 5, 5), numbers(1)
    for offload in (False, True):
        levers = lambda f, offload=offload: vk.remat(f, offload=offload)  # noqa: E731
        assert same_bits(loss(lambda f: f), loss(levers), *given, numbers=(0, 1, 2, 3))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_storage_types(device, dtype):
    def loss(run):
        return lambda w, x: vk.sum(run(block)(w.astype(dtype), vk.tanh(x).astype(dtype)).astype("float32"))

    w, x = numbers(WIDTH, WIDTH), numbers(BATCH, WIDTH)
    assert same_bits(loss(lambda f: f), loss(vk.remat), w, x)
    assert same_bits(loss(lambda f: f), loss(lambda f: vk.remat(f, offload=True)), w, x)


def test_arrays_of_size_zero(device):
    def loss(run):
        def value(x, empty):
            y, rest = run(lambda x, e: (vk.exp(x), vk.concatenate([e * 2, x])))(vk.tanh(x), vk.tanh(empty))
            return vk.sum(vk.flush(y)) + vk.sum(rest) + vk.sum(vk.flush(empty) * 2)

        return value

    x, empty = numbers(4), np.zeros(0, np.float32)
    for offload in (False, True):
        run = lambda f, offload=offload: vk.remat(f, offload=offload)  # noqa: E731
        assert same_bits(loss(lambda f: f), loss(run), x, empty, numbers=(0, 1))


def test_an_identity_and_a_constant(device):
    def loss(run):
        return lambda x: vk.sum(run(lambda x: (x, vk.array(2.0), x.T))(x * 3)[2] ** 2)

    assert same_bits(loss(lambda f: f), loss(vk.remat), numbers(3, 4))
    assert same_bits(loss(lambda f: f), loss(lambda f: vk.remat(f, offload=True)), numbers(3, 4))


def test_values_may_be_read_inside(device):
    seen = []

    def function(x):
        y = vk.exp(x)
        seen.append(y.numpy())
        return y * y

    found = vk.grad(lambda x: vk.sum(vk.remat(function)(x)))(vk.array([0.0, 1.0])).numpy()
    assert bits_equal(found, vk.grad(lambda x: vk.sum(vk.exp(x) * vk.exp(x)))(vk.array([0.0, 1.0])).numpy()).all()
    assert np.array_equal(seen[0], vk.exp(vk.array([0.0, 1.0])).numpy())


N = 6


def combined(random, a, b):
    """One of ten operations, on arrays [N, N]."""
    return random.choice(
        [
            lambda: a * b,
            lambda: vk.softmax(a + b),
            lambda: a @ b * 0.3,
            lambda: vk.tanh(a) + b,
            lambda: a + vk.sum(b, axis=random.randrange(2), keepdims=True) * 0.1,
            lambda: vk.where(a > b, a.T, b),
            lambda: vk.concatenate([a[:3], b[3:]]),
            lambda: vk.cumsum(a, axis=0) * 0.2 - b,
            lambda: vk.take(a, vk.arange(N)[::-1]) + b.reshape(N * N)[::-1].reshape(N, N),
            lambda: vk.maximum(a, b) - vk.max(b),
        ]
    )()


def random_function(seed, levers):
    """A function of a list of arrays: segments in segments that share and capture what there is, or the plain one."""

    def run(values, depth, length, random):
        values = list(values)
        for _ in range(length):
            kind, some = random.random(), [random.choice(values) for _ in range(random.randrange(1, 4))]
            if kind < 0.25 and depth < 3:
                inner, size, wanted = random.randrange(10**9), random.randrange(2, 6), random.randrange(1, 3)
                captured, offload = [random.choice(values) for _ in range(random.randrange(3))], random.random() < 0.5

                def part(given, captured=captured, inner=inner, size=size, wanted=wanted):
                    return run([*given, *captured], depth + 1, size, Random(inner))[-wanted:]

                values += (vk.remat(part, offload=offload) if levers else part)(some)
            elif kind < 0.35:
                values.append(vk.flush(some[0]) if levers else some[0])
            else:
                values.append(combined(random, some[0], random.choice(values[-3:])))
        return values

    return lambda x: vk.sum(run(x, 0, 12, Random(seed))[-1] * 0.1) + vk.mean(run(x, 0, 5, Random(seed))[-1])


@pytest.mark.parametrize("seed", range(20))
def test_random_functions(seed):
    with vk.device("cpu"):
        x = [numbers(N, N, seed=seed + i) * 3 for i in range(3)]
        assert gradient(random_function(seed, True), x)[1] == gradient(random_function(seed, False), x)[1]


def test_a_random_function_on_the_device(both):
    def slopes(*x):
        return vk.value_and_grad(random_function(3, True))(list(x))

    both(slopes, *(numbers(N, N, seed=i) * 3 for i in range(3)))


# ---- Programs in several submissions


def test_submissions_are_counted_and_replayed():
    device = vk.device()
    with device:
        step = vk.jit(lambda x: vk.sum(vk.flush(vk.exp(vk.flush(x * 2)) @ x) @ x, axis=-1))
        for seed in range(3):
            x = numbers(8, 8, seed=seed)
            before = device.opened.submissions
            found = step(x).numpy()
            assert device.opened.submissions == before + 3 == before + step.program(x).submissions
            with vk.device("cpu"):
                assert bits_equal(
                    found, vk.sum(vk.exp(vk.array(x) * 2) @ vk.array(x) @ vk.array(x), axis=-1).numpy()
                ).all()


def test_a_flush_of_data_or_of_a_result_cuts_nothing(device):
    x = vk.array(numbers(4))
    for function in (
        lambda x: vk.flush(x) + 1,
        lambda x: vk.flush(x + 1),
        lambda x: vk.flush(vk.flush(x).reshape(2, 2)) * 2,
    ):
        assert vk.jit(function).program(x).submissions == 1
    assert vk.jit(lambda x: vk.exp(vk.flush((x + 1).reshape(2, 2).T)) @ vk.zeros((2, 2))).program(x).submissions == 2


def test_donation_and_replay(device):
    def trained(loss):
        @vk.jit(donate_argnums=0)
        def step(weights, x):
            value, slope = vk.value_and_grad(loss)(weights, x)
            return [w - 0.1 * g for w, g in zip(weights, slope, strict=True)], value

        weights = [vk.array(numbers(WIDTH, WIDTH, seed=i)) for i in range(DEPTH)]
        first = weights[0]
        values = []
        for seed in range(4):
            weights, value = step(weights, numbers(BATCH, WIDTH, seed=seed))
            values.append(value.item())
        with pytest.raises(DeviceError, match="was donated"):
            first.numpy()
        return values, [w.numpy().tobytes() for w in weights]

    assert trained(chain()) == trained(chain(2, offload=True, cut=True)) == trained(chain(cut=True))


def test_an_array_that_was_donated_is_refused_inside(device):
    x = vk.array(numbers(4))
    vk.jit(lambda x: x + 1, donate_argnums=0)(x)
    with pytest.raises(DeviceError, match="was donated"):
        vk.grad(lambda w: vk.sum(vk.remat(lambda w: vk.exp(w * x))(w)))(vk.array(numbers(4))).numpy()


def test_a_device_lost_between_submissions(monkeypatch):
    """The parts before it have run: what they took over is gone, everything else goes on."""
    device = vk.device()
    with device:

        @vk.jit(donate_argnums=(0, 1))
        def step(early, late, x):
            early = vk.flush(early + x)
            return early, vk.flush(vk.exp(early @ x)) @ x, late + vk.sum(vk.exp(early @ x) @ x)

        def arguments():
            return [vk.array(numbers(8, 8, seed=i)) for i in range(3)]

        want = [y.numpy().tobytes() for y in step(*arguments())]
        early, late, x = arguments()
        calls, submit = [], kompute.KomputeDevice.submit

        def failing(self, sequence):
            calls.append(sequence)
            if len(calls) == 2:
                raise DeviceError("lost")
            submit(self, sequence)

        with monkeypatch.context() as patch:
            patch.setattr(kompute.KomputeDevice, "submit", failing)
            with pytest.raises(DeviceError, match=r"^lost$"):
                step(early, late, x)
        with pytest.raises(DeviceError, match="was donated"):
            early.numpy()
        assert late.numpy().tobytes() == numbers(8, 8, seed=1).tobytes()
        assert x.numpy().tobytes() == numbers(8, 8, seed=2).tobytes()
        assert [y.numpy().tobytes() for y in step(*arguments())] == want


# ---- errors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: vk.remat(3), "^remat: got 3, expected a function"),
        (lambda: vk.remat(vk.exp, offload=2), "^remat: offload: got 2, expected True or False"),
        (lambda: vk.flush([[1], [1, 2]]), "^flush: x: got nested lists of unequal lengths"),
    ],
)
def test_errors_name_the_argument(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


def test_an_error_inside_is_the_function_s_own(device):
    with pytest.raises(ArgumentError, match="do not broadcast"):
        vk.grad(lambda x: vk.sum(vk.remat(lambda x: x + vk.zeros(3))(x)))(vk.array(numbers(4)))


def test_a_device_allocates_what_the_plan_says():
    device = vk.device()
    with device:
        step = vk.jit(vk.grad(chain(2, offload=True)))
        weights, x = [vk.array(numbers(WIDTH, WIDTH, seed=i)) for i in range(DEPTH)], vk.array(numbers(BATCH, WIDTH))
        before = device.opened.allocated_bytes, device.opened.remote_bytes
        slopes = step(weights, x)
        program = step.program(weights, x)
        results = sum(4 * s.node.words for s in slopes)
        assert device.opened.allocated_bytes - before[0] == 4 * program.peak_words + results
        assert device.opened.remote_bytes - before[1] == 4 * program.host_words > 0


def test_where_values_lie():
    with vk.device("cpu"):
        weights, x = [numbers(WIDTH, WIDTH)] * DEPTH, numbers(BATCH, WIDTH)
        program = vk.jit(vk.grad(chain(2, offload=True))).program(weights, x)
    assert all(on_host(node) for node in program.host_plan.places)
    assert not any(on_host(node) for node in program.plan.places)
