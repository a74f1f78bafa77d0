"""The table of planted faults: the tool that has to see each, on what, and what its finger must say.

A fault must be one that somebody could make: a line, a row, a word of a template; never a result that is changed.
Targets are those of the tools' own runs over everything, or near them, so that these runs would see the fault as well.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import faults
import planted

from vkdnn import nn, optim
from vkdnn.autodiff import folds, order, vjp
from vkdnn.check import gradcheck, grid
from vkdnn.check.accuracy.cases import Spec
from vkdnn.check.accuracy.run import Settings, run_case
from vkdnn.check.library import OPERATORS
from vkdnn.check.parity import check
from vkdnn.check.sweep import Sweep
from vkdnn.ir import monoids
from vkdnn.ir.elementary import counter, exponential, normal
from vkdnn.kernels.attention import AttentionSpec
from vkdnn.ops import masks, normalize, reduce

Plant = Callable[[], AbstractContextManager[Any]]

# ---- targets


@dataclass(frozen=True)
class Case:
    """A case of the library: operator or operator/form, with other fields; and options of the tool."""

    name: str
    fields: tuple[tuple[str, Any], ...] = ()
    options: tuple[tuple[str, Any], ...] = ()

    def with_(self, **options: Any) -> Case:
        return replace(self, options=tuple(options.items()))

    @property
    def operator(self) -> Any:
        return OPERATORS[self.name.partition("/")[0]]

    @property
    def whole(self) -> dict[str, Any]:
        """All fields that are not the operator's own."""
        form = self.name.partition("/")[2]
        return {**(self.operator.forms[form] if form else {}), **dict(self.fields)}

    def made(self) -> Any:
        return self.operator.case(**self.whole)


def case(name: str, **fields: Any) -> Case:
    return Case(name, tuple(fields.items()))


@dataclass(frozen=True)
class Rows:
    """Of the grid one operation of a family and length."""

    family: str
    length: int
    only: str
    options: tuple[tuple[str, Any], ...] = ()

    def made(self) -> Any:
        groups = (
            g for family in grid.FAMILIES if self.family.startswith(family[:4]) for g in grid.groups(grid.CI, [family])
        )
        found = next(g for g in groups if (g.family, g.length) == (self.family, self.length) and self.only in g.names)
        number = found.names.index(self.only)
        return replace(found, names=(self.only,), function=lambda *xs: [found.function(*xs)[number]])


# ---- the tools: what one reports of a target, "" where it finds nothing


def by_gradcheck(target: Case) -> str:
    options = dict(target.options)
    report = gradcheck(target.made(), **{"device": "cpu"} | options)
    found = []
    for part in report.parts:
        if part.verdict not in ("ok", "none") and part.worst is not None:
            inputs = sorted({e.input for e in part.entries if e.verdict == "failed"})
            at = f"{part.worst.input}[{', '.join(map(str, part.worst.index or ()))}]"
            found.append(f"{part.name} of {' and '.join(inputs)}: {at} {part.worst.note}")
    return "\n".join([*found, report.reproduce] if found else found)


def by_parity(target: Case | Rows) -> str:
    schedules = AttentionSpec.schedules
    with patch.object(AttentionSpec, "schedules", lambda *given: schedules(*given)[:1]):  # the others take long
        (outcome,) = check([target.made()], **dict(target.options))
    if outcome.ok:
        return ""
    finger = outcome.finger
    found = [f"error: {outcome.error}"] if outcome.error else []
    found += [f"run: {d.run or 'the first'}" for d in outcome.differences[:1]]
    found += [f"flaw of {f.family} {f.label}: {f.what}" for f in outcome.flaws]
    if finger is not None:
        found.append(f"{finger.kind}: Program {finger.program}, kernel {finger.kernel}, {finger.family}")
        found += [finger.verdict, finger.expression, f"schedule {finger.schedule}", f"right under {finger.right}"]
    return "\n".join(found)


def by_accuracy(target: Case) -> str:
    spec = Spec("mutations/CASE", target.operator.name, target.whole, **dict(target.options))
    (row,) = run_case(spec, Settings(("reference",)))
    return "" if row.verdict == "pass" else f"{row.verdict}: {row.result}: {row.reason}; {row.where}"


def by_sweep(target: str) -> str:
    (figures,) = Sweep((target,), None, stride=2**16 + 1, jobs=0).run()
    return "" if figures.ok else f"{figures.function}: error {figures.error} {figures.unit}, bound {figures.bound}"


TOOLS: dict[str, Callable[[Any], str]] = {
    "gradcheck": by_gradcheck, "parity": by_parity, "accuracy": by_accuracy, "sweep": by_sweep,
}  # fmt: skip


# ---- the faults


@dataclass(frozen=True)
class Mutation:
    """``says`` are parts of what the tool reports of the target."""

    name: str
    tool: str
    target: Any
    plant: Plant
    says: tuple[str, ...]


def derivative(row: str, rule: Callable[..., Any]) -> Plant:
    return lambda: planted.other_row(row, derivative=rule)


def line(function: Any, old: str, new: str) -> Plant:
    return lambda: planted.line(function, old, new)


def template(name: str, *changes: tuple[str, str]) -> Plant:
    return lambda: planted.template(name, *changes)


# Of templates/fold.comp.j2: strides of the tree of a workgroup's lanes, and the barrier inside it.
TREE = (
    "for (uint stride = {{ threads // 2 }}u; stride > 0u; stride >>= 1u) {\n            if (group < stride) {",
    "for (uint stride = 1u; stride < {{ threads }}u; stride <<= 1u) {\n            if (group % (2u * stride) == 0u) {",
)
BARRIER = "{% endfor %}\n            }\n            barrier();"
# Of templates/attention.glsl.j2: what a pair gives that is not live.
SUM, WEIGHT, LIVE = "sum{{ r }}_{{ n }}", "w{{ r }}_{{ u }}", "live{{ r }}_{{ u }}"
SKIPPED = f"mul({WEIGHT}, x{{{{ u }}}})); {SUM} = {LIVE} ? more : {SUM}; }}"
TIMES_ZERO = f"mul({LIVE} ? {WEIGHT} : dead, x{{{{ u }}}})); {SUM} = more; }}"
# Of templates/cumulate.comp.j2: the result of the blocks before.
CARRIED = "both = combine(before, prefix);\n            {{ out }}[to] = block == 0u ? prefix : both;"
# Of templates/scan_rows.comp.j2: the token of a step.
TOKEN = 'uint t = {{ "tokens - 1u - step" if reverse else "step" }};\n{% if boundary %}'
EARLIER = 'uint t = {{ "tokens - 1u - step" if reverse else "max(step, 1u) - 1u" }};\n{% if boundary %}'
SCHEDULES, REPEAT = (("schedules", True),), (("repeat", 4),)
BY_INVOCATION, BY_WORKGROUP = (f"FoldSchedule(threads={n}" for n in (1, 128))

# The formula is wrong on both sides, a kernel on both, or bits change with the schedule.
GRADIENTS = (
    Mutation("tanh' = 1 - y", "gradcheck", case("tanh"), derivative("tanh", lambda g, y, x: (g * (1.0 - y),)),
             ("formula of x: x[", "vkdnn gradcheck tanh --seed 0 --input x --index")),
    Mutation("the operands of a product exchanged", "gradcheck", case("multiply"),
             derivative("mul", lambda g, y, a, b: (g * a, g * b)), ("formula of a and b: ",)),
    Mutation("a gradient that both sides have", "gradcheck", case("silu"),
             derivative("silu", lambda g, y, x: (g * y,)), ("formula of x: x[",)),
    Mutation("a coefficient of gelu's slope", "gradcheck", case("gelu"),
             lambda: planted.attribute(normal, "_SQRT_HALF_PI_INVERSE", 0.398), ("device of x: x[",)),
    Mutation("every tie of a maximum gets the whole gradient", "gradcheck", case("max.tied"),
             line(folds._extreme, "g / ties", "g"), ("formula of x: x[",)),
    Mutation("a product's rule without the transposition", "gradcheck", case("matmul", batch=1, m=4, k=4, n=4),
             line(vjp._matmul, "build.matmul(g, transposed(b))", "build.matmul(g, b)"), ("formula of a: a[",)),
    Mutation("take's gradient sets where it should add", "gradcheck", case("take"), faults.take_sets,
             ("formula of x: x[",)),
    Mutation("a slice's gradient one off", "gradcheck", case("index"), faults.slices_one_off, ("formula of x: x[",)),
    Mutation("softmax without its minus term", "gradcheck", case("softmax"),
             derivative("div", lambda g, y, a, b: (g / b, None)), ("formula of x: x[",)),
    Mutation("the bias summed over the wrong axis", "gradcheck", case("layer_norm", rows=5),
             faults.third_input_over_rows, ("formula of bias: bias[",)),
    Mutation("keys' gradient without the scale", "gradcheck", case("attention"), faults.keys_unscaled,
             ("formula of k: k[",)),
    Mutation("a scan's gradient a token late", "gradcheck", case("scan_prefix_outer"), faults.scan_late,
             ("formula of ",)),
    Mutation("a running sum's gradient not reversed", "gradcheck", case("cumsum"),
             line(order.cumulate_rule, 'cumulate("add", _flipped(g), 1)', 'cumulate("add", g, 1)'),
             ("formula of x: x[",)),
    Mutation("a second derivative with the wrong sign", "gradcheck", case("sin").with_(second_order=True),
             derivative("cos", lambda g, y, x: (g * x._map("sin", x),)), ("formula of ", "--second-order")),
    Mutation("a gradient that another schedule adds in another order", "gradcheck",
             case("softmax", columns=37).with_(device=None), template("fold.comp.j2", TREE),
             ("determinism of x: x[", "other schedules")),
)  # fmt: skip

# The device differs from the reference, or may on another day.
BITS = (
    Mutation("a sum's lanes in another order", "parity", Rows("folds", 127, "sum"),
             template("fold.comp.j2", (faults.LANES, "step")),
             ("Program 1, kernel 1, FoldSpec", "%1 = fold add (1,)", f"schedule {BY_INVOCATION}",
              f"right under ('{BY_WORKGROUP}")),
    Mutation("a sum's tree in another order", "parity", Rows("folds", 127, "sum", SCHEDULES),
             template("fold.comp.j2", TREE),
             ("run: schedule 2 of each kernel", f"schedule {BY_WORKGROUP}", f"right under ('{BY_INVOCATION}")),
    Mutation("products in blocks of 64", "parity", case("matmul/blocks"),
             template("matmul_direct.glsl.j2", ("block += 128u", "block += 64u"), ("block + 128u", "block + 64u")),
             ("MatmulSpec", "matmul %")),
    Mutation("a NoContraction dropped", "parity", case("rms_norm"), faults.one_decoration_dropped,
             ("flaw of FoldSpec", "OpF", "at word", "has no NoContraction")),
    Mutation("a barrier missing in a fold", "parity", Rows("folds", 127, "sum", SCHEDULES),
             template("fold.comp.j2", (BARRIER, BARRIER.removesuffix("barrier();"))),
             ("FoldSpec", f"schedule {BY_WORKGROUP}", f"right under ('{BY_INVOCATION}")),
    Mutation("barriers missing in a product's stages", "parity",
             case("matmul", batch=1, m=9, k=40, n=9).with_(schedules=True),
             template("matmul_tiles.glsl.j2", ("barrier();", "")), ("MatmulSpec", "stage_k=16", "right under (")),
    Mutation("argmax's ties to the right", "parity", Rows("folds", 127, "argmax"), faults.argmax_to_the_right,
             ("FoldSpec", "fold argmax (1,)")),
    Mutation("a maximum that drops NaN", "parity", Rows("rows of float32", 257, "maximum"),
             template("numerics.glsl", ("(nan ? NAN_BITS : larger)", "(larger)")),
             ("expression: ", "ExprSpec", "the expression `maximum %")),
    Mutation("spare lanes of +0", "parity", Rows("folds", 127, "sum"), faults.positive_identity,
             ("FoldSpec", "%1 = fold add (1,)")),
    Mutation("hidden keys times zero", "parity", case("attention.mask"),
             template("attention.glsl.j2", (SKIPPED, TIMES_ZERO)), ("AttentionSpec", "attention")),
    Mutation("the last key not seen", "parity", case("attention/full"),
             template("attention.glsl.j2", ("block + e < {{ length }}", "block + e + 1u < {{ length }}")),
             ("Program 1, kernel 1, AttentionSpec", "role='forward'")),
    Mutation("the last block of a causal row left out", "parity", case("attention/blocks"),
             template("attention.glsl.j2", ("int(last_row) + 1 + clamp({{ high", "int(last_row) + clamp({{ high")),
             ("AttentionSpec", "attention")),
    Mutation("float16 cut off, not rounded", "parity", case("exp", dtype="float16"),
             template("numerics.glsl", ("u + 0xfffu + ((u >> 13) & 1u) - 0x38000000u", "u - 0x38000000u")),
             ("expression: ", "ExprSpec", "the expression `to_float16 %")),
    Mutation("memory shared by arrays that live at once", "parity", case("prod"), faults.memory_shared,
             ("order: Program 1", "has written over what it reads: a fault of the memory plan")),
    Mutation("no barriers between kernels", "parity", case("layer_norm"), planted.no_barriers,
             ("no barrier between kernel ", "reads what it writes")),
    Mutation("a sum in an order of chance", "parity", Rows("folds", 127, "sum", REPEAT), faults.sums_by_chance,
             ("run: run 3 in a new recording, against the first", "chance: ", "FoldSpec",
              "does not always give the same")),
    Mutation("shifts by 32 and more", "parity", Rows("rows of int32", 65, "left_shift"),
             template("numerics.glsl", ("{ return a << (b & 31); }", "{ return b >= 0 && b < 32 ? a << b : 0; }")),
             ("expression: ", "the expression `left_shift %")),
    Mutation("indices that are not clamped", "parity", Rows("indices", 65, "take"), faults.indices_not_clamped,
             ("Program 1, kernel 1, ExprSpec",)),  # what it reads instead need not stay the same
    Mutation("a constant of exp one bit off", "parity", Rows("rows of float32", 32769, "exp"),
             lambda: faults.other_literal(exponential._EXP[1]), ("expression: ", "the expression `exp %")),
    Mutation("contributions in descending order", "parity", case("scatter_add"),
             template("scatter.comp.j2", ("row = s;", "row = last - 1u - (s - first);")),
             ("ScatterSpec", "= call scatter ('sum'")),
    Mutation("a block's running sums without those before", "parity", Rows("cumulations", 257, "cumsum"),
             template("cumulate.comp.j2", (CARRIED, CARRIED.replace("? prefix : both", "? prefix : prefix"))),
             ("CumulateSpec", "= call cumulate")),
    Mutation("a gradient of attention rounded otherwise", "parity", case("attention"),
             template("attention.glsl.j2", ("mul(p, sub(dp, delta))", "sub(mul(p, dp), mul(p, delta))")),
             ("AttentionSpec", "role='queries'")),
    Mutation("tokens of a chunk that are not seen", "parity", case("scan_prefix_outer.documents/chunked"),
             template("scan_product.comp.j2", ("i >= low{{ r }} && i < high{{ r }}", "i < high{{ r }}")),
             ("ProductSpec", "= call scan_product")),
    Mutation("a sort that is not stable", "parity", Rows("sorts", 65, "argsort"),
             template("sort.comp.j2", ("other == key && at < own", "other == key && at > own")),
             ("SortSpec", "= call sort SortPass(stage='block'")),
    Mutation("a pad's array one short", "parity", case("pad"), faults.guard_short, ("the expression `pad ",)),
    Mutation("a state that starts a token late", "parity", case("scan_prefix_outer"),
             template("scan_rows.comp.j2", (TOKEN, EARLIER)), ("ScanSpec",)),
    Mutation("quotients of software cut off, not rounded", "parity", Rows("rows of float32", 257, "div"),
             faults.quotients_one_low, ("expression: ", "ExprSpec", "the expression `div %")),
)  # fmt: skip

# Both sides agree, and are wrong.
VALUES = (
    Mutation("rms_norm without eps", "accuracy", case("rms_norm", x_range=(-1e-3, 1e-3)),
             line(normalize.rms_norm, "keepdims=True) + eps)", "keepdims=True))"),
             ("fail: result: largest error", "every element fails")),
    Mutation("softmax without the maximum taken out", "accuracy", case("softmax", x_range=(-120.0, 120.0)),
             line(normalize.softmax, "data - stop_gradient(max(data, axes, keepdims=True))", "data"),
             ("fail: result: ", "elements are NaN or infinite on one side alone", "rows")),
    Mutation("a causal mask one short", "accuracy", case("attention", queries=8, keys=6),
             line(masks.sliding_window, "else own) if right", "else own - 1) if right"),
             ("fail: result 0: ", "all failures in queries >= 2")),
    Mutation("a window one short", "accuracy", case("attention/window", queries=6, keys=6),
             line(masks.sliding_window, "k >= own - left", "k > own - left"),
             ("fail: result 0: ", "all failures in queries >= 1")),
    Mutation("dropout without its scale", "accuracy", case("nn.Dropout"),
             line(nn.dropout, "x * (1.0 / (1.0 - p))", "x"), ("fail: result: largest error",)),
    Mutation("AdamW's corrections exchanged", "accuracy", case("optim.AdamW"),
             line(optim.AdamW.update, "rate, bias1, bias2, scale, betas", "rate, bias2, bias1, scale, betas"),
             ("fail: result 0: largest error",)),
    Mutation("Lion's betas exchanged", "accuracy", case("optim.Lion"),
             line(optim.lion_update, "beta1, beta2 = betas", "beta2, beta1 = betas"), ("fail: ",)),
    Mutation("a round of Philox left out", "accuracy", case("random.bits"),
             lambda: planted.attribute(counter, "ROUNDS", 9), ("fail: result: 15 of 15 integers differ",)),
    Mutation("the logarithm left out of a loss", "accuracy", case("nn.cross_entropy"),
             line(nn.cross_entropy, "logsumexp(logits, keepdims=True) - chosen", "-chosen"), ("fail: result: ",)),
    Mutation("rope turns the other way", "accuracy", case("nn.RoPE"),
             line(nn.RoPE.tables, "where(first, negative(sine), sine)", "where(first, sine, negative(sine))"),
             ("fail: result: ", "all failures in tokens >= 1")),
    Mutation("a variance corrected once too often", "accuracy", case("var"),
             line(reduce._freedom, "_count(x, axes) - (", "_count(x, axes) - 1 - ("),
             ("fail: result: ", "every element fails")),
    Mutation("sums of float16 precision", "accuracy", case("sum"),
             line(reduce._fold, "(op, x.node, axes)", '(op, build.cast(x.astype("float16").node, x.dtype), axes)'),
             ("fail: result: largest error",)),
    Mutation("ties to the right on both sides", "accuracy", case("argmax.ties"),
             line(monoids._position, "tie & (j < i)", "tie & (i < j)"), ("fail: result: ", "integers differ")),
    Mutation("a coefficient of exp to three digits", "accuracy", case("exp", n=1000),
             lambda: faults.other_coefficient(1 + 2e-3), ("fail: result: largest error",)),
    Mutation("a coefficient of exp some units off", "sweep", "exp", lambda: faults.other_coefficient(1 + 2e-5),
             ("exp: error ", " units in the last place, bound 1.0")),
)  # fmt: skip

MUTATIONS = (*GRADIENTS, *BITS, *VALUES)
