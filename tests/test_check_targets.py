"""Names on a command line: operations and groups, things of a user's module, shapes by the parameters' names."""

import sys

import pytest

from vkdnn.check.library import OPERATORS
from vkdnn.check.targets import resolve
from vkdnn.errors import ArgumentError

MODULE = """
import numpy as np
import vkdnn as vk
from vkdnn.check.operator import Input, Operator

halved = Operator("halved", "mine", (Input("x", "n"),), lambda x: x / 2, None, {"n": 3})
case = halved.case()
pair = np.sin, lambda g, x: g * np.cos(x)
number = 3.0


class Thing:
    pass


def product(a, b, c=None):
    return a @ b
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "own_targets.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield
    sys.modules.pop("own_targets", None)


def test_a_group_with_an_at_sign_is_never_an_operation():
    for name, group in (("norms", "norms"), ("@norms", "norms"), ("@attention", "attention")):
        assert [c.name for c in resolve([name])] == [
            c.name for o in OPERATORS.values() if o.group == group for c in o.cases()
        ]
    assert [c.name for c in resolve(["attention"])] == ["attention"]
    with pytest.raises(ArgumentError, match="is it @norms"):
        resolve(["@normss"])


def test_what_comes_near_is_said_once():
    with pytest.raises(ArgumentError) as error:
        resolve(["attentionn"])
    hint = str(error.value).split("is it ")[1].split("?")[0].split(" or ")
    assert "attention" in hint and len(hint) == len(set(hint))


def test_operators_and_cases_of_a_module_are_targets(mine):
    names = ["own_targets:halved", "own_targets:case"]
    assert [c.name for c in resolve(names)] == names


def test_what_is_pytorchs_has_no_bits_of_vkdnn(mine):
    torch = pytest.importorskip("torch")
    module = sys.modules.setdefault("own_targets", __import__("own_targets"))
    module.linear, module.of_tensors = torch.nn.Linear(2, 2), eval("lambda x: x", {"torch": torch})
    for name in ("linear", "of_tensors"):
        with pytest.raises(ArgumentError, match="is PyTorch's, whose kernels are not vkdnn's"):
            resolve([f"own_targets:{name}"], ["2,2"])


def test_shapes_go_by_the_parameters_names(mine):
    for shapes in (["b=3,2", "a=4,3"], ["b=3,2", "4,3"]):
        (case,) = resolve(["own_targets:product"], shapes)
        assert [(i.name, i.dims) for i in case.operator.inputs] == [("a", "4 3"), ("b", "3 2")]


@pytest.mark.parametrize(
    ("name", "shapes", "message"),
    [
        ("pair", ["3"], "is a pair of functions, which no device runs"),
        ("number", [], "is float, expected a function of arrays"),
        ("Thing", ["3"], "is a class; name a function or an instance"),
        ("product", ["x=4,3", "b=3,2"], "has no parameter 'x'; its parameters: a, b, c"),
        ("product", ["a=4,3", "a=3,2"], "'a' of own_targets:product is given twice"),
        ("product", ["a=4,3", "c=3"], "'b' is left out"),
        ("product", ["4,3"], r"takes 2 to 3 arguments, \(a, b, c\), and was given 1"),
        ("product", ["4", "3", "2", "1"], "and was given 4"),
        ("nothing", [], "has no 'nothing'; it has .*halved, case, pair, Thing, product"),
    ],
)
def test_what_does_not_fit_is_said(mine, name, shapes, message):
    with pytest.raises(ArgumentError, match=message):
        resolve([f"own_targets:{name}"], shapes)
