"""The shader store among processes: each shader compiled once, nothing wrong served, nobody waits for the dead."""

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import filelock
import pytest

from vkdnn import shader
from vkdnn.errors import StoreError
from vkdnn.shader import Compiler, ShaderRequest, Store, compile_count, compile_many
from vkdnn.shader.entry import Entry, decode, key_of
from vkdnn.shader.store import NEW

COUNT = 24
TOOLS = Path(__file__).parent.parent / "tools"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The store's, of this test."""
    monkeypatch.setenv("VKDNN_CACHE_DIR", str(tmp_path / "store"))
    for name in ("VKDNN_CACHE_DISABLE", "VKDNN_CACHE_MAX_BYTES", "VKDNN_AOT", "VKDNN_AOT_ONLY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("vkdnn.shader._memo", {})
    monkeypatch.setattr("vkdnn.shader.store._warned", set())
    return tmp_path / "store"


@pytest.fixture
def again(monkeypatch):
    """Compiles as if the process had just begun; gives the SPIR-V, and how many shaders were compiled."""

    def call(requests):
        monkeypatch.setattr("vkdnn.shader._memo", {})
        before = compile_count()
        return compile_many(requests), compile_count() - before

    return call


@pytest.fixture(scope="module")
def storms():
    """What tools/storm is made of."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(TOOLS)
        import storms.at_once
        import storms.shaders

        yield storms


@pytest.fixture(scope="module")
def made(storms, tmp_path_factory):
    """Shaders whose SPIR-V is known, and a compiler that takes milliseconds."""
    return storms.shaders.make(COUNT, tmp_path_factory.mktemp("quick"))


@pytest.fixture
def quick(storms, made, monkeypatch):
    """Four of them, with that compiler."""
    shaders, compiler = made
    monkeypatch.setattr("vkdnn.shader.compiler._found", {})
    monkeypatch.setenv("VKDNN_GLSLANG", str(compiler))
    return storms.shaders.Shaders(shaders.requests[:4], shaders.known[:4])


def right(shaders, found):
    return [storms_digest(spirv) for spirv in found] == list(shaders.known)


def storms_digest(spirv):
    from storms.shaders import digest

    return digest(spirv)


def key_now(request):
    compiler = Compiler.find()
    return key_of("shaders", request.components(compiler.version, compiler.flags))


# ---- all at once


def test_processes_that_begin_together_compile_each_shader_once(storms, made, folder, tmp_path):
    shaders, compiler = made
    result = storms.at_once.compile_at_once(4, COUNT, tmp_path, str(compiler))
    assert result["statuses"] == [0] * 4
    assert result["calls"] == sum(result["compiled"]) == COUNT, result
    assert result["digests"] == [list(shaders.known)] * 4
    files = [path for path in (tmp_path / "store").glob("v2/shaders/*/*")]
    assert len(files) == COUNT and not any(path.name.startswith(NEW) for path in files)
    assert {storms_digest(decode(path.read_bytes()).contents["spirv"]) for path in files} == set(shaders.known)


def test_a_storm(tmp_path):
    """Workers killed, files damaged, folders gone: tools/storm, in short. 500 rounds are for a quiet hour."""
    options = {"--rounds": 30, "--processes": 3, "--shaders": 20, "--real-every": 31, "--seed": 7, "--json": "-"}
    command = [sys.executable, str(TOOLS / "storm"), *(str(part) for pair in options.items() for part in pair)]
    environment = {**os.environ, "VKDNN_TOOLS_SOURCED": "1", "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    account = json.loads(done.stdout)
    assert account["rounds"] == 30 and account["failures"] == []
    workers = account["workers"]
    assert workers["started"] == 90 == workers["killed"] + workers["finished"]
    assert workers["killed"] > 10 and workers["got"] > 500 and len(account["happened"]) > 8


# ---- killed and stopped


def forked(action):
    """A process that does no more than the action; its id."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = action()
        finally:
            os._exit(status or 0)
    return pid


def status_of(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_process_killed_while_it_stores_leaves_nothing_that_is_read(folder, again, quick):
    Compiler.find()

    def killed():
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        compile_many(quick.requests)

    assert status_of(forked(killed)) == -signal.SIGKILL
    left = list(folder.glob("v2/shaders/*/*"))
    assert left and all(path.name.startswith(NEW) for path in left)
    found, compiled = again(quick.requests)
    assert right(quick, found) and compiled == 4
    assert again(quick.requests) == (found, 0)


@contextlib.contextmanager
def holding(folder, key, stopped=False):
    """A process that holds the lock of a key, and is killed in the end."""
    read, write = os.pipe()

    def hold():
        with Store(folder).locked(key) as held:
            os.write(write, b"1" if held else b"0")
            time.sleep(60)

    pid = forked(hold)
    os.close(write)
    try:
        assert os.read(read, 1) == b"1"
        if stopped:
            os.kill(pid, signal.SIGSTOP)
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read)


def test_a_stopped_holder_of_a_lock_delays_once(folder, again, quick, monkeypatch):
    """Several shaders may share the lock: the second does not wait again."""
    monkeypatch.setattr(shader, "LOCK_SECONDS", 0.5)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setattr("vkdnn.shader.key_of", lambda kind, parts: "00" + key_of(kind, parts)[2:])
    monkeypatch.setattr(Store, "load_key", lambda self, key: None)
    with holding(folder, "00", stopped=True):
        start = time.monotonic()
        found, compiled = again(quick.requests)
        assert 0.5 <= time.monotonic() - start < 1.5
    assert right(quick, found) and compiled == 4


def test_the_lock_of_a_killed_process_is_free(folder, again, quick):
    with holding(folder, key_now(quick.requests[0])) as pid:
        os.kill(pid, signal.SIGKILL)
        start = time.monotonic()
        assert right(quick, again(quick.requests)[0])
        assert time.monotonic() - start < 10


def test_a_lock_deleted_under_its_holder(folder, again, quick):
    with holding(folder, key_now(quick.requests[0])):
        for path in folder.glob("v2/locks/*"):
            path.unlink()
        start = time.monotonic()
        found, compiled = again(quick.requests)
        assert time.monotonic() - start < 10
    assert right(quick, found) and compiled == 4


def test_a_waiting_process_takes_what_the_holder_has_made(folder, again, quick):
    request = quick.requests[0]
    key, (spirv,) = key_now(request), compile_many([request])
    whole = Store(folder).path(key).read_bytes()
    Store(folder).path(key).unlink()

    def hold():
        with Store(folder).locked(key):
            (folder / "held").touch()
            time.sleep(0.3)
            Store(folder).path(key).write_bytes(whole)

    pid = forked(hold)
    while not (folder / "held").exists():
        time.sleep(0.01)
    assert again([request]) == ([spirv], 0)
    assert status_of(pid) == 0


# ---- folders that do not do what they should


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOLCK, "No locks"), OSError(errno.ENOSYS, "x"), NotImplementedError()]
)
def test_a_file_system_without_locks(folder, again, quick, monkeypatch, error):
    def none(*_, **__):
        raise error

    monkeypatch.setattr(filelock.FileLock, "acquire", none)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert right(quick, again(quick.requests)[0])
        assert again(quick.requests)[1] == 0


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EIO])
def test_a_system_call_that_locks_nothing(folder, again, quick, monkeypatch, number):
    """As seen by the lock itself: it neither waits nor puts files in the place of locks, which a kill would leave."""
    import fcntl

    def none(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", none)
    start = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert right(quick, again(quick.requests)[0])
    assert time.monotonic() - start < 10
    assert again(quick.requests)[1] == 0


def as_nobody(action):
    """The exit status of an action in a process without the rights of root."""

    def unprivileged():
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        return action()

    return status_of(forked(unprivileged))


def open_to_all(path):
    """pytest's folders are for their owner alone."""
    for folder in (path, *path.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path(folder.anchor):
            with contextlib.suppress(OSError):
                folder.chmod(folder.stat().st_mode | 0o055)


def test_a_read_only_folder_is_read_and_not_written(folder, quick, monkeypatch, tmp_path):
    found = compile_many(quick.requests[:2])
    monkeypatch.setattr("vkdnn.shader._memo", {})
    for path in (tmp_path, Path(os.environ["VKDNN_GLSLANG"]).parent):
        open_to_all(path)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)

    def action():
        monkeypatch.setattr("tempfile.tempdir", "/tmp")
        before = compile_count()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            right_ones = compile_many(quick.requests[:2]) == found and compile_count() == before
            right_ones = right_ones and right(quick, compile_many(quick.requests)) and compile_count() == before + 2
            shader._memo.clear()
            right_ones = right_ones and right(quick, compile_many(quick.requests))
        texts = [str(w.message) for w in caught]
        once = len(texts) == 1 and "cannot store entries in" in texts[0] and "Permission denied" in texts[0]
        return 0 if right_ones and once else 3 if right_ones else 4

    try:
        assert as_nobody(action) == 0
    finally:
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755)


def test_a_folder_that_nobody_may_look_into(folder, quick, monkeypatch):
    """Neither an error nor a shader less: it is as if there were none."""
    folder.mkdir()
    folder.chmod(0o700)
    monkeypatch.setenv("VKDNN_CACHE_DIR", str(folder / "below"))

    def action():
        monkeypatch.setattr("tempfile.tempdir", "/tmp")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ok = right(quick, compile_many(quick.requests))
        return 0 if ok and ["cannot store" in str(w.message) for w in caught] == [True] else 3

    open_to_all(Path(os.environ["VKDNN_GLSLANG"]).parent)
    if os.getuid() == 0:  # to whom every folder is open
        assert as_nobody(action) == 0


def test_what_one_user_stores_others_may_read(folder, quick):
    mask = os.umask(0o022)
    try:
        compile_many(quick.requests)
    finally:
        os.umask(mask)
    assert {path.stat().st_mode & 0o777 for path in folder.glob("v2/shaders/*/*")} == {0o644}


def test_a_bad_cap_is_told_before_anything_is_compiled(folder, quick, monkeypatch):
    monkeypatch.setenv("VKDNN_CACHE_MAX_BYTES", "plenty")
    before = compile_count()
    with pytest.raises(StoreError, match="VKDNN_CACHE_MAX_BYTES is 'plenty'"):
        compile_many(quick.requests)
    assert compile_count() == before


def test_a_full_disk_gives_one_warning_and_right_shaders(folder, again, quick, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(RuntimeWarning, match="cannot store entries .*No space left") as caught:
        assert right(quick, again(quick.requests)[0])
        assert right(quick, again(quick.requests)[0])
    assert len(caught) == 1
    assert [path for path in folder.glob("v2/shaders/*/*")] == []


def test_a_folder_deleted_while_it_is_used(folder, again, quick, monkeypatch):
    """Between the making of its folder and of its file."""
    write, times = shader.store._write_and_replace, []

    def deleted(path, data):
        if len(times) < 2:
            times.append(1)
            shutil.rmtree(folder)
        return write(path, data)

    monkeypatch.setattr(shader.store, "_write_and_replace", deleted)
    found, compiled = again(quick.requests)
    assert right(quick, found) and compiled == 4


def test_an_entry_that_is_right_by_its_checksum_and_for_another_shader(folder, again, quick):
    """Two files changed places."""
    compile_many(quick.requests)
    one, two = (Store(folder).path(key_now(request)) for request in quick.requests[:2])
    data = one.read_bytes(), two.read_bytes()
    one.write_bytes(data[1])
    two.write_bytes(data[0])
    with pytest.warns(RuntimeWarning, match="damaged"):
        found, compiled = again(quick.requests)
    assert right(quick, found) and compiled == 2
    assert isinstance(decode(one.read_bytes()), Entry) and decode(one.read_bytes()).record["label"] == "shader 0"


def test_requests_of_one_label_do_not_meet(folder, again, quick):
    """Labels are for people: two shaders may share one."""
    one, two = (ShaderRequest.of_glsl(r.glsl, r.spec, r.strategies, "same") for r in quick.requests[:2])
    found, _ = again([one, two])
    assert [storms_digest(spirv) for spirv in found] == list(quick.known[:2])
