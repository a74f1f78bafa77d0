"""Elementwise kernels: iteration spaces of every shape, both schedules, grids larger than a dispatch."""

import numpy as np
import pytest

import vkdnn as vk
from vkdnn.check.hard import HARD_FLOATS, bits_equal
from vkdnn.fusion.schedule import schedule
from vkdnn.ir.body import PIECE, Affine, Box, pieces, strided
from vkdnn.ir.node import leaf
from vkdnn.kernels.base import MAX_GROUPS
from vkdnn.kernels.expr import ExprSchedule, ExprSpec
from vkdnn.numerics import basic
from vkdnn.numerics.flush import exact, flush


def argument(*shape, dtype=vk.float32):
    return vk.Array(leaf(shape, dtype))


def spec_of(*results):
    (step,) = schedule([r.node for r in results])
    return step.spec


@pytest.fixture(params=[(128,), (64,), (128, 4)], ids=str)
def forced(request, monkeypatch):
    monkeypatch.setattr(ExprSpec, "schedules", lambda self, target: (ExprSchedule(*request.param),))


def test_an_expression_over_broadcasts(both, forced):
    rng = np.random.default_rng(0)
    x, row, column = (rng.choice(HARD_FLOATS, shape) for shape in ((3, 65, 7), (7,), (65, 1)))
    found = both(lambda x, r, c: [x * r + c, vk.maximum(x, c) - r, r * c, x > r], x, row, column)
    with exact():
        a, b, c = (flush(v) for v in (x, row, column))
        assert bits_equal(found[0], basic.add(basic.mul(a, b), c)).all()
        assert bits_equal(found[2], basic.mul(b, c)).all()
    assert (found[3] == (flush(x) > flush(row))).all()


def test_a_kernel_says_all_about_itself():
    x = argument(4, 6)
    spec = spec_of(vk.transpose(x)[1:] * 2.0)
    assert spec.text() == (
        "expr dims (count, 4)\n"
        "  %0 = load float32 in0[1 + 1*i0 + 6*i1]\n"
        "  %1 = const float32 0x40000000\n"
        "  %2 = mul float32 %0 %1\n"
        "  out0 = %2\n"
    )
    assert spec == spec_of(vk.transpose(argument(4, 6))[1:] * 2.0)
    assert spec.inputs == spec.outputs == (vk.float32,)
    assert spec.cost((20,)).bytes == 160 and spec.cost((20,)).flops == 20


@pytest.mark.parametrize("shape", [(2,), (5,), (2, 3), (2, 1, 3), (6, 1, 1, 1, 2)])
def test_contiguous_work_is_one_dim_and_its_length_no_part_of_the_spec(shape):
    assert spec_of(vk.exp(argument(*shape)) * 2) == spec_of(vk.exp(argument(1000)) * 2)


def test_many_axes(both, forced):
    shape = (2, 3, 2, 2, 3, 2, 2)
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    order = (6, 0, 4, 2, 5, 1, 3)
    found = both(lambda x: [vk.transpose(x, order) + 1, x[::-1, :, 1:, ::-1] * x[:, :1, 1:, :, 1:2]], x)
    assert (found[0] == x.transpose(order) + 1).all()
    assert (found[1] == x[::-1, :, 1:, ::-1] * x[:, :1, 1:, :, 1:2]).all()


@pytest.mark.parametrize("count", [1, 63, 64, 65, 127, 128, 129, PIECE - 1, PIECE, PIECE + 1])
def test_counts_around_workgroups_and_pieces(both, count):
    x = np.arange(count, dtype=np.float32)
    found = both(lambda x: [x * 2 + vk.arange(count), x[::-1] - x], x)
    assert (found[0] == 3 * x).all() and (found[1] == x[::-1] - x).all()


def test_large_grids_stride_over_what_is_left(both):
    count = MAX_GROUPS * 128 + 1000
    x = np.resize(np.arange(1000, dtype=np.float32), count)
    (found,) = both(lambda x: x * 2, x)
    assert (found == x * 2).all()


def test_bools_in_and_out(both):
    a, b = np.array([True, False, True, False]), np.array([1, 0, 0, 7], np.int32)

    def run(a, b):
        flags = b.astype("bool")
        return [
            ~a,
            a & flags,
            a == flags,
            a ^ flags,
            a + flags,
            vk.where(a, b, -b),
            a.astype("float32"),
            a[::-1],
            ~flags,
        ]

    found = both(run, a, b)
    flags = b.astype(bool)
    wanted = [
        ~a,
        a & flags,
        a == flags,
        a ^ flags,
        a + flags.astype(int),
        np.where(a, b, -b),
        a * 1.0,
        a[::-1],
        ~flags,
    ]
    for got, want in zip(found, wanted, strict=True):
        assert (got == want).all()


# ---- the reference's own parts


def test_pieces_cover_the_space_once():
    for extents in ((), (0,), (5,), (3, 100_000), (200_000,), (70_000, 3, 2)):
        boxes = list(pieces(extents))
        assert sum(int(np.prod(b.extents)) for b in boxes) == int(np.prod(extents))
        assert all(b.extents[1:] == extents[1:] for b in boxes)
        starts = [b.start for b in boxes if b.extents]
        assert starts == sorted(set(starts))


def test_affine_indices():
    index = Affine(3, (10, -1))
    assert str(index) == "3 + 10*i0 + -1*i1" and str(Affine.zero(2)) == "0"
    assert index + Affine.dim(2, 1) == Affine(3, (10, 0)) and index.scaled(2).shifted(-6) == Affine(0, (20, -2))
    assert Box((2, 3), start=4).values(index).tolist() == [[43, 42, 41], [53, 52, 51]]
    data = np.arange(20)
    assert strided(data, 3, (5, -1), (2, 3)).tolist() == [[3, 2, 1], [8, 7, 6]]
    assert strided(data, 3, (5, 0), (2, 3)).shape == (2, 1)
