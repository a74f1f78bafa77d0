"""vkdnn cache: looking at the store, explaining it, cleaning it, whatever else happens to it."""

import json
import os
import re
import shutil
import threading
import time

import pytest
from typer.testing import CliRunner

from vkdnn.cli import app
from vkdnn.shader import Store, compile_many
from vkdnn.shader.entry import Entry, decode, encode, hashed
from vkdnn.shader.store import bytes_text
from vkdnn.shader.upkeep import KINDS, items
from vkdnn.show import example, kernels

COMMANDS = (
    "stats",
    "list",
    "show",
    "explain-miss",
    "diff",
    "verify",
    "repair",
    "prune",
    "clear",
    "warm",
    "export",
    "import",
)


def run(*arguments):
    result = CliRunner().invoke(app, ["cache", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def told(*arguments, status=0):
    """Standard output as JSON."""
    result = run(*arguments, "--json")
    assert result.exit_code == status, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    patch = pytest.MonkeyPatch()
    patch.setenv("VKDNN_CACHE_DIR", str(folder))
    patch.setattr("vkdnn.shader._memo", {})
    patch.setattr("vkdnn.shader.compiler._found", {})
    for name in ("exp", "softmax", "sum"):
        compile_many([s.request for s in kernels(example(name).outputs((2, 8)))])
    patch.undo()
    return folder


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """A store in a folder that does not exist yet."""
    monkeypatch.setenv("VKDNN_CACHE_DIR", str(tmp_path / "store"))
    monkeypatch.setattr("vkdnn.shader._memo", {})
    return Store(tmp_path / "store")


@pytest.fixture
def store(compiled, empty):
    shutil.copytree(compiled, empty.root)
    return empty


def entries(store):
    """Whole entries by label, oldest first."""
    found = [decode(item.path.read_bytes()) for item in items(store)]
    return sorted(found, key=lambda e: e.record["compiled"])


def variant(store, entry, seconds=60.0, process="999-9", glsl=None, spec=None, **components):
    """Puts an entry that another process made later into the store: other components, other texts."""
    parts = dict(entry.components) | {n.replace("__", "."): v for n, v in components.items()}
    contents = dict(entry.contents)
    if spec is not None:
        contents["spec"], parts["spec"] = spec.encode(), hashed(spec)
    if glsl is not None:
        contents["glsl"], parts["glsl"] = glsl.encode(), hashed(glsl)
    record = entry.record | {"compiled": entry.record["compiled"] + seconds, "process": process}
    made = Entry("shaders", parts, record, contents)
    assert store.save(made)
    return made


def test_every_command_explains_itself():
    for command in COMMANDS:
        result = run(command, "--help")
        assert result.exit_code == 0 and "--json" in result.stdout and "JSON" in result.stdout, command
    assert run("nonsense").exit_code == 2


# ---- stats


def test_stats(store):
    found = told("stats")
    assert found["kinds"]["shaders"]["entries"] == 3 and found["entries"] == 3 + found["kinds"]["compilers"]["entries"]
    assert found["kinds"]["shaders"]["bytes"] == sum(i.bytes for i in items(store))
    assert found["folder"] == str(store.root) and found["format"] == 2 and found["locks"] is True
    assert found["share"] == found["bytes"] / found["max_bytes"] and found["compiler"]["path"]
    assert found["oldest_use"] <= found["newest_use"] <= time.time()
    text = run("stats").stdout
    assert found["works"] is True and found["trouble"] is None and "works        yes" in text
    assert "newest less than a minute ago" in text
    assert "shaders      3 entries" in text and str(store.root) in text and "locks        usable" in text


def test_stats_of_what_lies_around(store, monkeypatch):
    (store.base / "quarantine").mkdir()
    (store.base / "quarantine" / f"shaders-{0:064}").write_bytes(b"12345")
    shard = next(items(store)).path.parent
    (shard / ".new-abc").write_bytes(b"123")
    os.utime(shard / ".new-abc", (1e9, 1e9))
    monkeypatch.setenv("VKDNN_GLSLANG", "/nonexistent/glslang")
    monkeypatch.setenv("VKDNN_CACHE_MAX_BYTES", "1M")
    found = told("stats")
    assert found["quarantined"] == {"entries": 1, "bytes": 5} and found["leftovers"] == {"entries": 1, "bytes": 3}
    assert found["compiler"] is None and "VKDNN_GLSLANG" in found["compiler_error"]
    assert found["max_bytes"] == 1 << 20
    assert "1 file, 5 bytes; `vkdnn cache prune` removes them" in run("stats").stdout


def test_stats_beyond_the_cap_name_the_command(store, monkeypatch):
    monkeypatch.setenv("VKDNN_CACHE_MAX_BYTES", "1K")
    assert "of 1.0 KiB (" in run("stats").stdout and "`vkdnn cache prune` removes what is beyond" in run("stats").stdout
    monkeypatch.setenv("VKDNN_CACHE_MAX_BYTES", "0")
    assert told("stats")["share"] is None


def test_stats_say_whether_the_folder_works(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VKDNN_CACHE_DIR", str(tmp_path / "file" / "store"))
    found = told("stats")
    assert found["works"] is False and "takes no new folder (Not a directory)" in found["trouble"]
    assert "works        no: " in run("stats").stdout and "set VKDNN_CACHE_DIR to another folder" in run("stats").stdout
    monkeypatch.setenv("VKDNN_CACHE_DIR", str(tmp_path / "new"))
    assert told("stats")["works"] is True and not list(tmp_path.rglob(".new-*"))


def test_an_empty_store_is_no_error(empty, monkeypatch):
    monkeypatch.setenv("VKDNN_GLSLANG", "/nonexistent/glslang")  # nothing may be stored about the compiler
    assert told("stats")["entries"] == 0 and "not made yet" in run("stats").stdout
    assert told("stats")["locks"] is None
    assert told("list") == {"total": 0, "shown": 0, "entries": []}
    assert "no entries in" in run("list").stdout and "no entries like that" in run("list", "--match", "x").stdout
    assert told("explain-miss")["shaders"] == []
    assert "has no shader that was compiled here yet" in run("explain-miss").stdout
    assert told("verify")["entries"] == 0
    for command in ("repair", "prune", "clear"):
        assert told(command)["dry_run"] is False
    assert "no entry of" in run("show", "abcd").stderr
    assert "nothing to export" in run("export", empty.root.parent / "a.zip").stderr
    assert not empty.root.exists()


def test_a_store_that_is_switched_off(store, monkeypatch):
    monkeypatch.setenv("VKDNN_CACHE_DISABLE", "1")
    for command in ("stats", "list", "verify", "clear", "explain-miss"):
        result = run(command)
        assert result.exit_code == 1 and "VKDNN_CACHE_DISABLE" in result.stderr


# ---- list


def test_list(store):
    found = told("list")
    assert found["total"] == found["shown"] == 3
    row = found["entries"][0]
    assert set(row) == {"key", "kind", "family", "label", "bytes", "compiled", "used", "seconds"}
    assert len(row["key"]) == 64 and row["seconds"] > 0 and row["compiled"] <= time.time()
    text = run("list").stdout
    assert "<1m" in text
    assert re.search(r"^key +family +label +size +age +used +took", text, re.MULTILINE)
    assert row["key"][:12] in text and row["label"] in text


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("used", lambda r: -r["used"]),
        ("compiled", lambda r: -r["compiled"]),
        ("size", lambda r: -r["bytes"]),
        ("seconds", lambda r: -r["seconds"]),
        ("label", lambda r: r["label"]),
        ("key", lambda r: r["key"]),
    ],
)
def test_lists_are_sorted(store, sort, order):
    for number, item in enumerate(items(store)):
        os.utime(item.path, (1e9 + number, 1e9 + number))
    rows = told("list", "--sort", sort)["entries"]
    assert [order(r) for r in rows] == sorted(order(r) for r in rows)
    assert told("list", "--sort", sort, "--match", "fold")["total"] == 2


def test_lists_are_chosen(store):
    assert {r["family"] for r in told("list", "--family", "fold")["entries"]} == {"FoldSpec"}
    assert told("list", "--family", "FoldSpec")["total"] == 2
    assert told("list", "--match", "EXPR")["total"] == 1
    few = told("list", "--limit", "1")
    assert few["total"] == 3 and few["shown"] == 1
    assert "1 of 3 entries; --limit 0 lists all" in run("list", "--limit", "1").stdout
    assert told("list", "--limit", "0")["shown"] == 3
    assert told("list", "--kind", "verdicts")["total"] == 0
    assert run("list", "--kind", "x").exit_code == 1 and "shaders, verdicts" in run("list", "--kind", "x").stderr


def test_labels_cannot_move_the_cursor(store):
    whole = entries(store)[0]
    whole.record["label"] = "evil \x1b[2J[red]\nlabel"
    store.save(whole)
    for command in (("list",), ("show", whole.key), ("explain-miss", "-v"), ("explain-miss", whole.key)):
        result = run(*command)
        assert "\x1b" not in result.stdout and "[red]" in result.stdout, command


# ---- show, diff


def test_show(store):
    whole = entries(store)[1]
    found = told("show", whole.key[:8])
    assert found["key"] == whole.key and found["components"] == whole.components and found["record"] == whole.record
    assert found["glsl"] == whole.text("glsl") and found["spec"] == whole.text("spec")
    assert found["contents"] == {name: len(data) for name, data in whole.contents.items()}
    assert "OpFunction" in found["spirv"] and found["spirv_error"] is None
    text = run("show", whole.key).stdout
    for part in ("template numerics.glsl", "    1 | #version 450", "OpFunction", "binding 0", "maxComputeWork"):
        assert part in text
    assert "(0." in text or "const" not in whole.text("spec")  # constants can be read


def test_show_writes_one_text(store, tmp_path):
    whole = entries(store)[0]
    assert run("show", whole.key, "--glsl", "-").stdout == whole.text("glsl")
    assert run("show", whole.key, "--spirv", tmp_path / "a.spv", "--spec", tmp_path / "a.txt").stdout == ""
    assert (tmp_path / "a.spv").read_bytes() == whole.contents["spirv"]
    assert (tmp_path / "a.txt").read_text() == whole.text("spec")
    assert run("show", whole.key, "--glsl", "-", "--spec", "-").exit_code == 2
    assert run("show", whole.key, "--glsl", "-", "--json").exit_code == 2
    result = run("show", whole.key, "--glsl", tmp_path / "no" / "a")
    assert result.exit_code == 1 and "cannot write" in result.stderr
    other = next(items(Store(store.root, "compilers"))).key
    assert "has no glsl; it has version" in run("show", other, "--glsl", "-").stderr
    assert "version" in run("show", other).stdout


def test_keys_by_their_beginning(store):
    keys = [item.key for item in items(store)]
    for bad in ("abc", "xyzw", "a" * 65, "[red]"):
        assert "4 or more hexadecimal digits" in run("show", bad).stderr
    assert told("show", keys[0][:6].upper())["key"] == keys[0]
    twin = keys[0][:10] + "f" * 54
    store.path(twin).write_bytes(b"not an entry")
    result = run("show", keys[0][:6])
    assert result.exit_code == 1 and "2 entries begin with" in result.stderr and "(damaged)" in result.stderr
    assert "is damaged" in run("show", twin).stderr


def test_without_a_disassembler_show_says_how_to_get_one(store, monkeypatch):
    monkeypatch.setattr("vkdnn.show.shutil.which", lambda name, **k: None)
    key = entries(store)[0].key
    assert "install the Debian package spirv-tools" in run("show", key).stdout
    assert "spirv-tools" in told("show", key)["spirv_error"]


def test_diff(store):
    old = entries(store)[1]
    new = variant(store, old, compiler="Glslang Version: 11:13.1.0", glsl=old.text("glsl") + "// more\n")
    found = told("diff", old.key, new.key)
    assert (found["a"]["key"], found["b"]["key"]) == (old.key, new.key)
    assert [c["component"] for c in found["changes"]] == ["compiler", "glsl"]
    assert {c["name"]: c["same"] for c in found["components"]}["flags"] is True
    assert found["spec"] == [] and "+// more" in found["glsl"]
    text = run("diff", old.key, new.key).stdout
    assert "≠  compiler" in text and "+// more" in text and "the same" in text
    assert told("diff", old.key, old.key)["changes"] == []


# ---- explain-miss


def test_why_the_last_process_compiled(store):
    old = entries(store)[1]
    variant(store, old, compiler=old.components["compiler"].replace("12.0", "99.1"))
    spec = old.text("spec").replace("elements [8]", "elements [16]")
    variant(store, old, seconds=61.0, spec=spec)
    found = told("explain-miss")
    assert found["process"] == "999-9" and found["store"] == str(store.root) and len(found["shaders"]) == 2
    first, second = found["shaders"]
    assert re.fullmatch(r"compiler \S+ → \S+", first["reason"]) and first["nearest"] == old.key
    assert second["reason"] == "spec: elements [8] → elements [16]" and second["same_process"] is False
    assert second["changes"][0]["component"] == "spec"
    text = run("explain-miss").stdout
    assert "2 shaders compiled by process 999, the last that compiled anything, " in text
    assert "; nothing was compiled since" in text and "1 shader: spec: elements [8] → elements [16]" in text


def test_shaders_of_one_reason_are_told_together(store):
    for old in entries(store):
        parts = {n: v for n, v in old.components.items() if n == "template numerics.glsl"}
        new = dict(old.components) | dict.fromkeys(parts, "0" * 64)
        record = old.record | {"compiled": time.time() + 60, "process": "9-9"}
        store.save(Entry("shaders", new, record, old.contents | {"glsl": old.contents["glsl"] + b"// changed\n"}))
    text = run("explain-miss").stdout
    assert "3 shaders: template numerics.glsl changed" in text
    verbose = run("explain-miss", "--verbose").stdout
    assert verbose.count("+// changed") == 3


def test_why_one_was_compiled(store):
    old = entries(store)[1]
    new = variant(store, old, strategies="subnormals=native,division=native")
    text = run("explain-miss", new.key[:8]).stdout
    assert "strategies " in text and f"vkdnn cache diff {old.key[:12]} {new.key[:12]}" in text
    assert told("explain-miss", new.key)["shaders"][0]["nearest"] == old.key
    first = entries(store)[0]
    assert told("explain-miss", first.key)["shaders"][0]["reason"].startswith("the first of its kind: no older")
    assert run("explain-miss", "feed").exit_code == 1


def test_removed_entries_are_the_reason(store):
    old = entries(store)[0]
    assert told("clear", "--kind", "shaders")["entries"]["entries"] == 3
    variant(store, old, seconds=time.time() + 10 - old.record["compiled"])
    found = told("explain-miss")["shaders"]
    assert found[0]["removed"]["reason"] == "cleared" and found[0]["nearest"] is None
    assert "its entry was removed: cleared" in run("explain-miss").stdout


def test_several_shaders_of_one_reason_are_told_in_the_plural(store):
    three = entries(store)
    told("clear", "--kind", "shaders")
    for old in three:
        variant(store, old, seconds=time.time() + 10 - old.record["compiled"])
    assert "3 shaders: their entries were removed: cleared" in run("explain-miss").stdout
    for spec in ("one word", "another"):
        variant(store, three[0], seconds=time.time() + 99 - three[0].record["compiled"], process="5-5", spec=spec)
    assert "2 shaders: the first of their kind" in run("explain-miss").stdout


def test_neighbours_that_were_removed_since_are_told(store):
    old = entries(store)[0]  # the only one of its family
    new = variant(store, old, compiler="Glslang Version: 11:99.0.0")
    store.path(old.key).unlink()
    Store(store.root, "verdicts").note_removed(["v"], "cleared")  # not of shaders
    store.note_removed([old.key, "a"], "evicted by the size cap of 1.0 KiB")
    lines = (store.base / "removed.jsonl").read_text().splitlines()
    late = [json.dumps(json.loads(line) | {"time": new.record["compiled"] + 1}) for line in lines]
    (store.base / "removed.jsonl").write_text("\n".join(late) + "\n")
    expected = "nothing like it is left: 2 entries were removed since (evicted by the size cap of 1.0 KiB)"
    assert told("explain-miss", new.key)["shaders"][0]["reason"] == expected
    assert told("explain-miss")["removed_since"][0]["count"] == 2
    text = run("explain-miss").stdout
    assert expected in text and "the last of which anything is left" in text and "nothing was compiled" not in text
    assert "what is evicted is compiled again: set VKDNN_CACHE_MAX_BYTES to more than a run needs" in text


def test_neighbours_that_were_removed_before_are_told(store):
    old = entries(store)[1]
    store.path(old.key).unlink()
    store.note_removed([old.key], "cleared")
    new = variant(store, old, seconds=time.time() + 9 - old.record["compiled"], compiler="Glslang Version: 11:99.0.0")
    for entry in entries(store)[:-1]:
        store.path(entry.key).unlink()
    one = "the first of its kind among what was left: 1 entry was removed before (cleared)"
    assert told("explain-miss", new.key)["shaders"][0]["reason"] == one
    assert "nothing older was left: 1 shader; 1 entry was removed before (cleared)" in run("explain-miss").stdout


def test_a_nearer_one_may_have_been_removed(store):
    new = variant(
        store, entries(store)[2], spec=entries(store)[2].text("spec").replace("elements [8]", "elements [16]")
    )
    text = run("explain-miss", new.key).stdout
    assert "against the nearest older entry" in text and "may be among" not in text
    lines = [{"key": "a", "kind": "shaders", "reason": "cleared", "time": new.record["compiled"] + 1}]
    (store.base / "removed.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "1 entry was removed since (cleared): a nearer one may be among" in run("explain-miss", new.key).stdout


def test_what_was_compiled_and_evicted_at_once_is_told(empty, monkeypatch):
    monkeypatch.setenv("VKDNN_CACHE_MAX_BYTES", "0")
    compile_many([s.request for s in kernels(example("exp").outputs((2, 8)))])
    text = run("explain-miss").stdout
    assert "1 entry was removed (evicted by the size cap of 0 bytes), the last" in text
    assert "set VKDNN_CACHE_MAX_BYTES to more than a run needs (it is 0 bytes now)" in text
    found = told("explain-miss")
    assert found["shaders"] == [] and found["removed_since"][0]["reason"] == "evicted by the size cap of 0 bytes"


def test_a_cold_start_is_one_line(store):
    text = run("explain-miss").stdout
    assert text.splitlines()[2] == "the store was empty: 3 shaders" and "first of" not in text
    assert (
        told("explain-miss")["store_was_empty"] and not told("explain-miss", entries(store)[0].key)["store_was_empty"]
    )
    assert "first of" in run("explain-miss", "--verbose").stdout
    variant(store, entries(store)[1], flags="-V -g")
    assert "the store was empty" not in run("explain-miss").stdout


def test_a_learning_rate_that_is_a_constant(empty):
    """The example of the documentation: a number that changes from call to call."""
    import numpy as np

    import vkdnn as vk

    x = vk.array(np.ones(4, np.float32))
    for number in (1000015.0, 1000025.0):
        (x * number + 1).numpy()
    reasons = [s["reason"] for s in told("explain-miss")["shaders"]]
    assert "spec: 1000015.0 → 1000025.0" in reasons


# ---- prune, clear


def test_prune_by_size_and_age(store):
    everything = sorted(items(store), key=lambda i: i.key)
    for number, item in enumerate(everything):
        os.utime(item.path, (time.time() - 100 * number, time.time() - 100 * number))
    size = everything[0].bytes + sum(i.bytes for i in items(Store(store.root, "compilers")))
    tried = told("prune", "--max-bytes", size, "--dry-run")
    assert tried["surplus"]["entries"] == 2 and tried["dry_run"] and len(list(items(store))) == 3
    assert told("prune", "--max-bytes", size)["surplus"] == tried["surplus"]
    assert [i.key for i in items(store)] == [everything[0].key]
    os.utime(everything[0].path, (1e9, 1e9))
    assert told("prune")["expired"]["entries"] == 1  # half a year is the default
    assert "removed" in run("prune", "--max-days", "0").stdout
    assert all(not list(items(Store(store.root, kind))) for kind in KINDS)
    assert "is '1x', expected a number of bytes" in run("prune", "--max-bytes", "1x").stderr
    reasons = [json.loads(line)["reason"] for line in (store.base / "removed.jsonl").read_text().splitlines()]
    assert reasons[:2] == [f"pruned to {bytes_text(size)}"] * 2 and "not used for long" in reasons


def test_prune_removes_what_was_set_aside(store):
    (store.base / "quarantine").mkdir()
    (store.base / "quarantine" / f"shaders-{0:064}").write_bytes(b"12345")
    assert told("prune", "--dry-run")["quarantined"] == {"entries": 1, "bytes": 5}
    assert "damaged files that were set aside: 1" in run("prune").stdout
    assert told("prune")["quarantined"]["entries"] == 0 and told("stats")["kinds"]["shaders"]["entries"] == 3


def test_clear_removes_the_store_and_nothing_else(store):
    """Someone may keep it in their home folder."""
    mine = [store.root / "letter.txt", store.base / "shaders" / "notes", store.base / "shaders" / "ab" / "draft.txt"]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    link = store.root / "link"
    link.symlink_to(store.root.parent)
    assert told("clear", "--dry-run")["entries"]["entries"] >= 3 and len(list(items(store))) == 3
    told("clear")
    assert all(path.read_text() == "mine" for path in mine) and link.is_symlink()
    left = {p.name for p in store.root.rglob("*") if p.is_file()}
    assert left == {"letter.txt", "notes", "draft.txt", "removed.jsonl"}
    assert not (store.base / "locks").exists()


def test_clear_of_one_kind(store):
    found = told("clear", "--kind", "compilers")
    assert found["entries"]["entries"] == 1 and found["left"]["entries"] == 3 and "leftovers" not in found
    assert run("clear", "--kind", "x").exit_code == 1


def test_clear_beside_a_process_that_compiles(store):
    with store.locked("00" * 32), store.locked("ff" * 32):
        told("clear")
        assert {p.name for p in (store.base / "locks").iterdir()} == {"00", "ff"}


# ---- verify, repair


def test_verify_and_repair(store):
    assert told("verify", "--recompile", "0") == {
        "entries": 4, "recompiled": 3, "other_compiler": 0, "wrong": [], "spirv_val": bool(shutil.which("spirv-val")),
    }  # fmt: skip
    first, second, third = entries(store)
    path = store.path(first.key)
    path.write_bytes(path.read_bytes()[:-1])
    forged = Entry(
        "shaders", second.components, second.record, second.contents | {"spirv": third.contents["spirv"][:-4]}
    )
    store.save(forged)
    shutil.copy(store.path(third.key), store.path(third.key[:-1] + "0"))
    found = told("verify", status=1)
    troubles = {w["key"]: w["trouble"] for w in found["wrong"]}
    assert len(troubles) == 3 and "checksum" in troubles[first.key] and "truncated" in troubles[second.key]
    assert "`vkdnn cache repair` sets them aside" in run("verify").stdout
    assert told("repair", "--dry-run")["quarantined"]["entries"] == 3 and len(list(items(store))) == 4
    assert told("repair")["quarantined"]["entries"] == 3
    assert [i.key for i in items(store)] == [third.key] and told("verify")["wrong"] == []
    assert len(list((store.base / "quarantine").iterdir())) == 3
    assert "1 entry" in run("verify").stdout or "2 entries looked at" in run("verify").stdout


def test_only_compiling_again_finds_spirv_of_another_shader(store):
    first, second, _ = entries(store)
    store.save(Entry("shaders", first.components, first.record, first.contents | {"spirv": second.contents["spirv"]}))
    variant(store, second, compiler="Glslang Version: 11:99.0.0")
    assert told("verify")["wrong"] == []
    found = told("verify", "--recompile", "0", status=1)
    assert [w["trouble"] for w in found["wrong"]] == ["compiled again, its GLSL gives other SPIR-V"]
    assert found["other_compiler"] == 1 and found["recompiled"] == 3
    assert "1 of another compiler left out" in run("verify", "--recompile", "0").stdout


def test_repair_sweeps(store):
    shard = next(items(store)).path.parent
    (shard / ".new-abc").write_bytes(b"123")
    os.utime(shard / ".new-abc", (1e9, 1e9))
    old = store.root / "v1" / "shaders" / "ab" / ("ab" * 32)
    old.parent.mkdir(parents=True)
    old.write_bytes(b"vkdnn entry 1 ")
    found = told("repair", "--dry-run")
    assert found["leftovers"]["entries"] == found["old_formats"]["entries"] == 1 and old.exists()
    assert "removed 1 leftover (3 bytes) and 1 entry of old formats" in run("repair").stdout
    assert not old.exists() and not (shard / ".new-abc").exists()


# ---- beside other processes


def test_no_command_stumbles_over_a_store_that_changes(store, tmp_path):
    """Entries appear, vanish and are damaged while the commands read."""
    whole = [(store.path(e.key), encode(e)) for e in entries(store)]
    stop = threading.Event()

    def disturb():
        number = 0
        while not stop.is_set():
            path, data = whole[number % len(whole)]
            number += 1
            if number % 7 == 0:
                shutil.rmtree(store.folder, ignore_errors=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            for content in (data, data[:-9], b"", data):
                try:
                    path.write_bytes(content)
                    if number % 3 == 0:
                        path.unlink()
                except OSError:
                    pass

    thread = threading.Thread(target=disturb)
    thread.start()
    key = whole[0][0].name
    try:
        for number in range(6):
            for command in (
                ("stats",), ("list",), ("list", "--sort", "label"), ("show", key), ("diff", key, whole[1][0].name),
                ("explain-miss",), ("explain-miss", key), ("verify",), ("repair",), ("prune", "--max-bytes", "20000"),
                ("export", tmp_path / f"a{number}.zip"), ("clear",),
            ):  # fmt: skip
                result = run(*command)
                assert result.exit_code in (0, 1) and "Traceback" not in result.output, command
    finally:
        stop.set()
        thread.join()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(store):
    for folder, _, _ in os.walk(store.root):
        os.chmod(folder, 0o500)
    try:
        assert told("verify")["wrong"] == [] and told("explain-miss")["shaders"]
        result = run("clear")
        assert result.exit_code == 1 and result.stderr.startswith("error: ")
    finally:
        for folder, _, _ in os.walk(store.root):
            os.chmod(folder, 0o700)
