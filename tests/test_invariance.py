"""What must not change a bit: the batch around a row, the schedule of a kernel, and where a graph is cut."""

from dataclasses import replace

import numpy as np
import pytest

import vkdnn as vk
from vkdnn import nn, tree
from vkdnn.check.hard import HARD_FLOATS, bits_equal
from vkdnn.kernels.base import KernelSpec, Target
from vkdnn.kernels.matmul_schedules import TileSchedule
from vkdnn.optim import AdamW
from vkdnn.streams import Stream

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ORDERS = ["sequential", "chunked"]
RNG = np.random.default_rng(4)
FINITE = HARD_FLOATS[np.isfinite(HARD_FLOATS)]


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def same(a, b):
    return bits_equal(a, b).all()


# ---- the batch around a row

ROWS = np.concatenate([normal(9, 150), RNG.permuted(np.resize(FINITE, (4, 150)), axis=1)])
WEIGHTS, GAIN = normal(150, 9), normal(150)
ATTENTION = nn.ReLULinearAttention(width=8, heads=2, key_width=4, value_width=4)
# Equal widths: many products share a shader.
SIZES = {"vocab": 8, "width": 8, "layers": 2, "heads": 2, "key_width": 4, "value_width": 4, "hidden": 8}


def attention(x):
    return ATTENTION(ATTENTION.init(Stream(1)), x)


def model(order):
    return lambda tokens: nn.RAPTModel(nn.RAPTConfig(**SIZES, order=order)).__call__(MODEL_PARAMS, tokens)


with vk.device("cpu"):
    MODEL_PARAMS = tree.map_leaves(lambda p: p.numpy(), nn.RAPTModel(nn.RAPTConfig(**SIZES)).init(seed=2))

TOKENS = RNG.integers(0, 8, (13, 70)).astype(np.int32)
PER_TOKEN = normal(13, 70, 2, 5)

BATCHED = {
    "softmax": (vk.softmax, ROWS),
    "log_softmax": (vk.log_softmax, ROWS),
    "layer_norm": (lambda x: vk.layer_norm(x, GAIN, GAIN), ROWS),
    "rms_norm": (lambda x: vk.rms_norm(x, GAIN), ROWS),
    "sums": (lambda x: [vk.sum(x, 1), vk.var(x, 1), vk.norm(x, 2, 1), vk.prod(x, 1)], ROWS),
    "positions": (lambda x: [vk.argmax(x, 1), vk.max(x, 1)], ROWS),
    "matmul": (lambda x: x @ WEIGHTS, ROWS),
    "matmul of a batch": (lambda x: x @ vk.swapaxes(x, 1, 2), normal(13, 5, 140)),
    "cumsum": (lambda x: [vk.cumsum(x, 1), vk.cumprod(x, 1, reverse=True), vk.cummax(x, 1)], ROWS),
    "linear_recurrence": (lambda x: vk.linear_recurrence(vk.sigmoid(x), x), ROWS),
    "sort": (lambda x: [vk.sort(x), vk.argsort(x, descending=True), *vk.top_k(x, 5)], ROWS),
    "take": (lambda x: vk.take_along_axis(x, vk.argsort(x)), ROWS),
    **{
        f"scan, {order}": (
            lambda k, order=order: [
                r
                for scan in (vk.scan_prefix_outer(k, k, k, k, order=order), vk.scan_suffix_outer(vk.outer_col(k, k), k))
                for r in scan
                if r is not None
            ],
            PER_TOKEN,
        )
        for order in ORDERS
    },
    "attention": (attention, normal(13, 70, 8)),
    **{f"model, {order}": (model(order), TOKENS) for order in ORDERS},
}


@pytest.mark.parametrize("name", BATCHED)
def test_a_row_does_not_depend_on_the_batch_around_it(both, name):
    function, batch = BATCHED[name]
    whole = both(function, batch)
    for part in (slice(4, 5), slice(2, 9)):
        for alone, among in zip(both(function, batch[part].copy()), whole, strict=True):
            assert same(alone, among[part])


# ---- schedules

TARGETS = [
    Target(True, 256, 32_768, 4),
    Target(True, 1024, 32_768, 8),
    Target(False, 256, 16_384, 1),
    Target(False, 1024, 49_152, 32),
    Target(False, 1024, 65_536, 64),
]


def families(base=KernelSpec):
    """Every kernel family that is no base of others."""
    below = base.__subclasses__()
    return [f for b in below for f in families(b)] if below else [base]


def legal(spec, original):
    """Schedules of a spec that some device would take; loops that ask to be unrolled, which software devices take long
    to compile, as loops: a compiler may unroll either. Of a product's staged tiles, which differ in size, the smallest.
    """
    found = (s for target in TARGETS for s in original(spec, target))
    found = (s for s in found if not (isinstance(s, TileSchedule) and s.stage_k and s.slices == 1 and s.columns > 4))
    return list(dict.fromkeys(replace(s, unroll=False) if getattr(s, "unroll", False) else s for s in found))


def forced(patch, number, seen):
    """Every kernel takes its schedule of this number; ``seen`` collects (family, schedule)."""
    for family in families():
        original = family.schedules

        def chosen(self, target, original=original):
            found = legal(self, original)
            schedule = found[number % len(found)]
            seen.setdefault(type(self).__name__, set()).add(schedule)
            seen["most"] = max(seen.get("most", 0), len(found))
            return (schedule,)

        patch.setattr(family, "schedules", chosen)


def training_step():
    network = nn.RAPTModel(nn.RAPTConfig(**SIZES | {"layers": 1}))
    optimizer = AdamW(warmup_steps=1, total_steps=3)

    def step(params, state, tokens):
        loss, slopes = vk.value_and_grad(network.loss)(params, tokens)
        params, state = optimizer.update(params, slopes, state)
        return params, state, loss

    def run(jit=True):
        params = network.init(seed=3)
        state = optimizer.init(params)
        results = tree.flatten((vk.jit(step) if jit else step)(params, state, TOKENS[:2, :68]))[0]
        vk.realize(results)
        return [r.numpy() for r in results]

    return run


def test_no_schedule_changes_a_training_step():
    run = training_step()
    with vk.device("cpu"):
        want = run()
    seen, number = {}, 0
    while number < seen.get("most", 1):
        with pytest.MonkeyPatch.context() as patch:
            forced(patch, number, seen)
            for k, (a, b) in enumerate(zip(want, run(), strict=True)):
                assert same(a, b), f"result {k} under schedules of number {number}"
        number += 1
    assert {"ExprSpec", "FoldSpec", "MatmulSpec", "ScatterSpec"} <= set(seen)
    assert all(len(schedules) >= 2 for name, schedules in seen.items() if name in ("ExprSpec", "FoldSpec"))


@pytest.mark.parametrize("name", ["softmax", "sums", "matmul", "cumsum", "sort", "scan, chunked"])
def test_no_schedule_changes_an_operation(name):
    function, batch = BATCHED[name]

    def run():
        results = tree.flatten(function(vk.array(batch)))[0]
        vk.realize(results)
        return [r.numpy() for r in results]

    with vk.device("cpu"):
        want = run()
    seen, number = {}, 0
    while number < seen.get("most", 1):
        with pytest.MonkeyPatch.context() as patch:
            forced(patch, number, seen)
            assert all(same(a, b) for a, b in zip(want, run(), strict=True)), f"{name}: schedules of number {number}"
        number += 1
    assert number >= 2


# ---- where the graph is cut


@pytest.mark.parametrize("device", ["cpu", None], ids=["reference", "vulkan"])
def test_a_jitted_step_has_the_bits_of_an_eager_one(device):
    run = training_step()
    with vk.device(device):
        assert all(same(a, b) for a, b in zip(run(jit=True), run(jit=False), strict=True))


def test_a_model_in_pieces_has_the_bits_of_the_whole(both):
    network = nn.RAPTModel(nn.RAPTConfig(**SIZES))

    def whole(tokens):
        params = tree.map_leaves(vk.array, MODEL_PARAMS)
        return [network(params, tokens), vk.jit(network)(params, tokens)]

    def pieces(tokens):
        params = tree.map_leaves(vk.array, MODEL_PARAMS)

        def cut(x):
            return vk.array(x.numpy())

        x = cut(network.embedding(params["embedding"], tokens))
        for layer in params["layers"]:
            block = network.block
            x = cut(x + cut(block.attention(layer["attention"], cut(block.norm(layer["attention_norm"], x)))))
            x = cut(x + cut(block.mlp(layer["mlp"], cut(block.norm(layer["mlp_norm"], x)))))
        return network.head(params["head"], cut(network.norm(params["norm"], x)))

    tokens = TOKENS[:2]
    eager, jitted = both(whole, tokens)
    (cut,) = both(pieces, tokens)
    assert same(eager, jitted) and same(eager, cut)


def test_an_expression_in_pieces_has_the_bits_of_the_whole(both):
    x, w = np.concatenate([normal(3, 40), np.resize(FINITE, (2, 40))]), normal(40, 40)

    def run(x, w, cut):
        y = cut(vk.layer_norm(cut(cut(x * 3.0) @ w) + x))
        z = cut(vk.exp(cut(y - cut(vk.max(y, -1, keepdims=True)))))
        return [z / cut(vk.sum(z, -1, keepdims=True)), vk.cumsum(z, -1), vk.sum(cut(z * y), 0)]

    (a, b) = (both(lambda x, w, cut=cut: run(x, w, cut), x, w) for cut in (lambda x: x, lambda x: vk.array(x.numpy())))
    assert all(same(p, q) for p, q in zip(a, b, strict=True))
