"""Random chains of views against NumPy, fused into elementwise, fold, product and gather kernels."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vkdnn as vk


def test_views_are_indices_and_cost_nothing(both):
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    (found,) = both(lambda x: vk.transpose(x[:, ::-1, 1:3], (2, 0, 1)).reshape(4, 3) * 2, x)
    assert (found == x[:, ::-1, 1:3].transpose(2, 0, 1).reshape(4, 3) * 2).all()


LIMIT = 2000  # elements a chain may grow to


def factorisations(n, draw):
    """A random shape of n elements."""
    shape = []
    while n > 1 and len(shape) < 4:
        divisors = [d for d in range(2, n + 1) if n % d == 0]
        d = draw(st.sampled_from(divisors))
        shape.append(d)
        n //= d
    shape.append(n)
    for _ in range(draw(st.integers(0, 1))):
        shape.insert(draw(st.integers(0, len(shape))), 1)
    return tuple(shape)


@st.composite
def chains(draw, longest=6):
    """A shape and a list of steps; each step is a name and its arguments."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    first, steps = shape, []
    for _ in range(draw(st.integers(1, longest))):
        kind = draw(st.sampled_from(["reshape", "permute", "slice", "pad", "broadcast", "map", "join", "sum", "iota"]))
        size = int(np.prod(shape))
        if kind == "reshape":
            args = factorisations(size, draw) if size else shape
            shape = args
        elif kind == "permute":
            args = tuple(draw(st.permutations(range(len(shape)))))
            shape = tuple(shape[a] for a in args)
        elif kind == "slice":
            args = []
            for n in shape:
                start, stop = sorted((draw(st.integers(0, n)), draw(st.integers(0, n))))
                step = draw(st.sampled_from([1, 1, 2, 3, -1, -2]))
                bounds = (None, None) if start == stop or step < 0 or draw(st.booleans()) else (start, stop)
                args.append(slice(*bounds, step))
            args = tuple(args)
            shape = np.empty(shape)[args].shape
        elif kind == "pad":
            args = tuple((draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in shape)
            grown = tuple(n + b + a for n, (b, a) in zip(shape, args, strict=True))
            if np.prod(grown) > LIMIT:
                continue
            shape = grown
        elif kind == "broadcast":
            args = (draw(st.integers(1, 3)), *(draw(st.integers(2, 4)) if n == 1 else n for n in shape))
            if len(args) > 6 or np.prod(args) > LIMIT:
                continue
            shape = args
        elif kind == "join":
            args = draw(st.integers(0, len(shape) - 1)) if shape else None
            if args is None or 2 * size > LIMIT:
                continue
            shape = tuple(2 * n if i == args else n for i, n in enumerate(shape))
        elif kind == "sum":
            args = draw(st.integers(0, len(shape) - 1)) if shape else None
            if args is None:
                continue
            shape = tuple(1 if i == args else n for i, n in enumerate(shape))
        else:
            args = draw(st.integers(0, len(shape) - 1)) if shape and kind == "iota" else None
            if kind == "iota" and args is None:
                continue
        steps.append((kind, args))
    return first, steps


def in_vkdnn(x, steps):
    for kind, args in steps:
        if kind == "reshape":
            x = vk.reshape(x, args)
        elif kind == "permute":
            x = vk.transpose(x, args)
        elif kind == "slice":
            x = x[args]
        elif kind == "pad":
            x = vk.pad(x, args)
        elif kind == "broadcast":
            x = vk.broadcast_to(x, args)
        elif kind == "join":
            x = vk.concatenate([x, -x], axis=args)
        elif kind == "sum":
            x = vk.sum(x, args, keepdims=True)
        elif kind == "iota":
            x = x + vk.broadcast_to(vk.arange(x.shape[args]).reshape(-1, *(1,) * (x.ndim - args - 1)), x.shape)
        else:
            x = x * 2 + 1
    return x


def in_numpy(x, steps):
    for kind, args in steps:
        if kind == "reshape":
            x = x.reshape(args)
        elif kind == "permute":
            x = x.transpose(args)
        elif kind == "slice":
            x = x[args]
        elif kind == "pad":
            x = np.pad(x, args)
        elif kind == "broadcast":
            x = np.broadcast_to(x, args)
        elif kind == "join":
            x = np.concatenate([x, -x], axis=args)
        elif kind == "sum":
            x = x.sum(axis=args, keepdims=True)
        elif kind == "iota":
            x = x + np.arange(x.shape[args]).reshape(-1, *(1,) * (x.ndim - args - 1))
        else:
            x = x * 2 + 1
    return x


def fast(examples):
    return settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


# Values are small integers and sums of them, so that every order of additions gives the same float.


def integers(shape):
    return (np.arange(np.prod(shape, dtype=int)) * 7 % 11 - 5).astype(np.float32).reshape(shape)


@fast(400)
@given(chains())
def test_chains_on_the_reference(chain):
    shape, steps = chain
    x = integers(shape)
    with vk.device("cpu"):
        found = in_vkdnn(vk.array(x), steps).numpy()
    want = in_numpy(x.astype(np.float64), steps)
    assert found.shape == want.shape and (found == want).all()


@fast(40)
@given(chains(), chains(longest=3))
def test_chains_on_the_device(both, first, second):
    # Two chains a Program, the second after an elementwise function and a gather of the first's kind.
    (shape, steps), (other, more) = first, second
    x, y = integers(shape), integers(other)

    def run(x, y):
        return [in_vkdnn(x, steps) * 1.5, in_vkdnn(vk.abs(y), more)]

    found = both(run, x, y)
    assert (found[0] == in_numpy(x.astype(float), steps) * 1.5).all()
    assert (found[1] == in_numpy(np.abs(y.astype(float)), more)).all()


@fast(150)
@given(chains(longest=4))
def test_gradients_of_chains_are_their_transposes(chain):
    """<chain(x), g> = <x, pullback(g)> for the linear chains: checked with integers, exactly."""
    shape, steps = chain
    steps = [s for s in steps if s[0] not in ("map", "iota")]
    x = integers(shape)
    with vk.device("cpu"):
        value, pull = vk.vjp(lambda x: in_vkdnn(x, steps), vk.array(x))
        if value.size == 0:
            return
        g = integers(value.shape)[..., ::-1].copy()
        (back,) = pull(vk.array(g))
        assert back.shape == shape
        left = float((value.numpy().astype(float) * g).sum())
        assert left == float((x.astype(float) * back.numpy()).sum())


@fast(60)
@given(chains(longest=4), st.integers(0, 3))
def test_chains_as_operands_of_products_and_gathers(chain, which):
    shape, steps = chain
    x = integers(shape)
    view = in_numpy(x.astype(np.float64), steps)
    n = view.shape[-1] if view.ndim else 1
    w = integers((n, 3))
    rows = np.arange(5, dtype=np.int32) % max(1, view.shape[0] if view.ndim else 1)
    with vk.device("cpu"):
        y = in_vkdnn(vk.array(x), steps)
        if which == 0 and view.ndim >= 2 and view.size:
            assert ((y @ vk.array(w)).numpy() == view @ w).all()
        elif which == 1 and view.ndim and view.size:
            assert (vk.take(y, vk.array(rows)).numpy() == view[rows]).all()
        elif which == 2 and view.ndim >= 2 and view.size:
            scores = y @ vk.swapaxes(y, -1, -2)
            assert (scores.numpy() == view @ np.swapaxes(view, -1, -2)).all()
        else:
            assert (vk.sum(y).numpy() == view.sum()).all()
