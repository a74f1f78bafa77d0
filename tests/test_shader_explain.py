"""Explanations of misses: pure functions on entries."""

import json

import pytest

from vkdnn.shader.entry import Entry, short
from vkdnn.shader.explain import (
    Index,
    changes,
    float_text,
    last_process,
    parse_removals,
    readable,
    removal_before,
    removed_text,
    spec_differences,
    unified,
)

SPEC = """\
fold rows (rows, ) elements [8]
  %0 = load float32 in0[8*i0 + 1*i1]
  %1 = const float32 0x497424f0
  %2 = mul float32 %0 %1
  %3 = reduced float32 0
  reduced 0 = maximum over elements of %2
  out0[8*i0 + 1*i1] = %3 per element

schedule FoldSchedule(threads=1, rows=128)"""
OLD_COMPILER = "Glslang Version: 11:12.0.0 | ESSL Version: OpenGL ES GLSL 3.20 glslang Khronos. 12.0.0"
NEW_COMPILER = "Glslang Version: 11:13.1.0 | ESSL Version: OpenGL ES GLSL 3.20 glslang Khronos. 13.1.0"


def entry(spec=SPEC, family="FoldSpec", compiled=1.0, process="1-1", glsl="void main() {}", **other):
    components = {
        "spec": spec,
        "strategies": "subnormals=native,division=native",
        "template fold.comp.j2": "a" * 64,
        "template numerics.glsl": "b" * 64,
        "glsl": f"// {spec}\n{glsl}",
        "compiler": OLD_COMPILER,
        "flags": "-V",
    } | {name.replace("_", " "): value for name, value in other.items()}
    record = {"label": spec.split("\n")[0], "family": family, "compiled": compiled, "process": process}
    contents = {"spec": spec.encode(), "glsl": components["glsl"].encode(), "spirv": b""}
    return Entry("shaders", short({n: v for n, v in components.items() if v}), record, contents)


def texts(old, new):
    return [c.text for c in changes(old, new)]


def test_the_messages():
    old = entry()
    changed = {**old.components, "template fold.comp.j2": "c" * 64}
    assert texts(old, Entry("shaders", changed)) == ["template fold.comp.j2 changed"]
    assert texts(old, entry(compiler=NEW_COMPILER)) == ["compiler 12.0.0 → 13.1.0"]
    assert texts(old, entry(SPEC.replace("0x497424f0", "0x49742590"))) == ["spec: 1000015.0 → 1000025.0"]
    assert texts(old, entry(strategies="subnormals=native,division=remainder")) == [
        "strategies division=native → division=remainder"
    ]
    assert texts(old, entry(flags="-V -g")) == ["flags -V → -V -g"]
    assert texts(old, entry(glsl="other")) == [
        "the GLSL that vkdnn makes of the same spec changed: another version of vkdnn"
    ]
    assert texts(old, old) == []


def test_templates_come_and_go():
    old, new = entry(), entry()
    del new.components["template numerics.glsl"]
    new.components["template new.glsl"] = "d" * 64
    assert texts(old, new) == [
        "template numerics.glsl is not used any more",
        "template new.glsl is new",
    ]


def test_several_components_at_once():
    new = entry(SPEC.replace("[8]", "[32]"), compiler=NEW_COMPILER)
    assert texts(entry(), new) == ["spec: elements [8] → elements [32]", "compiler 12.0.0 → 13.1.0"]
    assert changes(entry(), new)[1].before == OLD_COMPILER


def test_compilers_of_one_version_show_all_that_they_say():
    old, new = entry(compiler="Glslang Version: 11:12.0.0 x"), entry(compiler="Glslang Version: 11:12.0.0 y")
    assert texts(old, new) == ["compiler Glslang Version: 11:12.0.0 x → Glslang Version: 11:12.0.0 y"]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("maximum over", "add over", ["spec: maximum → add"]),
        ("mul float32", "add float32", ["spec: mul → add"]),
        ("in0[8*i0 + 1*i1]", "in0[1*i0 + 8*i1]", ["spec: in0[8*i0 + 1*i1] → in0[1*i0 + 8*i1]"]),
        ("rows=128", "rows=64", ["schedule: rows 128 → 64"]),
        ("FoldSchedule(", "Other(", ["schedule: FoldSchedule → Other"]),
        ("  %3 =", "  %7 = exp float32 %2\n  %3 =", ["spec: instruction added: exp float32 %2"]),
        ("  %2 = mul float32 %0 %1\n", "", ["spec: instruction removed: mul float32 %0 %1"]),
        ("const float32 0x497424f0", "const int32 0x00000001", ["spec: float32 → const int32"]),
    ],
)
def test_what_changed_in_a_spec(before, after, expected):
    found = spec_differences(SPEC, SPEC.replace(before, after))
    if "int32" in after:
        assert found and all(text.startswith("spec: ") for text in found)
    else:
        assert found == expected


def test_values_that_moved_are_no_difference():
    moved = SPEC.replace("%1", "%9")
    assert spec_differences(SPEC, moved) == ["spec: the numbering of its values"]


def test_many_lines_are_summed_up():
    more = SPEC.replace("  %3 =", "".join(f"  %{i} = exp float32 %2\n" for i in range(10, 14)) + "  %3 =")
    assert spec_differences(SPEC, more) == ["spec: 4 instructions added (4 exp)"]


def test_only_a_few_differences_stand_in_the_message():
    for bits in ("0x3f800000", "0x40000000", "0x40400000", "0x40800000", "0x40a00000"):
        old = SPEC + "".join(f"\n  %{i} = const float32 {bits}" for i in range(5))
        new = SPEC + "".join(f"\n  %{i} = const float32 0x3dcccc{i:02x}" for i in range(5))
        assert texts(entry(old), entry(new))[0].endswith("; and 2 more")


@pytest.mark.parametrize(
    ("bits", "text"),
    [
        ("0x00000000", "0.0"),
        ("0x80000000", "-0.0"),
        ("0x7f800000", "inf"),
        ("0xff800000", "-inf"),
        ("0x7fc00000", "nan"),
        ("0x3dcccccd", "0.1"),
        ("0x497424f0", "1000015.0"),
        ("0x322bcc77", "1.0e-08"),
        ("0x7f7fffff", "3.4028235e+38"),
    ],
)
def test_floats_as_they_are(bits, text):
    assert float_text(bits) == text
    assert readable(f"%1 = const float32 {bits}") == f"%1 = const float32 {bits} ({text})"


# ---- the nearest


def nearest(of, *others):
    whole = {e.key: e for e in (of, *others)}
    return Index(whole.values()).nearest(of, lambda header: whole.get(header.key))


def test_the_same_spec_comes_before_one_that_is_like_it():
    new = entry(compiled=9.0, compiler=NEW_COMPILER)
    same, alike = entry(compiled=2.0), entry(SPEC.replace("[8]", "[32]"), compiled=3.0, compiler=NEW_COMPILER)
    assert nearest(new, same, alike) is same


def test_of_several_of_the_same_spec_the_one_with_fewest_changes():
    new = entry(compiled=9.0, process="2-2", compiler=NEW_COMPILER)
    near, far = entry(compiled=2.0), entry(compiled=3.0, flags="-g")
    assert nearest(new, far, near) is near


def test_the_most_similar_spec():
    new = entry(SPEC.replace("0x497424f0", "0x3f800000"), compiled=9.0, process="2-2")
    close = entry(SPEC, compiled=2.0)
    far = entry(SPEC.replace("maximum", "add").replace("[8]", "[64]").replace("8*i0", "64*i0"), compiled=3.0)
    assert nearest(new, far, close) is close


def test_younger_and_foreign_ones_are_not_near():
    new = entry(compiled=5.0)
    assert nearest(new) is None
    assert nearest(new, entry(compiler=NEW_COMPILER, compiled=6.0)) is None
    assert nearest(new, entry(family="ExprSpec", flags="-g", compiled=1.0)) is None
    assert nearest(new, entry("fold something else\nentirely", compiled=1.0)) is None


def test_imported_ones_are_there_since_their_import():
    new = entry(compiled=5.0, process="2-2")
    for moment, found in ((4.0, True), (6.0, False)):
        old = entry(compiled=1.0, compiler=NEW_COMPILER)
        old.record["imported"] = {"time": moment, "archive": "a.zip"}
        assert (nearest(new, old) is old) is found


def test_of_the_same_process_only_one_with_other_numbers():
    new = entry(compiled=5.0)
    assert nearest(new, entry(SPEC.replace("[8]", "[32]"), compiled=4.0)) is not None
    assert nearest(new, entry(SPEC.replace("maximum", "add"), compiled=4.0)) is None
    assert nearest(new, entry(SPEC.replace("maximum", "add"), compiled=4.0, process="0-0")) is not None


def test_entries_that_vanish_meanwhile():
    new, old = entry(compiled=9.0, process="2-2"), entry(SPEC.replace("[8]", "[32]"), compiled=1.0)
    assert Index([new, old]).nearest(new, lambda header: None) is None
    same = entry(compiled=1.0, compiler=NEW_COMPILER)
    found = Index([new, same]).nearest(new, lambda header: None)
    assert found is same  # its header says enough
    assert texts(Entry("shaders", old.components, old.record), new) == ["spec changed"]


# ---- records


def test_the_last_process():
    first, second = entry(compiled=1.0), entry(compiled=2.0, flags="-g", process="2-2")
    third = entry(compiled=3.0, flags="-h", process="2-2")
    imported = entry(compiled=9.0, flags="-i", process="7-7")
    imported.record["imported"] = {"time": 1.0, "archive": "x"}
    assert last_process([third, imported, first, second]) == [second, third]
    assert last_process([]) == [] and last_process([imported]) == []
    assert last_process([Entry("shaders", {}, {"compiled": "?"})]) == []


def test_removed_entries():
    new = entry(compiled=10.0)
    lines = [{"key": new.key, "reason": r, "time": t} for r, t in (("cleared", 3.0), ("damaged", 5.0), ("later", 11.0))]
    text = "\n".join(map(json.dumps, [*lines, {"key": "other", "reason": "cleared", "time": 9.0}]))
    found = parse_removals(text + '\n[1]\n{"key": 3}\n{"key": "half')
    assert len(found) == 4
    removal = removal_before(new, found)
    assert (removal.reason, removal.time) == ("damaged", 5.0)
    assert removal_before(entry(flags="-g"), found) is None
    assert removed_text(found[:1], "since") == "1 entry was removed since (cleared)"
    assert removed_text([*found[:2], found[0]]) == "3 entries were removed (cleared, damaged)"


def test_texts_side_by_side():
    assert unified("a\nb", "a\nc", ("x", "y")) == ["--- x", "+++ y", "@@ -1,2 +1,2 @@", " a", "-b", "+c"]
    assert unified("a", "a", ("x", "y")) == []
