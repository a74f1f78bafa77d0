"""Softmax attention with every mask: one operation, made of expressions that its kernels compute pair by pair.

The matrix of scores never exists. The order of every addition (vkdnn.kernels.attention) is that of blocks of 128 keys
counted from the first key of the sequence, so that no tiling, batch, packing or splitting changes a bit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from vkdnn import tracing
from vkdnn.array import Array, asarray, common_device
from vkdnn.dtypes import DType, bool_, float32, uint32
from vkdnn.errors import ArgumentError, DtypeError, ShapeError
from vkdnn.ir import build
from vkdnn.ir.arguments import function, integer, number, short
from vkdnn.ir.node import Node, Shape, leaf, never_arrays
from vkdnn.ir.rewrite import NotElementwise, capture, placeholder, substitute
from vkdnn.kernels.attention import FAMILY, LSE, MAX_KEY_WIDTH, MAX_VALUE_WIDTH, OUT, AttentionCall, Mods
from vkdnn.ops import masks
from vkdnn.ops.attention_packed import Packed, packed
from vkdnn.ops.elementwise import where
from vkdnn.ops.reduce import narrow, wide

LAYOUTS = ("BTHD", "BHTD", "THD")
MAX_FLOAT = float(np.finfo(np.float32).max)
MAX_CAPTURED = 12  # with operands and results this stays within the bindings that every device offers


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    mask: Any = None,
    bias: Any = None,
    score_mod: masks.ScoreMod | None = None,
    mask_mod: masks.MaskMod | None = None,
    alibi_slopes: Any = None,
    document_ids: Any = None,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    sinks: Any = None,
    scale: float | None = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    dropout_p: float = 0.0,
    dropout_seed: Any = None,
    layout: str = "BTHD",
    return_lse: bool = False,
) -> Any:
    """softmax(scale q kᵀ) v with masks, exactly, in memory linear in the number of tokens (Dao et al. 2022; Vaswani
    et al. 2017). q [B, Tq, H, K], k [B, Tk, Hk, K], v [B, Tk, Hk, V] -> [B, Tq, H, V], float.

    H is a multiple of Hk: query head h reads key head h // (H // Hk). K is 1 to 256, V 1 to 512. The result has the
    dtype of q, k and v if they share one; all is computed in float32. With ``return_lse`` the result is (out, lse),
    lse [B, H, Tq] float32 the logarithm of the sum of exponentials of the row's scores.

    A score is made in this order: ``scale`` (default 1 / √K) times q · k; ``softcap`` c: c tanh(score / c); ``bias``
    added; ``alibi_slopes`` [H] or [B, H]: slope |i - j| subtracted; ``score_mod(score, b, h, q, k)``. A key is seen
    if all masks given allow it. Position i of a query is its number plus Tk - Tq: the last query stands at the last
    key.

    causal        keys j <= i
    window        (left, right): keys i - left <= j <= i + right, the own one included; None is no bound
    mask          bool, True where a key is seen; broadcasts over [B, H, Tq, Tk]
    bias          float; broadcasts over [B, H, Tq, Tk]; -inf hides the key
    document_ids  integers [B, T] of queries and keys, or a pair [B, Tq], [B, Tk]: keys of the same document
    mask_mod      mask_mod(b, h, q, k): bool; see vk.masks
    sinks         [H] float: a further logit of each head that takes part of the softmax and gives no value; in lse too
    dropout_p     probability in [0, 1) with which a weight becomes 0, the others times 1 / (1 - p); ``dropout_seed``,
    an
                  int or a key of vk.random, decides for every b, h, q and k, whatever the sizes

    A row that sees no key is 0, its lse -inf, its gradients 0; what a masked key or value holds, even NaN, changes
    nothing. A score of -inf hides its key; one of +inf makes its row NaN, as it does in softmax.

    ``layout`` "BHTD" takes and gives [B, H, T, K]. "THD" is packed: q [T, H, K], k and v alike, sequences one after the
    other; ``cu_seqlens_q`` and ``cu_seqlens_k`` int32 [N + 1] are their bounds, from 0 to the number of tokens, empty
    ones allowed. Then b is the number of the sequence, q and k count inside it, and lse is [H, T]. Bounds in NumPy or
    lists are checked; those in Arrays are not known here: the first counts as 0, the last as the number of tokens,
    and none as less than the one before it.

    Differentiable once by q, k, v, bias, slopes, sinks and everything that mods capture; the latter take memory for
    all pairs in the backward pass. Raises ShapeError, DtypeError and ArgumentError, naming the argument.

    >>> import vkdnn as vk
    >>> q, k, v = vk.zeros((1, 5, 1, 1)), vk.zeros((1, 2, 1, 1)), vk.array([1.0, 2.0]).reshape(1, 2, 1, 1)
    >>> vk.attention(q, k, v, causal=True).reshape(5).numpy().tolist()
    [0.0, 0.0, 0.0, 1.0, 1.5]
    """
    for name, value in (("causal", causal), ("return_lse", return_lse)):
        if not isinstance(value, (bool, np.bool_)):
            raise ArgumentError(f"{name}: got {short(value)}, expected True or False")
    if layout not in LAYOUTS:
        raise ArgumentError(f"layout: got {short(layout)}, expected one of {', '.join(LAYOUTS)}")
    arrays = [asarray(x, [q, k, v], name) for name, x in (("q", q), ("k", k), ("v", v))]
    for name, x in zip("qkv", arrays, strict=True):
        if x.dtype.category != "f":
            raise DtypeError(f"{name}: got {x.dtype}, expected a float dtype (convert with .astype)")
        if x.ndim != len(layout):
            raise ShapeError(f"{name}: got shape {x.shape}, expected [{', '.join(layout)}] (layout {layout!r})")
    result_dtype = _storage(arrays)
    nodes = [wide(x).node for x in arrays]
    if layout == "BHTD":
        nodes = [build.permute(n, (0, 2, 1, 3)) for n in nodes]
    bounds = packed(layout, arrays[0], arrays[1], cu_seqlens_q, cu_seqlens_k)
    sizes = _Sizes(nodes, bounds)
    with never_arrays():
        call = _Builder(sizes, bounds)
        call.scale(_scale(scale) if scale is not None else 1.0 / math.sqrt(sizes.key_width))
        if softcap is not None:
            call.score(masks.softcap(softcap))
        if bias is not None:
            call.bias(_over_space("bias", bias, float32, sizes.space, arrays))
        if alibi_slopes is not None:
            call.score(masks.alibi(asarray(alibi_slopes, arrays, "alibi_slopes"), call.shift))
        if score_mod is not None:
            call.score(function("score_mod", score_mod, 5))
        if causal:
            call.bound(None, 0)
        if window is not None:
            call.bound(*_window(window))
        if mask is not None:
            seen = _over_space("mask", mask, bool_, sizes.space, arrays)
            call.see(lambda b, h, i, j: seen)
        if document_ids is not None:
            call.documents(document_ids, arrays)
        if mask_mod is not None:
            call.see(function("mask_mod", mask_mod, 4))
        call.dropout(dropout_p, dropout_seed, arrays)
    fixed = dict(zip("qkv", nodes, strict=True))
    if bounds is not None:
        fixed |= {"starts_q": bounds.starts_q.node, "starts_k": bounds.starts_k.node}
    if sinks is not None:
        logits = _sinks(sinks, sizes.heads, arrays)
        call.arrays.append(logits)
        fixed["sinks"] = logits.node
    out, lse = call.finish(fixed)
    device = common_device("attention", [*arrays, *call.arrays])
    result = Array(build.permute(out, (0, 2, 1, 3)) if layout == "BHTD" else out, device)
    result = narrow(result, arrays[0]) if result_dtype else result
    return (result, Array(lse, device)) if return_lse else result


class _Sizes:
    """Lengths of a call, checked."""

    def __init__(self, nodes: list[Node], bounds: Packed | None):
        q, k, v = nodes
        *tokens_q, self.heads, self.key_width = q.shape
        *tokens_k, self.key_heads, key_width = k.shape
        *tokens_v, value_heads, self.value_width = v.shape
        if key_width != self.key_width:
            raise ShapeError(f"k: got width {key_width}, expected {self.key_width} as in q")
        if tokens_v != tokens_k:
            raise ShapeError(f"v: got {_tokens(tokens_v)}, expected {_tokens(tokens_k)} as in k")
        if value_heads != self.key_heads:
            raise ShapeError(f"v: got {value_heads} heads, expected {self.key_heads} as in k")
        if self.key_heads < 1 or self.heads < 1 or self.heads % self.key_heads:
            raise ShapeError(f"q: got {self.heads} heads, expected a multiple of the {self.key_heads} heads of k")
        if not 1 <= self.key_width <= MAX_KEY_WIDTH:
            raise ShapeError(f"q: got width {self.key_width}, expected 1 to {MAX_KEY_WIDTH}")
        if not 1 <= self.value_width <= MAX_VALUE_WIDTH:
            raise ShapeError(f"v: got width {self.value_width}, expected 1 to {MAX_VALUE_WIDTH}")
        if bounds is None:
            if tokens_q[0] != tokens_k[0]:
                raise ShapeError(f"k: got a batch of {tokens_k[0]}, expected {tokens_q[0]} as in q")
            self.batches, self.queries = tokens_q
            self.keys = tokens_k[1]
        else:
            self.batches, self.queries, self.keys = bounds.count, bounds.queries, bounds.keys
        self.tokens = math.prod(tokens_q)

    @property
    def space(self) -> Shape:
        return (self.batches, self.heads, self.queries, self.keys)


def _tokens(tokens: list[int]) -> str:
    return " x ".join(map(str, tokens)) + " tokens"


class _Builder:
    """Collects what happens to a score, and which keys are seen, as expressions over [B, H, Tq, Tk]."""

    def __init__(self, sizes: _Sizes, bounds: Packed | None):
        self.sizes, self.packed = sizes, bounds
        space = sizes.space
        self.axes = tuple(
            Array(build.iota(tuple(n if a == axis else 1 for a, n in enumerate(space)), axis)) for axis in range(4)
        )
        self.dot = leaf(space, float32, "score of a mod")  # this call's own: it means nothing in another one
        self.current = Array(self.dot)
        self.visible: list[Array] = []
        self.kept: Array | None = None
        self.keep_scale = 1.0
        self.low: Any = None
        self.high: Any = None
        self.shift: Any = sizes.keys - sizes.queries if bounds is None else bounds.shift
        self.arrays: list[Array] = []

    def scale(self, value: Any) -> None:
        self.current = self.current * float(value)

    def score(self, mod: masks.ScoreMod) -> None:
        with tracing.trace():  # so that jitted functions become part of the expression
            value = mod(self.current, *self.axes)
        found = _checked("score_mod", value, "f", self.sizes.space)
        self.current = Array(build.cast(found.node, float32), found._device)

    def see(self, mod: masks.MaskMod) -> None:
        with tracing.trace():
            value = mod(*self.axes)
        self.visible.append(_checked("mask_mod", value, "b", self.sizes.space))

    def bias(self, bias: Array) -> None:
        """A bias of -inf hides its key, whatever the key holds."""
        self.score(lambda score, b, h, i, j: score + bias)
        self.see(lambda b, h, i, j: bias != -math.inf)

    def bound(self, left: int | None, right: int | None) -> None:
        """A window, which also bounds the blocks that are visited."""
        self.see(masks.sliding_window(left, right, self.shift))
        shift = self.shift if isinstance(self.shift, int) else self.shift.reshape(-1, 1, 1, 1)
        if left is not None:
            low = asarray(shift - left)
            self.low = low if self.low is None else where(self.low < low, low, self.low)
        if right is not None:
            high = asarray(shift + right)
            self.high = high if self.high is None else where(high < self.high, high, self.high)

    def documents(self, ids: Any, like: list[Array]) -> None:
        pair = ids if isinstance(ids, tuple) and len(ids) == 2 else (ids, ids)
        ids_q, ids_k = (asarray(x, like, "document_ids") for x in pair)
        if self.packed is None:
            self.see(masks.documents(ids_q, ids_k))
        else:
            self.see(self.packed.documents(ids_q, ids_k))

    def dropout(self, p: Any, seed: Any, like: list[Array]) -> None:
        p = number("dropout_p", p, "a number in [0, 1)")
        if isinstance(p, bool) or not 0 <= p < 1:
            raise ArgumentError(f"dropout_p: got {short(p)}, expected a number in [0, 1)")
        if not p:
            return
        if seed is None:
            raise ArgumentError("dropout_seed: got None with dropout_p, expected an int or a key of vk.random")
        words = _key(seed, like)
        self.arrays += [seed] if isinstance(seed, Array) else []
        b, h, i, j = (build.cast(x.node, uint32) for x in self.axes)
        # No draw of vk.random from the same key reaches blocks whose last word is not 0.
        word = build.apply("philox", j, i, h, build.apply("add", b, 2**31), *words)
        self.kept = Array(build.apply("less_equal", build.full((), min(round(p * 2**32), 2**32 - 1), uint32), word))
        self.keep_scale = 1.0 / (1.0 - p)

    def finish(self, fixed: dict[str, Node]) -> tuple[Node, Node]:
        """Nodes of out and lse."""
        s = self.sizes
        line = (s.batches, s.heads, s.queries) if self.packed is None else (s.heads, s.tokens)
        rows = (*fixed["q"].shape[:-1], s.value_width)
        if 0 in (s.batches, s.queries, s.keys, s.tokens):
            lse = build.full(line, -math.inf)
            if "sinks" in fixed:
                lse = build.broadcast_to(build.reshape(fixed["sinks"], (*(1,) * (len(line) - 2), s.heads, 1)), line)
            return build.full(rows, 0.0), lse
        with never_arrays():
            roots: dict[str, Node] = {"score": build.broadcast_to(self.current.node, s.space)}
            if self.visible:
                seen = self.visible[0]
                for more in self.visible[1:]:
                    seen = seen & more
                roots["visible"] = build.broadcast_to(seen.node, s.space)
            if self.kept is not None:
                roots["kept"] = build.broadcast_to(self.kept.node, s.space)
            for name, limit in (("low", self.low), ("high", self.high)):
                if limit is not None:
                    roots[name] = build.broadcast_to(limit.node, (limit.shape[0] if limit.ndim else 1, 1, 1, 1))
            try:
                new, captured, stand_ins = capture(list(roots.values()), self.dot)
            except NotElementwise as error:
                raise ArgumentError(
                    f"score_mod: the score goes through {error.node.kind}, expected element by element operations alone"
                ) from None
        if len(captured) > MAX_CAPTURED:
            raise ArgumentError(
                f"attention: masks and mods capture {len(captured)} arrays, expected at most {MAX_CAPTURED}; join some"
            )
        dot = placeholder("dot", s.space, float32)
        with never_arrays():
            found = dict(zip(roots, substitute(new, {self.dot: dot}), strict=True))
        mods = Mods(
            dot, found["score"], found.get("visible"), found.get("kept"), found.get("low"), found.get("high"),
            tuple(stand_ins),
        )  # fmt: skip
        parameters = AttentionCall(
            "forward", tuple(fixed), s.batches, s.heads, s.heads // s.key_heads, s.queries, s.keys, s.key_width,
            s.value_width, s.tokens, mods, self.keep_scale,
        )  # fmt: skip
        self.arrays += [self.current, *self.visible, *([] if self.packed is None else self.packed.starts)]
        shapes = ((rows, float32), *((line, float32),) * 3)
        results = build.call(FAMILY, (*fixed.values(), *captured), parameters, shapes)
        return results[OUT], results[LSE]


def _checked(name: str, value: Any, category: str, space: Shape) -> Array:
    """What a mod returned, as an Array that broadcasts over the space."""
    if isinstance(value, (bool, int, float, np.generic)):
        value = asarray(value)
    expected = {"f": "float32", "b": "bool"}[category]
    if not isinstance(value, Array):
        raise ArgumentError(f"{name}: the function returned {short(value)}, expected an Array of {expected}")
    if value.dtype.category != category:
        raise DtypeError(f"{name}: the function returned {value.dtype}, expected {expected}")
    _broadcasts(name, value.shape, space)
    return value


def _broadcasts(name: str, shape: Shape, space: Shape) -> None:
    if len(shape) > 4 or any(n not in (1, m) for n, m in zip(shape[::-1], space[::-1], strict=False)):
        raise ShapeError(f"{name}: got shape {shape}, expected one that broadcasts over [B, H, Tq, Tk] = {list(space)}")


def _over_space(name: str, value: Any, dtype: DType, space: Shape, like: list[Array]) -> Array:
    x = asarray(value, like, name)
    if x.dtype.category != dtype.category:
        raise DtypeError(f"{name}: got {x.dtype}, expected {dtype}")
    _broadcasts(name, x.shape, space)
    return wide(x) if x.dtype.half else x


def _scale(scale: Any) -> float:
    value = number("scale", scale)
    if not abs(value) <= MAX_FLOAT:
        raise ArgumentError(f"scale: got {short(scale)}, expected a finite float32 number")
    return float(value)


def _window(window: Any) -> tuple[int | None, int | None]:
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise ArgumentError(f"window: got {short(window)}, expected (left, right): keys before and after the own one")
    return masks.window_side("left", window[0]), masks.window_side("right", window[1])


def _sinks(sinks: Any, heads: int, like: list[Array]) -> Array:
    x = asarray(sinks, like, "sinks")
    if x.dtype.category != "f":
        raise DtypeError(f"sinks: got {x.dtype}, expected float32")
    if x.shape != (heads,):
        raise ShapeError(f"sinks: got shape {x.shape}, expected [{heads}], one logit a head")
    return wide(x)


def _key(seed: Any, like: list[Array]) -> tuple[Node, Node]:
    """The two words of an int or of a key of vk.random."""
    if isinstance(seed, (Array, np.ndarray)):
        words = asarray(seed, like, "dropout_seed")
        if words.dtype is not uint32 or words.shape != (2,):
            raise DtypeError(f"dropout_seed: got {words.dtype} of shape {words.shape}, expected uint32 [2] or an int")
        return words[0].node, words[1].node
    value = integer("dropout_seed", seed, "an int from 0 to 2**64 - 1, or a key of vk.random")
    if not 0 <= value < 2**64:
        raise ArgumentError(f"dropout_seed: got {value}, expected an int from 0 to 2**64 - 1")
    return build.full((), value & 0xFFFFFFFF, uint32), build.full((), value >> 32, uint32)


def _storage(arrays: list[Array]) -> bool:
    """Whether all have one storage type, to which the result is rounded."""
    return arrays[0].dtype.half and len({x.dtype for x in arrays}) == 1
