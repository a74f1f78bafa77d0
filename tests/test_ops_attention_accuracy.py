"""Accuracy of vk.attention: not worse than twice the plain formula in float32, against float64; with PyTorch, too."""

import numpy as np
import pytest

import vkdnn as vk
from vkdnn.check import gradcheck
from vkdnn.check.attention_cases import SLOPED, Case
from vkdnn.check.library import attention_float64 as truth

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def results(case, x, dtype, product=np.matmul):
    """Name -> array, by the formula in ``dtype``."""
    found = truth.attention(x["q"], x["k"], x["v"], **case.truth(x, dtype), product=product)
    return {k: v for k, v in found.items() if k != "d_added"} | {
        f"d_{k}": v for k, v in case.slopes(x, found["d_added"]).items()
    }


def errors(case, seed=0, product=np.matmul):
    """For each result: the largest error of vk.attention, that of the plain formula in float32, and half a unit in the
    last place of the largest true value, as which the smallest error that can be meant counts."""
    x = case.values(seed)
    with vk.device("cpu"):
        found = [r.numpy() for r in case.run()(*map(vk.array, x.values()))]
    short = {"q": "dq", "k": "dk", "v": "dv"}
    names = ["out", "lse", *(short.get(n, f"d_{n}") for n in x if n in SLOPED)]
    exact, plain = results(case, x, np.float64), results(case, x, np.float32, product)
    measured = {}
    for name, got in zip(names, found, strict=True):
        want = exact[name]
        hidden = want == -np.inf
        assert np.array_equal(got == -np.inf, hidden) and np.isfinite(got[~hidden]).all(), (case, name)
        largest = float(np.abs(want[~hidden]).max(initial=0.0))
        pair = [float(np.abs(y[~hidden] - want[~hidden]).max(initial=0.0)) for y in (got, plain[name])]
        measured[name] = (*pair, 2.0**-25 * largest + 1e-37)
    return measured


WIDE = [
    Case(lengths=(60, 300), widths=(64, 64), group=1, size=size) for size in (0.1, 1.0, 3.0, 5.5)
] + [
    Case("causal", lengths=(300, 300), widths=(16, 16), group=3, size=2.0),
    Case("window", "alibi", lengths=(129, 200), widths=(80, 128), size=1.5),
    Case("boolean", "table", documents=True, lengths=(100, 260), widths=(32, 8)),
    Case("prefix", "all", sinks=True, dropout=0.3, lengths=(140, 140), widths=(64, 64), size=1.5),
    Case("causal", "bias", sinks=True, lengths=(64, 500), widths=(128, 128), group=2),
    Case("position", "softcap", lengths=(130, 260), widths=(5, 3), size=4.0),
]  # fmt: skip


def check(case, product=np.matmul):
    """Largest errors of three draws: a result of few numbers is exact now and then, by chance."""
    draws = [errors(case, seed, product) for seed in range(3)]
    for name in draws[0]:
        mine, plain, unit = (max(draw[name][k] for draw in draws) for k in range(3))
        assert mine <= 2 * max(plain, unit), f"{name}: {mine:.3g}, plain float32 {plain:.3g}, unit {unit:.3g}"


@pytest.mark.parametrize("case", WIDE, ids=repr)
def test_errors_are_at_most_twice_those_of_the_plain_formula(case):
    check(case)


def test_errors_of_one_query_are_at_most_twice_those_of_plain_sums():
    check(Case("causal", "bias", sinks=True, lengths=(1, 1000), widths=(128, 128), group=8), truth.in_sequence)


def test_scores_reach_eighty():
    case = WIDE[3]
    x = case.values()
    scores = np.einsum("bihc,bjhc->bhij", x["q"], np.repeat(x["k"], case.group, 2)) / np.sqrt(64)
    assert 80 < np.abs(scores).max() < 200


def test_the_gradients_of_the_oracle_are_its_differences():
    case = Case("causal", "all", documents=True, sinks=True, dropout=0.3, lengths=(3, 4), widths=(2, 3))
    x = {k: v.astype(np.float64) if k in SLOPED else v for k, v in case.values(3).items()}
    x["bias"][x["bias"] == -np.inf] = -1.0
    names = [n for n in x if n in SLOPED]

    def forward(*arrays):
        now = x | dict(zip(names, arrays, strict=True))
        found = truth.attention(now["q"], now["k"], now["v"], **case.truth(now))
        lse = np.where(np.isfinite(found["lse"]), found["lse"], 0)
        return np.array([np.sum(found["out"] * x["do"]) + np.sum(lse * x["dlse"])])

    slopes = results(case, x, np.float64)
    short = {"q": "dq", "k": "dk", "v": "dv"}
    gradients = [slopes[short.get(name, f"d_{name}")] for name in names]
    gradcheck(forward, [x[n] for n in names], vjp=lambda g, *_: [g * d for d in gradients]).raise_if_failed()


def test_gradients_of_what_a_score_mod_multiplies():
    """The same written with softmax: a score goes through products with, and functions of, captured arrays."""
    rng = np.random.default_rng(5)
    shapes = ((2, 5, 3, 4), (2, 150, 1, 4), (2, 150, 1, 6), (3,), (150,), (2, 5))
    arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]

    def bend(s, heads, keys, rows):
        return vk.tanh(s * heads) * keys + s * s * 0.1 + vk.sin(rows * s) * rows

    def fused(q, k, v, heads, keys, rows):
        return vk.attention(
            q, k, v, causal=True,
            score_mod=lambda s, b, h, i, j: bend(s, vk.take(heads, h), vk.take(keys, j), rows.reshape(2, 1, 5, 1)),
        )  # fmt: skip

    def plain(q, k, v, heads, keys, rows):
        s = vk.einsum("bihc,bjc->bhij", q, k[:, :, 0]) * 0.5
        s = bend(s, heads.reshape(3, 1, 1), keys, rows.reshape(2, 1, 5, 1))
        seen = np.arange(150) <= np.arange(5)[:, None] + 145
        return vk.einsum("bhij,bjv->bihv", vk.softmax(vk.where(seen, s, -np.inf)), v[:, :, 0])

    weights = rng.standard_normal((2, 5, 3, 6)).astype(np.float32)
    with vk.device("cpu"):
        first, second = (
            vk.value_and_grad(lambda *x, f=f: vk.sum(f(*x) * weights), tuple(range(6)))(*arrays) for f in (fused, plain)
        )
        for n, (a, b) in enumerate(zip(first[1], second[1], strict=True)):
            scale = np.abs(b.numpy()).max()
            np.testing.assert_allclose(a.numpy() / scale, b.numpy() / scale, atol=3e-6, err_msg=str(n))


@pytest.mark.parametrize("causal", [False, True])
def test_pytorch_agrees(causal):
    torch = pytest.importorskip("torch")
    case = Case("causal" if causal else "none", lengths=(40, 40), widths=(16, 8), group=2, key_heads=2)
    x = case.values()
    leaves = [torch.tensor(x[n], dtype=torch.float64, requires_grad=True) for n in ("q", "k", "v")]
    q, k, v = (t.transpose(1, 2) for t in leaves)
    k, v = (t.repeat_interleave(case.group, dim=1) for t in (k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)
    (out * torch.tensor(x["do"], dtype=torch.float64)).sum().backward()
    x["dlse"][:] = 0
    with vk.device("cpu"):
        found = [r.numpy() for r in case.run()(*map(vk.array, x.values()))]
    for got, want in zip([found[0], *found[2:]], [out.detach(), *(t.grad for t in leaves)], strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-6)
