"""vkdnn ops: the catalogue is complete, true to the op table and to docs/design.md, and is docs/ops.md."""

import inspect
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import vkdnn as vk
from vkdnn import catalogue
from vkdnn.cli import app
from vkdnn.cli.ops import page
from vkdnn.ir.ops import OPS

DOCS = Path(__file__).parent.parent / "docs"
ENTRIES = catalogue.catalogue()
MODULES = {"": vk, "nn.": vk.nn, "random.": vk.random, "optim.": vk.optim}


def run(*arguments):
    return CliRunner().invoke(app, ["ops", *arguments])


def public_functions():
    """Names of all public functions of vkdnn and of its modules of operations."""
    for prefix, module in MODULES.items():
        for name in getattr(module, "__all__", dir(module)):
            value = getattr(module, name)
            if inspect.isfunction(value) and not name.startswith("_"):
                yield prefix + name


def test_one_operation_and_its_order():
    result = run("softmax")
    assert result.exit_code == 0
    assert "log_softmax" in result.stdout and "gelu" not in result.stdout
    assert "128 lanes" in result.stdout and "product over k" not in result.stdout
    (entry,) = json.loads(run("matmul", "--json").stdout)
    assert (entry["dtypes"], entry["gradient"], entry["order"]) == ("float", "yes", "product")


def test_every_public_function_is_listed_and_nothing_else():
    names = [entry.name for entry in ENTRIES]
    assert len(set(names)) == len(names)
    public = set(public_functions())
    assert public - set(names) - catalogue.NOT_OPERATIONS == set(), "add them to a group in vkdnn/catalogue.py"
    assert set(names) - public == set(), "these do not exist"
    assert public >= catalogue.NOT_OPERATIONS and not set(names) & catalogue.NOT_OPERATIONS


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.name)
def test_every_entry_is_whole(entry):
    assert entry.gradient in ("yes", "kinks", "zero", "none")
    assert entry.order == "—" or set(entry.order.split(", ")) <= set(catalogue.ORDERS)
    assert entry.dtypes and entry.bound
    assert entry.doc and "\n" not in entry.doc and not entry.doc.endswith(".")


def test_gradients_of_rows():
    found = {name: catalogue.row_gradient(op) for name, op in OPS.items()}
    assert {found[n] for n in ("exp", "add", "where")} == {"yes"}
    assert {found[n] for n in ("abs", "relu", "maximum", "clip", "hardswish", "remainder")} == {"kinks"}
    assert {found[n] for n in ("floor", "sign", "stop_gradient", "floor_divide")} == {"zero"}
    assert {found[n] for n in ("less", "bitwise_and", "to_int32", "isnan", "nextafter", "mul_high")} == {"none"}


def test_dtypes_of_rows():
    words = {name: catalogue.row_dtypes(OPS[name].types) for name in ("exp", "less", "where", "right_shift", "isnan")}
    assert words == {
        "exp": "float",
        "less": "number → bool",
        "where": "bool, any, any",
        "right_shift": "integer",
        "isnan": "float → bool",
    }


def test_bounds_of_rows_are_those_of_the_op_table():
    bounds = {entry.name: entry.bound for entry in ENTRIES}
    assert (bounds["exp"], bounds["divide"], bounds["negative"], bounds["where"]) == ("1", "0.5", "exact", "exact")


def test_the_orders_are_those_of_the_design():
    text = (DOCS / "design.md").read_text()
    for what, order in catalogue.ORDERS.values():
        assert f"| {what} | {order} |" in text, f"docs/design.md has another order for: {what}"


def test_the_page_is_what_the_command_prints(request):
    text = run("--markdown").stdout
    if request.config.getoption("--update-golden"):
        (DOCS / "ops.md").write_text(text)
    assert text == page(ENTRIES)
    assert (DOCS / "ops.md").read_text() == text, "run pytest tests/test_cli_ops.py --update-golden and review the diff"


def test_patterns():
    listed = json.loads(run("random.*", "--json").stdout)
    assert listed and all(entry["name"].startswith("random.") for entry in listed)
    assert len(json.loads(run("--json").stdout)) == len(ENTRIES)
    wrong = run("sofmax")
    assert wrong.exit_code == 1 and wrong.stdout == ""
    assert "no operation matches 'sofmax' (is it softmax" in wrong.stderr
