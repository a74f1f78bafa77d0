"""What vk.attention refuses: with one of vkdnn's errors, which names the argument, what came and what is expected."""

import numpy as np
import pytest

import vkdnn as vk
from vkdnn.errors import ArgumentError, DeviceError, DtypeError, ShapeError, VkdnnError

QUERIES, KEYS = 3, 6


@pytest.fixture(autouse=True)
def reference():
    with vk.device("cpu") as device:
        yield device


def zeros(*shape, dtype="float32"):
    return np.zeros(shape, dtype)


def attend(q=(2, QUERIES, 4, 5), k=(2, KEYS, 2, 5), v=(2, KEYS, 2, 7), **keywords):
    q, k, v = (zeros(*x) if isinstance(x, tuple) else x for x in (q, k, v))
    return vk.attention(q, k, v, **keywords)


def pack(cu_q=(0, 3), cu_k=(0, 6), **keywords):
    bounds = {"cu_seqlens_q": cu_q if cu_q is None or hasattr(cu_q, "dtype") else list(cu_q), "cu_seqlens_k": cu_k}
    return attend((QUERIES, 4, 5), (KEYS, 2, 5), (KEYS, 2, 7), layout="THD", **bounds, **keywords)


def score(function):
    return lambda: attend(score_mod=function)


def seen(function):
    return lambda: attend(mask_mod=function)


IDS_Q, IDS_K = zeros(2, QUERIES, dtype="int32"), zeros(2, KEYS, dtype="int32")
MANY = [np.full((QUERIES, KEYS), n, np.float32) for n in range(13)]

OPERANDS = [
    (lambda: attend(q=None), DtypeError, "q: got None"),
    (lambda: attend(k="text"), DtypeError, "k: got 'text'"),
    (lambda: attend(v=[[1], [2, 3]]), ArgumentError, "v: got nested lists of unequal lengths"),
    (lambda: attend(q=zeros(2, 3, 4, 5, dtype="int32")), DtypeError, "q: got int32, expected a float dtype"),
    (lambda: attend(q=(3, 4, 5)), ShapeError, r"q: got shape \(3, 4, 5\), expected \[B, T, H, D\]"),
    (lambda: attend(q=(2, 3, 4, 6)), ShapeError, "k: got width 5, expected 6 as in q"),
    (lambda: attend((2, 3, 4, 0), (2, 6, 2, 0)), ShapeError, "q: got width 0, expected 1 to 256"),
    (lambda: attend((2, 3, 4, 257), (2, 6, 2, 257)), ShapeError, "q: got width 257, expected 1 to 256"),
    (lambda: attend(v=(2, 6, 2, 0)), ShapeError, "v: got width 0, expected 1 to 512"),
    (lambda: attend(v=(2, 6, 2, 513)), ShapeError, "v: got width 513, expected 1 to 512"),
    (lambda: attend((2, 3, 3, 5)), ShapeError, "q: got 3 heads, expected a multiple of the 2 heads of k"),
    (lambda: attend((2, 3, 0, 5)), ShapeError, "q: got 0 heads"),
    (lambda: attend(k=(2, 6, 0, 5), v=(2, 6, 0, 7)), ShapeError, "q: got 4 heads, expected a multiple of the 0 heads"),
    (lambda: attend(v=(2, 6, 1, 7)), ShapeError, "v: got 1 heads, expected 2 as in k"),
    (lambda: attend(v=(2, 5, 2, 7)), ShapeError, "v: got 2 x 5 tokens, expected 2 x 6 tokens as in k"),
    (lambda: attend(q=(1, 3, 4, 5)), ShapeError, "k: got a batch of 2, expected 1 as in q"),
    (lambda: attend(layout="BDHT"), ArgumentError, "layout: got 'BDHT', expected one of BTHD, BHTD, THD"),
    (lambda: attend(layout=None), ArgumentError, "layout: got None"),
    (lambda: attend(scale="a"), ArgumentError, "scale: got 'a'"),
    (lambda: attend(scale=float("nan")), ArgumentError, "scale: got nan, expected a finite"),
    (lambda: attend(scale=1e39), ArgumentError, "scale: got 1e.39, expected a finite"),
    (lambda: attend(causal=zeros(3, 6, dtype=bool)), ArgumentError, "causal: got ndarray, expected True or False"),
    (lambda: attend(causal="yes"), ArgumentError, "causal: got 'yes'"),
    (lambda: attend(return_lse=zeros(3)), ArgumentError, "return_lse: got ndarray"),
]
MASKS = [
    (lambda: attend(mask=zeros(3, 6)), DtypeError, "mask: got float32, expected bool"),
    (lambda: attend(mask=zeros(3, 5, dtype=bool)), ShapeError, r"mask: got shape \(3, 5\), .*\[2, 4, 3, 6\]"),
    (lambda: attend(mask=zeros(3, 1, 3, 6, dtype=bool)), ShapeError, "mask: got shape"),
    (lambda: attend(mask=zeros(1, 2, 4, 3, 6, dtype=bool)), ShapeError, "mask: got shape"),
    (lambda: attend(mask="causal"), DtypeError, "mask: got 'causal'"),
    (lambda: attend(bias=zeros(3, 6, dtype=bool)), DtypeError, "bias: got bool, expected float32"),
    (lambda: attend(bias=zeros(2, 3, 6)), ShapeError, r"bias: got shape \(2, 3, 6\), .*\[B, H, Tq, Tk\]"),
    (lambda: attend(alibi_slopes=zeros(3)), ShapeError, r"alibi_slopes: got shape \(3,\), expected \[4\] or \[2, 4\]"),
    (lambda: attend(alibi_slopes=zeros(3, 4)), ShapeError, r"alibi_slopes: got shape \(3, 4\)"),
    (lambda: attend(alibi_slopes=0.5), ShapeError, r"alibi_slopes: got shape \(\)"),
    (lambda: attend(alibi_slopes=zeros(4, dtype="int32")), DtypeError, "alibi_slopes: got int32"),
    (lambda: attend(document_ids=(zeros(2, 3), zeros(2, 6))), DtypeError, "document_ids: got float32"),
    (lambda: attend(document_ids=IDS_K), ShapeError, r"document_ids: got shape \(2, 6\), expected \[2, 3\]"),
    (
        lambda: attend(document_ids=(IDS_Q[0], IDS_K[0])),
        ShapeError,
        r"document_ids: got shape \(3,\), expected \[B, T\]",
    ),
    (lambda: attend(document_ids=(IDS_Q.astype("uint32"), IDS_K)), DtypeError, "document_ids: got uint32 and int32"),
    (lambda: attend(window=3), ArgumentError, r"window: got 3, expected \(left, right\)"),
    (lambda: attend(window=(1, 2, 3)), ArgumentError, r"window: got \(1, 2, 3\)"),
    (lambda: attend(window=(-1, 0)), ArgumentError, "window: left: got -1, expected 0 or more"),
    (lambda: attend(window=(0, 1.5)), ArgumentError, "window: right: got 1.5, expected an int"),
    (lambda: attend(softcap=0), ArgumentError, "softcap: got 0, expected a positive number"),
    (lambda: attend(softcap=float("inf")), ArgumentError, "softcap: got inf"),
    (lambda: attend(softcap=1e-45), ArgumentError, "softcap: got 1e-45"),
    (lambda: attend(softcap="a"), ArgumentError, "softcap: got 'a'"),
    (lambda: attend(sinks=zeros(3)), ShapeError, r"sinks: got shape \(3,\), expected \[4\]"),
    (lambda: attend(sinks=0.0), ShapeError, r"sinks: got shape \(\)"),
    (lambda: attend(sinks=zeros(4, dtype="int32")), DtypeError, "sinks: got int32"),
]
DROPOUT = [
    (
        lambda: attend(dropout_p=1.0, dropout_seed=1),
        ArgumentError,
        r"dropout_p: got 1.0, expected a number in \[0, 1\)",
    ),
    (lambda: attend(dropout_p=-0.1, dropout_seed=1), ArgumentError, "dropout_p: got -0.1"),
    (lambda: attend(dropout_p=float("nan"), dropout_seed=1), ArgumentError, "dropout_p: got nan"),
    (lambda: attend(dropout_p=True, dropout_seed=1), ArgumentError, "dropout_p: got True"),
    (lambda: attend(dropout_p=None), ArgumentError, "dropout_p: got None"),
    (lambda: attend(dropout_p=0.1), ArgumentError, "dropout_seed: got None with dropout_p"),
    (lambda: attend(dropout_p=0.1, dropout_seed=-1), ArgumentError, "dropout_seed: got -1, expected an int from 0"),
    (lambda: attend(dropout_p=0.1, dropout_seed=2**64), ArgumentError, "dropout_seed: got 18446744073709551616"),
    (lambda: attend(dropout_p=0.1, dropout_seed=1.5), ArgumentError, "dropout_seed: got 1.5"),
    (lambda: attend(dropout_p=0.1, dropout_seed=zeros(2)), DtypeError, "dropout_seed: got float32 of shape"),
    (lambda: attend(dropout_p=0.1, dropout_seed=zeros(3, dtype="uint32")), DtypeError, "dropout_seed: got uint32 of"),
]
PACKED = [
    (lambda: attend(cu_seqlens_q=[0, 3]), ArgumentError, "cu_seqlens_q: got bounds with layout 'BTHD'"),
    (lambda: attend(cu_seqlens_k=[0, 3]), ArgumentError, "cu_seqlens_k: got bounds with layout 'BTHD'"),
    (lambda: pack(None), ArgumentError, "cu_seqlens_q: got None with layout 'THD'"),
    (lambda: pack((0, 3), None), ArgumentError, "cu_seqlens_k: got 3 as the last bound, expected 6"),
    (
        lambda: pack((0, 2, 1, 3), (0, 1, 2, 6)),
        ArgumentError,
        "cu_seqlens_q: got 2 before 1, expected bounds that do not",
    ),
    (
        lambda: pack(np.array([0, 2**63, 3], np.uint64), (0, 1, 6)),
        ArgumentError,
        "cu_seqlens_q: got 9223372036854775808",
    ),
    (lambda: pack((1, 3)), ArgumentError, "cu_seqlens_q: got 1 as the first bound, expected 0"),
    (
        lambda: pack((0, 3), [0, 5]),
        ArgumentError,
        "cu_seqlens_k: got 5 as the last bound, expected 6, the number of tok",
    ),
    (lambda: pack((0, 3), [0, 2, 6]), ShapeError, "cu_seqlens_k: got 3 bounds, expected 2 as in cu_seqlens_q"),
    (lambda: pack((0.0, 3.0)), DtypeError, "cu_seqlens_q: got float64, expected integers"),
    (lambda: pack(()), DtypeError, "cu_seqlens_q: got float64"),
    (lambda: pack(np.array(3)), ShapeError, r"cu_seqlens_q: got shape \(\)"),
    (lambda: pack(np.array([[0, 3]])), ShapeError, r"cu_seqlens_q: got shape \(1, 2\)"),
    (lambda: pack(([0], [0, 3])), ArgumentError, "cu_seqlens_q: got nested lists"),
    (lambda: pack(vk.array(np.array([0, 3], np.uint32))), DtypeError, "cu_seqlens_q: got uint32, expected int32"),
    (lambda: pack(vk.array([[0, 3]])), ShapeError, r"cu_seqlens_q: got shape \(1, 2\)"),
    (lambda: pack(document_ids=(IDS_Q[0, :2], IDS_K[0])), ShapeError, "document_ids: got 2 of queries, expected 3"),
    (lambda: pack(document_ids=(IDS_Q, IDS_K)), ShapeError, r"document_ids: got shape \(2, 3\), expected \[T\]"),
    (
        lambda: pack(document_ids=(IDS_Q[0], IDS_K[0].astype("uint32"))),
        DtypeError,
        "document_ids: got int32 and uint32",
    ),
    (lambda: pack(document_ids=(zeros(3), zeros(6))), DtypeError, "document_ids: got float32"),
]
MODS = [
    (score(3), ArgumentError, "score_mod: got 3, expected a function of 5 arguments"),
    (score(lambda s: s), ArgumentError, "score_mod: the function takes other arguments"),
    (score(lambda s, b, h, q, k: None), ArgumentError, "score_mod: the function returned None, expected an Array"),
    (score(lambda s, b, h, q, k: zeros(3, 6)), ArgumentError, "score_mod: the function returned ndarray"),
    (score(lambda s, b, h, q, k: s > 0.0), DtypeError, "score_mod: the function returned bool, expected float32"),
    (score(lambda s, b, h, q, k: vk.zeros((3, 7))), ShapeError, r"score_mod: got shape \(3, 7\)"),
    (score(lambda s, b, h, q, k: vk.softmax(s)), ArgumentError, "score_mod: the score goes through fold"),
    (
        score(lambda s, b, h, q, k: s - vk.sum(s, -1, keepdims=True)),
        ArgumentError,
        "score_mod: the score goes through fold",
    ),
    (score(lambda s, b, h, q, k: vk.flip(s, -1)), ArgumentError, "score_mod: the score goes through slice"),
    (score(lambda s, b, h, q, k: vk.take(s, [0, 1])), ArgumentError, "score_mod: the score goes through take"),
    (score(lambda s, b, h, q, k: s @ vk.zeros((6, 6))), ArgumentError, "score_mod: the score goes through matmul"),
    (score(lambda s, b, h, q, k: vk.cumsum(s, -1)), ArgumentError, "score_mod: the score goes through"),
    (score(lambda s, b, h, q, k: s if s > 0 else -s), ArgumentError, "traced array has no truth value"),
    (score(lambda s, b, h, q, k: s + float(s.numpy().sum())), ArgumentError, "traced array has no value"),
    (score(lambda s, b, h, q, k: sum(map(vk.array, MANY), s)), ArgumentError, "capture 13 arrays, expected at most 12"),
    (seen("causal"), ArgumentError, "mask_mod: got 'causal', expected a function of 4 arguments"),
    (seen(lambda q, k: q >= k), ArgumentError, "mask_mod: the function takes other arguments"),
    (seen(lambda b, h, q, k: q - k), DtypeError, "mask_mod: the function returned int32, expected bool"),
    (seen(lambda b, h, q, k: None), ArgumentError, "mask_mod: the function returned None"),
    (seen(lambda b, h, q, k: vk.zeros(7, "bool")), ShapeError, r"mask_mod: got shape \(7,\)"),
    (seen(lambda b, h, q, k: q >= k and k > 2), ShapeError, "as a condition use vk.any or vk.all"),
]


@pytest.mark.parametrize(("call", "error", "message"), [*OPERANDS, *MASKS, *DROPOUT, *PACKED, *MODS])
def test_bad_input_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_up_to_twelve_arrays_may_be_captured():
    out = attend(score_mod=lambda s, b, h, q, k: sum((s * vk.array(x) for x in MANY[:12]), s))
    assert not out.numpy().any()


def test_second_derivatives_are_refused():
    q = vk.array(zeros(2, QUERIES, 4, 5))

    def slope(q):
        return vk.sum(vk.grad(lambda q: vk.sum(attend(q) ** 2))(q) ** 2)

    with pytest.raises(VkdnnError, match="grad: the gradient of attention has no derivative"):
        vk.grad(slope)(q)


@pytest.mark.parametrize(
    "keywords",
    [
        lambda x: {"bias": x((3, 6))},
        lambda x: {"sinks": x((4,))},
        lambda x: {"alibi_slopes": x((4,))},
        lambda x: {"mask": x((3, 6)) > 0.0},
        lambda x: {"mask_mod": lambda b, h, q, k: x((3, 6)) > 0.0},
        lambda x: {"dropout_p": 0.1, "dropout_seed": x((2,), "uint32")},
    ],
)
def test_arrays_of_two_devices_are_refused_and_numpy_arrays_go_where_the_others_are(keywords):
    q, k, v = (vk.array(zeros(*s), device="cpu") for s in ((2, 3, 4, 5), (2, 6, 2, 5), (2, 6, 2, 7)))
    with vk.device():
        elsewhere = keywords(lambda shape, dtype="float32": vk.array(np.ones(shape, dtype)))
        with pytest.raises(DeviceError, match="attention: arrays live on"):
            vk.attention(q, k, v, **elsewhere)
        if "mask_mod" not in elsewhere:
            plain = keywords(lambda shape, dtype="float32": np.ones(shape, dtype))
            assert vk.attention(q, k, v, **plain).device is vk.device("cpu")
