"""Bundles: exported, loaded and run they give the bits of the function they were made of."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import safetensors

import vkdnn as vk
from vkdnn import tree
from vkdnn.check.hard import bits_equal
from vkdnn.errors import ArgumentError, DeviceError, DtypeError, ShapeError
from vkdnn.runtime.probe import PROBE
from vkdnn.shader import bundle as bundle_kernels
from vkdnn.shader.bundle import BundleError


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def same(found, expected):
    found, expected = tree.flatten(found)[0], tree.flatten(expected)[0]
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape and a.dtype == b.dtype and bits_equal(a, b).all()


def test_a_bundle_gives_the_bits_of_the_function(tmp_path):
    weight = vk.array(numbers(8, 16))
    function = vk.jit(lambda x, scale: {"p": vk.softmax(x @ weight, axis=-1), "sum": vk.sum(x) * scale})
    x, scale = numbers(5, 8, seed=1), np.float32(0.5)
    manifest = vk.aot.export(function, [vk.aot.Spec((5, 8)), scale], tmp_path / "b")
    assert [(i.name, i.dtype, i.shape) for i in manifest.program.inputs] == [
        ("x", "float32", (5, 8)), ("scale", "float32", ()),
    ]  # fmt: skip
    assert [o.name for o in manifest.program.outputs] == ["result.p", "result.sum"]
    bundle = vk.aot.load(tmp_path / "b")
    assert bundle.manifest == manifest
    for arguments in ((x, scale), (vk.array(x), vk.array(scale)), (2 * vk.array(x), 0.5)):
        same(bundle(*arguments), function(*arguments))
    with vk.device("cpu"):
        here = vk.array(weight.numpy())
        x_here = vk.array(x)
        same(bundle(x, scale), {"p": vk.softmax(x_here @ here, axis=-1), "sum": vk.sum(x_here) * vk.array(scale)})


def test_files_of_a_bundle(tmp_path):
    vk.aot.export(lambda x: x + 1, [vk.aot.Spec((4,))], tmp_path / "b")
    names = sorted(p.relative_to(tmp_path / "b").as_posix() for p in (tmp_path / "b").rglob("*") if p.is_file())
    manifest = json.loads((tmp_path / "b" / "manifest.json").read_text())
    assert names == sorted(["manifest.json", "manifest.schema.json", *(k["file"] for k in manifest["kernels"])])
    assert [k["family"] for k in manifest["kernels"]] == ["ExprSpec", "probe"] and manifest["probe"] == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "b"]


def test_a_zip_gives_the_same(tmp_path):
    function, x = vk.jit(lambda x: vk.exp(x) @ vk.ones((4, 2))), numbers(3, 4)
    vk.aot.export(function, [x], tmp_path / "b.zip")
    same(vk.aot.load(tmp_path / "b.zip")(x), function(x))


def training_step(weight, bias, x):
    loss, gradients = vk.value_and_grad(lambda w, b: vk.mean((x @ w + b) ** 2), argnums=(0, 1))(weight, bias)
    return weight - 0.1 * gradients[0], bias - 0.1 * gradients[1], loss


def test_donated_arguments_are_replaced_in_place(tmp_path):
    step = vk.jit(training_step, donate_argnums=(0, 1))
    weight, bias, x = numbers(8, 4), numbers(4, seed=1), numbers(16, 8, seed=2)
    manifest = vk.aot.export(step, [weight, bias, x], tmp_path / "b", weights=(0, 1))
    program = manifest.program
    assert [(i.name, i.donated, i.initial) for i in program.inputs] == [
        ("weight", True, "weight"), ("bias", True, "bias"), ("x", False, None),
    ]  # fmt: skip
    assert [o.replaces for o in program.outputs] == [0, 1, None]
    bundle = vk.aot.load(tmp_path / "b")
    w, b, wanted = bundle.initial()
    assert wanted == vk.aot.Spec((16, 8))
    here = [vk.array(weight), vk.array(bias)]
    for _ in range(3):
        old = w
        w, b, loss = bundle(w, b, x)
        *here, expected = step(*here, x)
        same([w, b, loss], [*here, expected])
    with pytest.raises(DeviceError, match="donated"):
        old.numpy()
    same(bundle.initial()[:2], [weight, bias])


def test_weights_become_constants(tmp_path):
    params = {"layers": [{"w": vk.array(numbers(8, 8, seed=i))} for i in range(2)], "scale": 2.0}

    def forward(params, x):
        for layer in params["layers"]:
            x = vk.tanh(x @ layer["w"])
        return x * params["scale"]

    x = numbers(3, 8)
    manifest = vk.aot.export(vk.jit(forward), [params, x], tmp_path / "b", weights=0)
    assert [c.name for c in manifest.program.constants] == ["params.layers.0.w", "params.layers.1.w", "params.scale"]
    assert [i.name for i in manifest.program.inputs] == ["x"]
    same(vk.aot.load(tmp_path / "b")(x), vk.jit(forward)(params, x))


DTYPES = ("float32", "int32", "uint32", "bool", "float16", "bfloat16")


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_goes_in_and_out_and_waits_in_the_weights(tmp_path, dtype):
    held = vk.array([0, 1, 1, 0, 1], dtype=dtype)

    def function(x, i):
        return vk.where(i > 0, x, held), x, held, i

    x = vk.array([3, 0, 1, 2, 1], dtype=dtype)
    i = np.array([1, 0, -1, 1, 0], np.int32)
    vk.aot.export(function, [vk.aot.Spec((5,), dtype), i], tmp_path / "b")
    same(vk.aot.load(tmp_path / "b")(x, i), vk.jit(function)(x, i))


def test_results_that_are_arguments_views_or_twice_the_same(tmp_path):
    def function(x):
        y = x + 1
        return [y, y, x, x.reshape(6), x.T, y.reshape(3, 2), vk.zeros((2,))]

    x = numbers(2, 3)
    vk.aot.export(function, [x], tmp_path / "b")
    bundle = vk.aot.load(tmp_path / "b")
    same(bundle(x), vk.jit(function)(x))
    same(bundle(vk.array(x)), vk.jit(function)(x))


def test_empty_arrays_and_no_arguments(tmp_path):
    vk.aot.export(lambda x: (x * 2, vk.sum(x)), [vk.aot.Spec((0, 3))], tmp_path / "b")
    found = vk.aot.load(tmp_path / "b")(np.zeros((0, 3), np.float32))
    assert found[0].shape == (0, 3) and found[1].numpy() == 0
    vk.aot.export(lambda: {"x": vk.arange(4), "none": None}, [], tmp_path / "c")
    found = vk.aot.load(tmp_path / "c")()
    assert found["none"] is None and found["x"].tolist() == [0, 1, 2, 3]


def test_named_tuples_come_back_by_their_fields(tmp_path):
    def function(state, x):
        return state._replace(count=state.count + x)

    from collections import namedtuple

    State = namedtuple("State", "count other")
    vk.aot.export(function, [State(np.int32(1), np.int32(2)), np.int32(0)], tmp_path / "b")
    bundle = vk.aot.load(tmp_path / "b")
    found = bundle(State(3, 4), 5)
    assert (found.count.item(), found.other.item()) == (8, 4) and type(found).__name__ == "State"
    assert bundle(found, 1).count.item() == 9
    assert bundle((3, 4), 5).count.item() == 8


def test_several_submissions(tmp_path):
    def function(x):
        return vk.flush(vk.flush(x @ x) @ x) @ x

    x = numbers(5, 5)
    manifest = vk.aot.export(function, [x], tmp_path / "b")
    assert len(manifest.program.submissions) == 3
    same(vk.aot.load(tmp_path / "b")(x), vk.jit(function)(x))


def test_memory_of_the_host(tmp_path):
    def loss(x):
        block = vk.remat(lambda x: vk.tanh(x @ x), offload=True)
        return vk.sum(block(block(block(x))))

    x = numbers(8, 8)
    manifest = vk.aot.export(vk.grad(loss), [x], tmp_path / "b")
    assert "host" in {b.memory for b in manifest.program.buffers}
    same(vk.aot.load(tmp_path / "b")(x), vk.jit(vk.grad(loss))(x))


def test_a_bundle_for_a_device(tmp_path):
    device = vk.device()
    function, x = vk.jit(lambda x: 1 / vk.softmax(x)), numbers(7, 9)
    manifest = vk.aot.export(function, [x], tmp_path / "b", device=device)
    strategies = device.opened.strategies
    assert manifest.numerics.subnormals == strategies.subnormals
    flushes_by_its_threads = strategies.subnormals == "native" and device.kind == "software"
    assert manifest.producer.target and manifest.numerics.host_flush == flushes_by_its_threads
    same(vk.aot.load(tmp_path / "b", device)(x), function(x))


def test_portable_bundles_ask_for_large_buffers_only_if_they_need_them(tmp_path):
    def function(x):
        return (x @ x.T) @ x

    for rows, least, most in ((1000, 0, 2**27), (6000, 2**27, 2**29)):
        manifest = vk.aot.export(function, [vk.aot.Spec((rows, 1))], tmp_path / "b", overwrite=True)
        assert least < manifest.limits.maxStorageBufferRange <= most


# ---- symbolic sizes


def test_one_bundle_serves_a_range_of_sizes(tmp_path):
    weight = vk.array(numbers(16, 8))

    def function(x, y):
        z = vk.softmax(x @ weight, axis=1) * y
        return {"rows": vk.cumsum(z, axis=1), "mean": vk.mean(z, axis=(0, 1)), "last": z[:, -1]}

    spec = [vk.aot.Spec(("batch", "tokens", 16)), vk.aot.Spec(("tokens", 1))]
    ranges = {"batch": (1, 5), "tokens": (1, 128)}
    manifest = vk.aot.export(function, spec, tmp_path / "b", ranges=ranges)
    assert manifest.ranges == ranges and manifest.program.inputs[0].shape == ("batch", "tokens", 16)
    bundle = vk.aot.load(tmp_path / "b")
    for batch, tokens in ((1, 1), (5, 128), (2, 127), (3, 64), (2, 127), (1, 2)):
        x, y = numbers(batch, tokens, 16, seed=tokens), numbers(tokens, 1)
        same(bundle(x, y), vk.jit(function)(x, y))
        with vk.device("cpu"):
            here = vk.array(weight.numpy())
            z = vk.softmax(vk.array(x) @ here, axis=1) * vk.array(y)
            same(bundle(x, y)["rows"], vk.cumsum(z, axis=1))
    assert len(bundle._programs) == 5


def test_a_range_of_one_size(tmp_path):
    manifest = vk.aot.export(lambda x: x * 2, [vk.aot.Spec(("n", 2))], tmp_path / "b", ranges={"n": (3, 3)})
    assert manifest.program.inputs[0].shape == ("n", 2)
    bundle = vk.aot.load(tmp_path / "b")
    assert bundle(np.ones((3, 2), np.float32)).shape == (3, 2)
    with pytest.raises(ShapeError, match="n is 2, expected 3 to 3"):
        bundle(np.ones((2, 2), np.float32))


def test_sizes_outside_of_the_range_or_at_odds_are_refused(tmp_path):
    spec = [vk.aot.Spec(("n", 4)), vk.aot.Spec(("n",))]
    vk.aot.export(lambda x, y: x + y[:, None], spec, tmp_path / "b", ranges={"n": (2, 6)})
    bundle = vk.aot.load(tmp_path / "b")
    for n in (1, 7):
        with pytest.raises(ShapeError, match=rf"x: n is {n}, expected 2 to 6; build the bundle for a larger range"):
            bundle(numbers(n, 4), numbers(n))
    with pytest.raises(ShapeError, match=r"y: has shape \(4,\), so n is 4, but 3 in x"):
        bundle(numbers(3, 4), numbers(4))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: x * 2 if x.shape[0] < 10 else x, "the kernels are not the same over the whole range"),
        (lambda x: sum((x[i] for i in range(x.shape[0])), start=x[0]), "expected n from 10 to 20"),
        (lambda x: x * np.zeros(x.shape[0], np.float32)[:, None], "do not broadcast"),
        (lambda x: x * len(range(x.shape[0])), "uses a size as a plain number"),
    ],
)
def test_functions_that_decide_by_a_size_are_refused(tmp_path, function, said):
    with pytest.raises(ArgumentError, match=said):
        vk.aot.export(function, [vk.aot.Spec(("n", 4))], tmp_path / "b", ranges={"n": (1, 20)})
    assert list(tmp_path.iterdir()) == []


# ---- errors


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    place = tmp_path_factory.mktemp("bundle") / "b"
    params = {"w": numbers(4, 2), "b": numbers(2)}
    vk.aot.export(lambda params, x: x @ params["w"] + params["b"], [params, numbers(3, 4)], place)
    return vk.aot.load(place)


@pytest.mark.parametrize(
    ("error", "said", "change"),
    [
        (ArgumentError, "got 1 positional argument, expected 2: params, x", lambda p, x: (p,)),
        (ArgumentError, "argument params has no params.b", lambda p, x: ({"w": p["w"]}, x)),
        (ArgumentError, "argument params has params.c, which is not expected", lambda p, x: ({**p, "c": x}, x)),
        (ArgumentError, r"argument x is a dict of 1, expected an array float32\[3, 4\]", lambda p, x: (p, {"": x})),
        (ArgumentError, r"argument x is a list of 1, expected an array float32\[3, 4\]", lambda p, x: (p, [1.0])),
        (ArgumentError, "argument x is None, expected an array", lambda p, x: (p, None)),
        (ArgumentError, "argument params is an array or a number, expected a dict of 2", lambda p, x: (x, x)),
        (ArgumentError, "argument params is a tuple of 2, expected a dict of 2", lambda p, x: ((x, x), x)),
        (ArgumentError, "argument params.w is a list of 4", lambda p, x: ({**p, "w": list(p["w"])}, x)),
        (ArgumentError, "x: got Spec.*which has no values", lambda p, x: (p, vk.aot.Spec((3, 4)))),
        (ShapeError, r"params.w: has shape \(2, 4\), expected float32\[4, 2\]", lambda p, x: ({**p, "w": p["w"].T}, x)),
        (ShapeError, r"x: has shape \(3, 4, 1\), expected float32\[3, 4\]", lambda p, x: (p, x[..., None])),
        (
            DtypeError,
            r"x: is int32, expected float32\[3, 4\]; convert it with .astype",
            lambda p, x: (p, x.astype(np.int32)),
        ),
        (DtypeError, "x: got 'text'", lambda p, x: (p, "text")),
        (DeviceError, "x: lives on cpu", lambda p, x: (p, vk.array(x, device="cpu"))),
    ],
)
def test_arguments_that_do_not_fit(bundle, error, said, change):
    params, x = {"w": numbers(4, 2), "b": numbers(2)}, numbers(3, 4)
    with pytest.raises(error, match=said):
        bundle(*change(params, x))
    with pytest.raises(ArgumentError, match="got keywords"):
        bundle(params, x, other=1)


def test_a_bundle_inside_a_traced_function(bundle):
    with pytest.raises(ArgumentError, match="traced"):
        vk.jit(lambda x: bundle({"w": x, "b": x}, x))(numbers(2, 2))


def test_the_reference_runs_no_bundles(bundle):
    for load in (
        lambda: vk.aot.load(bundle.archive.path, "cpu"),
        lambda: vk.aot.load(bundle.archive.path, device="cpu"),
    ):
        with pytest.raises(ArgumentError, match="runs no shaders"):
            load()
    with pytest.raises(ArgumentError, match="runs no shaders"):
        vk.aot.export(lambda x: x, [numbers(2)], bundle.archive.path.with_name("none"), device="cpu")


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        (numbers(2), {}, "arguments is"),
        ([vk.aot.Spec(("rows",))], {}, "ranges: none for 'rows'"),
        (
            [vk.aot.Spec((3,))],
            {"ranges": {"rows": (1, 2)}},
            "'rows' is in no shape of the arguments, all sizes are numbers",
        ),
        (
            [vk.aot.Spec(("rows",))],
            {"ranges": {"row": (1, 2)}},
            "'row' is in no shape of the arguments, the names there are rows",
        ),
        ([vk.aot.Spec(("rows",))], {"ranges": {"rows": 3}}, "ranges: rows: got 3, expected (smallest, largest)"),
        ([vk.aot.Spec(("rows",))], {"ranges": {"rows": (1, 2, 3)}}, "ranges: rows is (1, 2, 3), expected"),
        ([vk.aot.Spec(("rows",))], {"ranges": {"rows": (1, 2.5)}}, "ranges: rows: got 2.5, expected"),
        ([vk.aot.Spec(("rows",))], {"ranges": {"rows": (3, 2)}}, "'rows' is 3 to 2"),
        ([vk.aot.Spec((-1,))], {}, "Spec: shape has -1"),
        ([vk.aot.Spec(("a b",))], {}, "Spec: shape has 'a b'"),
        ([vk.aot.Spec(3)], {}, "Spec: shape is 3"),
        ([vk.aot.Spec((3,), "float64")], {}, "dtype: got 'float64'"),
        ([vk.aot.Spec((3,))], {"weights": 0}, "argument x is a Spec"),
        ([vk.aot.Spec((3,))], {"weights": 1}, "weights: got 1"),
    ],
)
def test_exports_that_do_not_fit(tmp_path, arguments, options, said):
    with pytest.raises(ArgumentError) as error:
        vk.aot.export(lambda x: x, arguments, tmp_path / "b", **options)
    assert said in str(error.value)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ArgumentError, match="expected a function"):
        vk.aot.export(3, [], tmp_path / "b")


def test_what_exists_is_not_overwritten_unless_asked(tmp_path):
    export = vk.aot.export
    for name in ("b", "b.zip"):
        place = tmp_path / name
        export(lambda x: x + 1, [numbers(2)], place)
        with pytest.raises(ArgumentError, match="exists"):
            export(lambda x: x + 2, [numbers(2)], place)
        assert vk.aot.load(place)(np.ones(2, np.float32)).tolist() == [2, 2]
        export(lambda x: x + 2, [numbers(2)], place, overwrite=True)
        assert vk.aot.load(place)(np.ones(2, np.float32)).tolist() == [3, 3]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("precious")
    (tmp_path / "mine.zip").write_text("precious")
    for name in ("mine", "mine.zip"):
        with pytest.raises(ArgumentError, match="is no bundle"):
            export(lambda x: x + 2, [numbers(2)], tmp_path / name, overwrite=True)
    assert (tmp_path / "mine" / "file").read_text() == "precious"
    with pytest.raises(ArgumentError, match="no folder"):
        export(lambda x: x + 2, [numbers(2)], tmp_path / "none" / "b")
    with pytest.raises(ArgumentError, match="expected a path"):
        export(lambda x: x + 2, [numbers(2)], 3)


def test_damaged_weights_are_refused(tmp_path):
    held = vk.array(numbers(4))
    vk.aot.export(lambda x: x + held, [numbers(4)], tmp_path / "b")
    file = tmp_path / "b" / "weights.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(BundleError, match=r"weights\.safetensors has SHA-256"):
        vk.aot.load(tmp_path / "b")
    file.unlink()
    with pytest.raises(BundleError, match=r"weights\.safetensors is missing"):
        vk.aot.load(tmp_path / "b")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("maxComputeWorkGroupInvocations", 10**6, "needs 1000000 invocations of a workgroup"),
        ("maxComputeSharedMemorySize", 10**9, "bytes of shared memory"),
        ("maxComputeWorkGroupCount", [1, 1, 10**6], "workgroups in z"),
        ("memory", 2**60, "bytes of memory"),
    ],
)
def test_devices_that_offer_too_little_are_refused(tmp_path, field, value, said):
    vk.aot.export(lambda x: x + 1, [numbers(4)], tmp_path / "b")
    file = tmp_path / "b" / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["limits"][field] = value
    file.write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=said):
        vk.aot.load(tmp_path / "b")


def test_a_plan_that_was_edited_is_refused(tmp_path):
    vk.aot.export(lambda x: vk.softmax(x @ x) @ x, [numbers(4, 4)], tmp_path / "b")
    file = tmp_path / "b" / "manifest.json"

    def barrier(manifest):
        next(d for d in manifest["program"]["dispatches"] if d["barrier"])["barrier"] = False

    def overlap(manifest):
        program = manifest["program"]
        arenas = [v for v in program["values"] if program["buffers"][v["buffer"]]["kind"] == "arena"]
        for v in arenas:
            v["offset"] = 0

    def groups(manifest):
        manifest["program"]["dispatches"][0]["groups"][0] += 1

    def local_size(manifest):
        manifest["kernels"][0]["local_size"][0] += 1

    whole = file.read_text()
    for edit, said in (
        (barrier, "there is no barrier between them"),
        (overlap, "overlap in an arena"),
        (groups, "but its kernel takes"),
        (local_size, r"kernels\[0\].local_size is"),
    ):
        manifest = json.loads(whole)
        edit(manifest)
        file.write_text(json.dumps(manifest))
        with pytest.raises(BundleError, match=said):
            vk.aot.load(tmp_path / "b")


def test_devices_whose_arithmetic_does_not_do_are_refused(tmp_path, monkeypatch):
    vk.aot.export(lambda x: 1 / x, [numbers(4)], tmp_path / "b")
    file = tmp_path / "b" / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["numerics"]["division"] = "native"
    file.write_text(json.dumps(manifest))
    monkeypatch.setenv("VKDNN_STRATEGIES", "division=remainder")
    with pytest.raises(BundleError, match=r"with division native; on .* it is remainder"):
        vk.aot.load(tmp_path / "b")


def test_a_portable_bundle_is_built_where_there_is_no_device(tmp_path):
    code = f"""
import vkdnn as vk
vk.aot.export(lambda x: vk.exp(x) * vk.arange(4), [vk.aot.Spec((3, 4))], {str(tmp_path / "b")!r})
"""
    environment = {**os.environ, "VK_DRIVER_FILES": "/nonexistent"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)
    x = numbers(3, 4)
    same(vk.aot.load(tmp_path / "b")(x), vk.jit(lambda x: vk.exp(x) * vk.arange(4))(x))


def test_arguments_without_values_are_told_from_none(tmp_path):
    step = vk.jit(lambda state, none, x: ({"s": state["s"] + x}, none), donate_argnums=0)
    vk.aot.export(step, [{"s": numbers(3)}, None, vk.aot.Spec(("n", 1))], tmp_path / "b", weights=0,
                  ranges={"n": (1, 4)})  # fmt: skip
    bundle = vk.aot.load(tmp_path / "b")
    state, none, x = bundle.initial()
    assert none is None and x == vk.aot.Spec(("n", 1))
    same(bundle(state, none, numbers(2, 1)), step({"s": numbers(3)}, None, numbers(2, 1)))
    with pytest.raises(ArgumentError, match="got 2 positional arguments, expected 3: state, None, x"):
        bundle(bundle.initial()[0], numbers(2, 1))
    with pytest.raises(ArgumentError, match="argument None is an array or a number, expected None"):
        bundle(bundle.initial()[0], 1, numbers(2, 1))
    with pytest.raises(ArgumentError, match=r"got keywords \['x'\], expected none; give state, None, x by position"):
        bundle(x=numbers(2, 1))
    assert repr(bundle).startswith("<bundle <lambda>(state, None, x) of ") and len(repr(bundle).split("\n")) == 1


def test_an_argument_that_has_to_be_compiled_first(tmp_path):
    vk.aot.export(lambda x: x + 1, [vk.aot.Spec((1, 8))], tmp_path / "b")
    code = f"""
import numpy as np, vkdnn as vk
bundle = vk.aot.load({str(tmp_path / "b")!r})
assert bundle(vk.array(np.ones((1, 8), np.float32))).numpy().sum() == 16
bundle(vk.ones((1, 8)))
"""
    environment = {**os.environ, "VKDNN_CACHE_DIR": str(tmp_path / "store"), "VKDNN_GLSLANG": "/nonexistent"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120,
                          check=False)  # fmt: skip
    said = done.stderr.splitlines()[-1]
    assert "argument x has not been computed yet, which needs a compiler" in said and "pass NumPy values" in said
    assert done.stderr.count("Traceback") == 1 and "CompileError" not in done.stderr


# ---- sizes that leak out of the range's sight


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x * 2 if len(x) > 2 else x * 3, id="len"),
        pytest.param(lambda x: vk.stack([row for row in x][:1]), id="iteration"),
        pytest.param(lambda x: x * vk.array(np.full((4,), x.shape[0], np.float32)), id="a captured array"),
        pytest.param(lambda x: x * float(len(np.empty(x.shape))), id="NumPy"),
        pytest.param(lambda x: x * (2.0 if len(range(x.shape[0])) > 2 else 3.0), id="range"),
        pytest.param(lambda x: x * (2.0 if len(([1] * x.shape[0])[:3]) > 2 else 3.0), id="a list"),
        pytest.param(lambda x: x * (2.0 if f"{x.shape[0]:d}" != "1" else 3.0), id="text"),
        pytest.param(lambda x: x * {1: 2.0}.get(x.shape[0], 3.0), id="a dict"),
        pytest.param(lambda x: x * (2.0 if x.shape[0] in {1, 2, 3} else 3.0), id="a set"),
        pytest.param(lambda x: vk.squeeze(x), id="squeeze"),
        pytest.param(lambda x: x * [1.0, 2.0, 3.0, *[4.0] * 100][x.shape[0]], id="an index"),
    ],
)
def test_a_size_that_leaks_is_refused(function, tmp_path):
    """Whatever a function makes of a size that is not a formula would be wrong at other lengths."""
    with pytest.raises(ArgumentError):
        vk.aot.export(function, [vk.aot.Spec(("n", 4))], tmp_path / "b", ranges={"n": (1, 100)})
    assert not (tmp_path / "b").exists()


def test_a_size_that_leaks_is_refused_in_a_range_of_two(tmp_path):
    with pytest.raises(ArgumentError, match="keep that axis concrete"):
        vk.aot.export(
            lambda x: x * float(np.empty(x.shape).shape[0]),
            [vk.aot.Spec(("n", 4))], tmp_path / "b", ranges={"n": (1, 2)},
        )  # fmt: skip


def test_loading_a_bundle_provides_nothing_but_the_probe(tmp_path):
    """A manifest may call any kernel its probe."""
    function = vk.jit(lambda x: vk.softmax(x * 7.0))
    vk.aot.export(function, [vk.aot.Spec((2, 8))], tmp_path / "b", device=vk.device())
    path = tmp_path / "b" / "manifest.json"
    record = json.loads(path.read_text())
    record["probe"] = 0 if record["probe"] else 1
    path.write_text(json.dumps(record))
    before = dict(bundle_kernels._provided)
    with contextlib.suppress(BundleError):
        vk.aot.load(tmp_path / "b")
    assert set(bundle_kernels._provided) - set(before) <= {PROBE.identity}


def test_scalars_halves_bools_and_shapes_of_zero(tmp_path):
    def function(x, h, b, s, i):
        return {"h": h * 2, "b": vk.where(b, i, -i), "s": x * s, "i": i + 1, "z": vk.sum(x), "n": b}

    spec = [vk.aot.Spec((0, 3)), vk.aot.Spec(("n",), "float16"), vk.aot.Spec(("n", 0), "bool"), vk.aot.Spec(()),
            vk.aot.Spec((), "int32")]  # fmt: skip
    vk.aot.export(function, spec, tmp_path / "b", ranges={"n": (1, 4)})
    bundle = vk.aot.load(tmp_path / "b")
    x, h, b = np.zeros((0, 3), np.float32), np.array([1.5, 6e-8], np.float16), np.ones((2, 0), bool)
    expected = vk.jit(function)(x, h, b, np.float32(2), np.int32(3))
    for s, i in ((2.0, 3), (np.float64(2), np.int64(3)), (vk.array(2.0), vk.array(3)), (np.array(2, ">f4"), 3)):
        same(bundle(x, h, b, s, i), expected)
    for s, i, said in (
        (2, 3, r"s: is int32, expected float32\[\]; convert it with vk.array\(x, dtype='float32'\)"),
        (2.0, True, "i: is bool, expected int32"),
        (2.0, 2**40, "i: integers from 1099511627776 to 1099511627776 do not fit in int32"),
    ):
        with pytest.raises(DtypeError, match=said):
            bundle(x, h, b, s, i)
    with pytest.raises(ShapeError, match="h: n is 0, expected 1 to 4"):
        bundle(x, h[:0], b[:0], 2.0, 3)


def test_weights_are_written_flushed(tmp_path):
    held = np.array([1e-40, -1e-40, 1], np.float32)
    state = {"f": held, "b": vk.array(held, dtype="bfloat16"), "h": np.array([6e-8, -0.0, 1], np.float16)}
    function = vk.jit(lambda state, x: (state, x + vk.array(held)), donate_argnums=0)
    manifest = vk.aot.export(function, [state, vk.aot.Spec((3,))], tmp_path / "b", weights=0)
    assert repr(manifest) == "<manifest of <lambda> for any device: 2 kernels, 1 dispatches>"
    data = (tmp_path / "b" / "weights.safetensors").read_bytes()
    found = {name: t["data"].hex() for name, t in safetensors.deserialize(data)}
    assert found == {
        "state.f": "00000000000000800000803f", "constant.0": "00000000000000800000803f", "state.b": "00000080803f",
        "state.h": "01000080003c",
    }  # fmt: skip
