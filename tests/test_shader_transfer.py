"""Archives of entries: what one machine exported another believes only after verifying it."""

import io
import json
import os
import shutil
import stat
import tarfile
import zipfile

import pytest

from vkdnn.errors import CompileError, StoreError
from vkdnn.shader import Compiler, Store, compile_many
from vkdnn.shader.entry import Entry, decode, digest, encode, short
from vkdnn.shader.reflect import reflect
from vkdnn.shader.transfer import MAX_ENTRY_BYTES, export_entries, import_entries, members
from vkdnn.shader.upkeep import items
from vkdnn.shader.verify import not_found_here, recompiled, same_compiler, spirv_trouble, spirv_val, trouble, validator
from vkdnn.show import example, kernels

ARCHIVES = ("store.tar.gz", "store.tgz", "store.zip")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A folder with a store of three shaders."""
    folder = tmp_path_factory.mktemp("store")
    patch = pytest.MonkeyPatch()
    patch.setenv("VKDNN_CACHE_DIR", str(folder))
    patch.setattr("vkdnn.shader._memo", {})
    compile_many([s.request for name in ("exp", "softmax", "sum") for s in kernels(example(name).outputs((2, 8)))])
    patch.undo()
    return folder


@pytest.fixture
def full(compiled, tmp_path):
    shutil.copytree(compiled, tmp_path / "full")
    return Store(tmp_path / "full")


@pytest.fixture
def empty(tmp_path):
    return Store(tmp_path / "empty")


def keys(store):
    return sorted(item.key for item in items(store))


def exported(store, path):
    export_entries([item.path for item in items(store)], path)
    return path


def an_entry(store):
    return decode(store.path(keys(store)[0]).read_bytes())


def changed(entry, **parts):
    """An entry with other parts, and a checksum and a key that fit them."""
    kept = {"components": entry.components, "record": entry.record, "contents": entry.contents} | parts
    return Entry(parts.get("kind", entry.kind), kept["components"], kept["record"], kept["contents"])


def tar_of(path, files):
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def zip_of(path, files):
    with zipfile.ZipFile(path, "w") as packed:
        for name, data in files:
            packed.writestr(name, data)
    return path


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_store_moves_to_another_machine(full, empty, tmp_path, name):
    found = export_entries([item.path for item in items(full)], tmp_path / name)
    assert (found.entries, found.damaged) == (3, 0)
    result = import_entries(empty, tmp_path / name, recompile=2)
    assert len(result.imported) == 3 and not result.refused and result.known == 0 and result.recompiled == 2
    assert keys(empty) == keys(full)
    for key in keys(full):
        here, there = empty.load_key(key), full.load_key(key)
        assert here.contents == there.contents and here.components == there.components
        assert here.record.pop("imported")["archive"] == name and here.record == there.record
    again = import_entries(empty, tmp_path / name, recompile=0)
    assert again.known == 3 and not again.imported and again.recompiled == 0


@pytest.mark.parametrize("name", ARCHIVES)
def test_equal_entries_give_equal_archives(full, tmp_path, name):
    first = exported(full, tmp_path / name).read_bytes()
    for item in items(full):
        os.utime(item.path, (1e9, 1e9))
    assert exported(full, tmp_path / name).read_bytes() == first


def test_a_dry_run_stores_nothing(full, empty, tmp_path):
    path = exported(full, tmp_path / "a.zip")
    assert len(import_entries(empty, path, dry_run=True).imported) == 3
    assert not empty.root.exists()


def test_an_export_leaves_damaged_entries_out_and_changes_nothing(full, tmp_path):
    damaged, other = (full.path(key) for key in keys(full)[:2])
    data = damaged.read_bytes()
    damaged.write_bytes(data[:-1])
    shutil.copy(other, full.path("f" * 64).parent.mkdir(parents=True) or full.path("f" * 64))
    before = {i.path: i.path.stat().st_mtime_ns for i in items(full)}
    found = export_entries([*before, full.path("0" * 64)], tmp_path / "a.zip")
    assert (found.entries, found.damaged) == (2, 2)
    assert {i.path: i.path.stat().st_mtime_ns for i in items(full)} == before
    assert stat.S_IMODE((tmp_path / "a.zip").stat().st_mode) & 0o400
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_an_export_that_fails_leaves_the_old_archive(full, tmp_path, monkeypatch):
    path = exported(full, tmp_path / "a.zip")
    before = path.read_bytes()
    monkeypatch.setattr("vkdnn.shader.transfer.os.fsync", lambda *a: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError, match="full"):
        exported(full, path)
    assert path.read_bytes() == before and sorted(p.name for p in tmp_path.iterdir()) == ["a.zip", "full"]
    with pytest.raises(StoreError, match="expected a name that ends in"):
        export_entries([], tmp_path / "a.rar")


def test_a_damaged_entry_here_is_replaced(full, empty, tmp_path):
    path = exported(full, tmp_path / "a.zip")
    import_entries(empty, path)
    place = empty.path(keys(empty)[0])
    place.write_bytes(b"rubbish")
    assert len(import_entries(empty, path).imported) == 1
    assert empty.load_key(place.name) is not None


# ---- what is refused


def forged(entry):
    """Entries that are wrong although their checksum and their key fit."""
    spirv = entry.contents["spirv"]
    parts = entry.components
    yield "spec", {"contents": {**entry.contents, "spec": b"another"}}
    yield "glsl", {"contents": {**entry.contents, "glsl": b"void main() {}"}}
    yield "no spirv", {"contents": {n: d for n, d in entry.contents.items() if n != "spirv"}}
    yield "no compiler", {"components": {n: v for n, v in parts.items() if n != "compiler"}}
    yield "multiple of 4", {"contents": {**entry.contents, "spirv": spirv[:-1]}}
    yield "truncated", {"contents": {**entry.contents, "spirv": spirv[: len(spirv) // 8 * 4]}}
    yield "magic number", {"contents": {**entry.contents, "spirv": bytes(len(spirv))}}
    yield "name is not the key", {"kind": "verdicts"}


def test_every_forgery_is_refused_and_the_rest_imported(full, empty, tmp_path):
    whole = an_entry(full)
    good = decode(full.path(keys(full)[1]).read_bytes())
    for text, parts in forged(whole):
        wrong = changed(whole, **parts)
        files = [(f"shaders/{wrong.key}", encode(wrong)), (f"shaders/{good.key}", encode(good))]
        result = import_entries(empty, tar_of(tmp_path / "a.tar.gz", files))
        assert len(result.refused) == 1 and text in result.refused[0][1], (text, result.refused)
        assert keys(empty) == [good.key]
        assert trouble(whole) is None
    assert len(result.reasons) == 1


def without_decorations(spirv):
    """The same module, free to be contracted."""
    import numpy as np

    from vkdnn.shader.spirv import instructions

    words = np.frombuffer(spirv, "<u4").tolist()
    kept = words[:5]
    for opcode, start, end in instructions(words):
        if not (opcode == 71 and words[start + 2] == 42):
            kept += words[start:end]
    return np.array(kept, "<u4").tobytes()


def test_float_operations_that_may_be_fused_are_refused(full, empty, tmp_path):
    whole = an_entry(full)
    bare = without_decorations(whole.contents["spirv"])
    assert reflect(bare) and "have no NoContraction" in spirv_trouble(bare)
    wrong = changed(whole, contents={**whole.contents, "spirv": bare})
    result = import_entries(empty, zip_of(tmp_path / "a.zip", [(f"shaders/{wrong.key}", encode(wrong))]))
    assert "NoContraction" in result.refused[0][1] and not empty.root.exists()


@pytest.mark.skipif(validator() is None, reason="spirv-val is not installed")
def test_the_validator_is_asked(full):
    spirv = bytearray(an_entry(full).contents["spirv"])
    assert spirv_val(bytes(spirv)) is None
    spirv[12:16] = (1).to_bytes(4, "little")  # the bound of its ids
    assert spirv_val(bytes(spirv)).startswith("spirv-val refuses it: error")


def test_names_that_are_no_keys_and_what_is_no_file(full, empty, tmp_path):
    data = encode(an_entry(full))
    key = an_entry(full).key
    names = [
        "../../evil",
        "/etc/evil",
        f"shaders/../{key}",
        f"verdicts/{key}",
        f"shaders/{key.upper()}",
        key,
        "shaders/x",
    ]
    for archive in (
        tar_of(tmp_path / "a.tar.gz", [(n, data) for n in names]),
        zip_of(tmp_path / "a.zip", [(n, data) for n in names]),
    ):
        result = import_entries(empty, archive)
        assert [n.lstrip("/") for n, _ in result.refused] == [n.lstrip("/") for n in names] and not result.imported
        assert set(result.reasons) == {"its name is not shaders/ and a key"}
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as tar:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            info = tarfile.TarInfo(f"shaders/{key}")
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
        folder = tarfile.TarInfo("shaders")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    result = import_entries(empty, tmp_path / "b.tar.gz")
    assert result.reasons == {"it is no plain file": 4}
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as packed:
        info = zipfile.ZipInfo(f"shaders/{key}")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        packed.writestr(info, "/etc/passwd")
    assert import_entries(empty, tmp_path / "b.zip").reasons == {"it is no plain file": 1}
    assert not empty.root.exists() and not (tmp_path.parent / "evil").exists()


def test_the_same_name_twice(full, empty, tmp_path):
    name, data = f"shaders/{an_entry(full).key}", encode(an_entry(full))
    result = import_entries(empty, tar_of(tmp_path / "a.tar.gz", [(name, data), (name, data)]))
    assert len(result.imported) == 1 and result.reasons == {"another member has its name": 1}


def test_bombs(full, empty, tmp_path, monkeypatch):
    name = f"shaders/{'0' * 64}"
    result = import_entries(empty, tar_of(tmp_path / "a.tar.gz", [(name, bytes(MAX_ENTRY_BYTES + 1))]))
    assert "it has more than" in result.refused[0][1]
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(name, bytes(MAX_ENTRY_BYTES + 1))
    assert "it has more than" in import_entries(empty, tmp_path / "a.zip").refused[0][1]
    whole = an_entry(full)
    line = encode(whole).split(b"\n", 2)
    header = json.loads(line[1])
    for sizes in ([["spirv", len(line[2]), 10]], [["spirv", len(line[2]), 1 << 40]], [["spirv", 5, -1]], 3, [[1]]):
        rest = json.dumps({**header, "contents": sizes}).encode() + b"\n" + line[2]
        wrong = line[0].rsplit(b" ", 1)[0] + b" " + digest(rest).encode() + b"\n" + rest
        result = import_entries(empty, tar_of(tmp_path / "a.tar.gz", [(f"shaders/{whole.key}", wrong)]))
        assert len(result.refused) == 1 and not result.imported, sizes
    monkeypatch.setattr("vkdnn.shader.transfer.MAX_MEMBERS", 2)
    with pytest.raises(StoreError, match="more than 2 members"):
        import_entries(empty, exported(full, tmp_path / "c.zip"))
    with tarfile.open(tmp_path / "d.tar.gz", "w:gz") as tar:
        info = tarfile.TarInfo("././@PaxHeader")
        info.type, info.size = tarfile.XHDTYPE, 1 << 20
        tar.addfile(info, io.BytesIO(bytes(1 << 20)))
    with pytest.raises(StoreError, match="header of 1048576 bytes"):
        list(members(tmp_path / "d.tar.gz"))


@pytest.mark.parametrize("name", ["a.tar.gz", "a.zip"])
def test_a_damaged_archive_changes_nothing(full, empty, tmp_path, name):
    """Cut anywhere, or with a bit changed: refused whole, or only what is wrong refused, and never a crash."""
    data = exported(full, tmp_path / name).read_bytes()
    path = tmp_path / f"damaged-{name}"
    for cut in (0, 1, 20, len(data) // 3, len(data) // 2, len(data) - 20):
        path.write_bytes(data[:cut])
        with pytest.raises(StoreError, match="nothing was imported"):
            import_entries(empty, path)
        assert not empty.root.exists()
    for place in range(0, len(data), max(1, len(data) // 60)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        try:
            result = import_entries(empty, path)
        except StoreError:
            assert not empty.root.exists()
            continue
        for item in items(empty):
            assert decode(item.path.read_bytes()).contents == full.load_key(item.key).contents
        assert len(result.imported) + len(result.refused) >= 2
        shutil.rmtree(empty.root, ignore_errors=True)


def test_what_compiles_to_something_else_spoils_the_whole_archive(full, empty, tmp_path):
    whole, other = (decode(full.path(key).read_bytes()) for key in keys(full)[:2])
    wrong = changed(whole, contents={**whole.contents, "spirv": other.contents["spirv"]})
    assert trouble(wrong) is None  # nothing but compiling again tells
    files = [(f"shaders/{e.key}", encode(e)) for e in (wrong, other)]
    path = tar_of(tmp_path / "a.tar.gz", files)
    with pytest.raises(StoreError, match="gives other SPIR-V; nothing was imported"):
        import_entries(empty, path)
    assert not empty.root.exists()


@pytest.mark.parametrize("record", [{"compiled": float("nan")}, {"compiled": 1e300}, {"seconds": "1"}, {"label": 3}])
def test_a_record_that_others_could_not_read_is_refused(full, empty, tmp_path, record):
    whole = decode(full.path(keys(full)[0]).read_bytes())
    wrong = changed(whole, record={**whole.record, **record})
    result = import_entries(empty, tar_of(tmp_path / "a.tar.gz", [(f"shaders/{wrong.key}", encode(wrong))]))
    assert [reason for _, reason in result.refused] == ["its record has times or names that are none"]


def test_a_folder_that_cannot_be_written(full, tmp_path):
    path = exported(full, tmp_path / "a.zip")
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        import_entries(Store(tmp_path / "file"), path)


# ---- where entries are found


def test_entries_of_other_compilers_and_templates_are_not_found_here(full):
    compiler, parts = Compiler.find(), an_entry(full).components
    assert not_found_here(parts, compiler) is None and same_compiler(parts, compiler)
    assert "no GLSL compiler here" in not_found_here(parts, None)
    other = Compiler(compiler.path, "Glslang Version: 11:99.0.0")
    assert "another compiler" in not_found_here(parts, other)
    assert "another template numerics.glsl" in not_found_here({**parts, "template numerics.glsl": "0" * 64}, compiler)
    assert "has not" in not_found_here({**parts, "template ../../etc": "0" * 64}, compiler)


def test_compiling_again(full):
    compiler, whole = Compiler.find(), an_entry(full)
    assert recompiled(whole, compiler) is None
    broken = changed(whole, contents={**whole.contents, "glsl": b"nonsense"})
    assert "does not compile" in recompiled(broken, compiler)
    assert short(whole.components) == whole.components
    with pytest.raises(CompileError):
        reflect(b"")
