"""Targets of a command line, and the device that only remembers what it would compile."""

import numpy as np
import pytest

import vkdnn as vk
from vkdnn.aot.target import PORTABLE, target_of
from vkdnn.aot.targets import Argument, Collector, find_function, parse_argument
from vkdnn.errors import ArgumentError, DtypeError
from vkdnn.nn import RAPTConfig
from vkdnn.shader import compile_count, compile_many
from vkdnn.train import Job, Trainer, sample_text
from vkdnn.train.decode import generate

SMALL = Job(RAPTConfig(layers=1, width=32, heads=2, hidden=48, key_width=16, value_width=16), batch=2, length=16)


def test_nothing_is_left_to_compile_after_what_was_collected(monkeypatch, tmp_path):
    """Initialization, a training step and decoding."""
    monkeypatch.setenv("VKDNN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("vkdnn.shader._memo", {})
    device = vk.device()
    collector = Collector(target_of(device))
    before = compile_count()
    trainer = Trainer(SMALL, sample_text(), collector)
    assert trainer.step() == 0.0
    assert list(generate(SMALL.make_model(), trainer.best, b"def ", 0)) == []
    assert compile_count() == before
    requests = collector.requests
    assert len(requests) == len({r.identity for r in requests}) > 20
    compile_many(requests)
    assert compile_count() == before + len(requests)
    trainer = Trainer(SMALL, sample_text(), device)
    assert trainer.step() > 0
    assert len(list(generate(SMALL.make_model(), trainer.best, b"def ", 2))) == 2
    assert compile_count() == before + len(requests)


def test_a_portable_target_needs_no_device(monkeypatch):
    monkeypatch.setattr("vkdnn.runtime.open_device", lambda *a: pytest.fail("a device was opened"))
    with Collector(PORTABLE) as collector:
        assert vk.softmax(vk.array(np.ones((4, 8), np.float32))).numpy().tolist() == [[0.0] * 8] * 4
    assert [r.family for r in collector.requests] == ["FoldSpec"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x=8,128", Argument("x", (8, 128))),
        ("8x128:int32", Argument("", (8, 128), "int32")),
        ("tokens=batch,512:int32", Argument("tokens", ("batch", 512), "int32")),
        ("rate=", Argument("rate", ())),
        ("x=max,extra", Argument("x", ("max", "extra"))),
    ],
)
def test_arguments(text, expected):
    assert parse_argument(text) == expected


@pytest.mark.parametrize("text", ["x=8,,2", "x=8;2", "x==8", "x=99999999999", "8-2", "x=8,2:int32:int32"])
def test_bad_arguments(text):
    with pytest.raises(ArgumentError, match="--shape: got"):
        parse_argument(text)


def test_bad_dtypes_are_refused():
    with pytest.raises(DtypeError, match="float64"):
        parse_argument("x=8:float64")


def test_functions_are_found(tmp_path, monkeypatch):
    (tmp_path / "a_model_of_mine.py").write_text("class Net:\n    @staticmethod\n    def forward(x): return x\nn = 3\n")
    (tmp_path / "a_broken_model.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [p for p in __import__("sys").path if p])
    assert find_function("a_model_of_mine:Net.forward")(7) == 7
    for text, message in {
        "a_model_of_mine": "expected module:function",
        "no_such_module_here:f": "cannot import 'no_such_module_here' .*PYTHONPATH",
        "a_broken_model:f": "ZeroDivisionError",
        "a_model_of_mine:missing": "has no 'missing'; it has Net",
        "a_model_of_mine:n": "is int, expected a function",
    }.items():
        with pytest.raises(ArgumentError, match=message):
            find_function(text)
