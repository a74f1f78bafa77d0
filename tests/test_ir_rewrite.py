"""Rewriting expressions: exchanged nodes, and what an elementwise expression captures."""

import numpy as np
import pytest

import vkdnn as vk
from vkdnn.dtypes import float32, int32
from vkdnn.ir import build
from vkdnn.ir.node import leaf, toposort
from vkdnn.ir.rewrite import NotElementwise, capture, placeholder, substitute

SPACE = (2, 3, 4, 5)
S = placeholder("test", SPACE, float32)


def array(node):
    return vk.Array(node)


def data(*shape, dtype=float32):
    return array(leaf(shape, dtype))


def captured(*results):
    """Captured nodes of expressions of S; put back, they give the expressions again."""
    roots = [r.node for r in results]
    new, nodes, stand_ins = capture(roots, S)
    back = substitute(new, dict(zip(stand_ins, nodes, strict=True)))
    assert [(n.shape, n.dtype) for n in back] == [(n.shape, n.dtype) for n in roots]
    free = {n for n in toposort(new) if n.kind == "leaf"}
    assert free <= {S, *stand_ins}
    return nodes


def same(nodes, arrays):
    """Nodes are compared by identity; their == is an operation."""
    assert [id(n) for n in nodes] == [id(a.node) for a in arrays]


def iota(axis):
    return array(build.iota(tuple(n if a == axis else 1 for a, n in enumerate(SPACE)), axis))


# ---- substitute


def test_an_exchanged_leaf_changes_all_that_depends_on_it():
    x, y, z = data(3), data(3), data(3)
    kept, changed = (y * 2.0), vk.exp(x) + y
    new = substitute([changed.node, kept.node], {x.node: z.node})
    assert new[1] is kept.node and new[0] is (vk.exp(z) + y).node
    assert substitute([x.node], {x.node: y.node}) == [y.node]


def test_what_lies_under_an_exchanged_node_is_not_visited():
    x, y = data(3), data(3)
    inner = vk.exp(x)
    assert substitute([(inner + x).node], {inner.node: y.node, x.node: x.node})[0] is (y + x).node


def test_placeholders_are_equal_for_equal_arguments():
    assert placeholder("a", (2,), float32) is placeholder("a", (2,), float32)
    assert len({placeholder(*a) for a in (("a", (2,), float32), ("b", (2,), float32), ("a", (3,), float32))}) == 3
    assert placeholder("a", (2,), int32) is not placeholder("a", (2,), float32)


# ---- capture


def test_data_is_captured_once_and_constants_are_not():
    x = data(*SPACE)
    same(captured(array(S) * x + 1.0 + x), [x])
    same(captured(vk.exp(array(S)) * 2.0), [])


def test_views_stay_in_the_expression():
    x = data(3, 5)
    rows = vk.broadcast_to(x[:, ::-1].reshape(1, 3, 1, 5), SPACE)
    same(captured(array(S) + rows), [x])
    new, _, (stand_in,) = capture([(array(S) + rows).node], S)
    assert stand_in.shape == (3, 5) and {"slice", "broadcast"} <= {n.kind for n in toposort(new)}


def test_what_is_computed_from_data_alone_is_captured_as_a_whole():
    x, y = data(3, 1, 5), data(3, 1, 5)
    together = vk.exp(x) + y
    same(captured(array(S) + together), [together])
    total = vk.sum(x, -1, keepdims=True)
    same(captured(array(S) * total), [total])
    assert captured(array(S) + vk.softmax(x))[0].shape == (3, 1, 5)


def test_what_broadcasting_widens_is_captured_before():
    """A table of all pairs would be the matrix that attention exists to avoid."""
    rows, columns = data(4, 1), data(1, 5)
    nodes = captured(array(S) + rows * columns)
    assert sorted(n.shape for n in nodes) == [(1, 5), (4, 1)]


def test_expressions_of_positions_stay():
    q, k = iota(2), iota(3)
    same(captured((q >= k) & (k < 3)), [])
    position = data(2, dtype=int32)
    same(captured(k <= position.reshape(2, 1, 1, 1)), [position])


def test_a_table_read_at_positions_is_captured_and_not_what_is_read():
    table, q, k = data(3, 8), iota(2), iota(3)
    flat = vk.take(table, iota(1) * 8 + (q - k + 4), axis=None)
    nodes = captured(array(S) + flat)
    assert len(nodes) == 1 and nodes[0].size == 24
    index = data(4, dtype=int32)
    chosen = vk.take(data(9), index)
    same(captured(array(S) + chosen.reshape(1, 1, 4, 1)), [chosen])


def test_several_roots_share_what_they_capture():
    x, y = data(4, 5), data(4, 5)
    same(captured(array(S) + x, array(S) > y + array(S) * x), [x, y])


def test_the_variable_alone_or_not_at_all():
    same(captured(array(S)), [])
    positive = data(4, 5) > 0.0
    same(captured(positive), [positive])
    same(captured(vk.zeros(SPACE)), [])


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda s: vk.sum(s, -1, keepdims=True) + s, "fold"),
        (lambda s: s[..., ::-1], "slice"),
        (lambda s: vk.swapaxes(s, 0, 1), "permute"),
        (lambda s: vk.pad(s, [(0, 0)] * 3 + [(1, 0)]), "pad"),
        (lambda s: s @ data(5, 5), "matmul"),
        (lambda s: vk.take(data(9), vk.exp(s).astype("int32")), "take"),
        (lambda s: vk.take(s, data(2, dtype=int32)), "take"),
        (lambda s: vk.exp(s).reshape(-1), "reshape"),
    ],
)
def test_what_is_not_elementwise_in_the_variable_is_named(function, kind):
    with pytest.raises(NotElementwise) as found:
        capture([function(array(S)).node], S)
    assert found.value.node.kind == kind


def test_an_array_in_memory_is_captured_with_its_buffer():
    with vk.device("cpu"):
        x = vk.array(np.ones((4, 5), np.float32)) * 2.0
        vk.realize([x])
    same(captured(array(S) + x), [x])
