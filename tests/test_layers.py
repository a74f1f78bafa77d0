"""The layers: each package imports from those below it alone; exceptions inside functions are listed."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "vkdnn"

# Bottom up; a module may import from its own layer and the ones before. Longer names win over shorter ones.
LAYERS = (
    ("errors",),
    ("dtypes", "tree", "timeline"),
    ("numerics",),
    ("ir",),
    ("codegen",),
    ("kernels",),
    ("fusion", "autodiff"),
    ("shader",),
    ("runtime",),
    ("schedules",),
    ("device",),
    ("tracing",),
    ("plan",),
    ("program",),
    ("array",),
    ("ops",),
    ("transform", "remat"),
    ("random", "streams", "checkpoint", "profile"),
    ("tune",),
    ("nn", "optim"),
    ("aot",),
    ("train", "catalogue"),
    ("show", "check"),
    ("cli",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

# Upward imports inside functions: (module, what it imports). Each is one concept told in two files.
UPWARD = {
    ("array", "ops"),  # methods of Array are the functions of vkdnn.ops
}


def package_of(module):
    """``ir`` of ``vkdnn.ir.node``; None of the package itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "vkdnn" else None


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if name not in ("__init__", "__main__"):
            yield name, path


def imports(path):
    """(imported package, whether inside a function or under TYPE_CHECKING, line)."""
    tree = ast.parse(path.read_text())
    late = set()
    for node in ast.walk(tree):
        guarded = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if guarded or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            late |= {id(inner) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import in line {node.lineno}"
            whole = node.module == "vkdnn"
            names = [f"vkdnn.{alias.name}" for alias in node.names] if whole else [node.module]
        for name in names:
            package = package_of(name)
            if package in LEVEL:
                yield package, id(node) in late, node.lineno


def test_every_module_has_a_layer():
    assert {name for name, _ in modules()} <= set(LEVEL)


@pytest.mark.parametrize(
    ("name", "path"), list(modules()), ids=lambda p: str(p.relative_to(ROOT)) if isinstance(p, Path) else ""
)
def test_modules_import_from_below(name, path):
    for package, late, line in imports(path):
        if LEVEL[package] > LEVEL[name]:
            assert late, f"{path}:{line} imports vkdnn.{package} from above"
            assert (name, package) in UPWARD, (
                f"{path}:{line} reaches up to vkdnn.{package} inside a function: list it or drop it"
            )
        if LEVEL[package] == LEVEL[name] and package != name:
            assert late, f"{path}:{line} imports vkdnn.{package}, which lies beside it"


def test_the_list_of_exceptions_is_no_longer_than_needed():
    used = {(name, package) for name, path in modules() for package, late, _ in imports(path) if late}
    assert used >= UPWARD


def test_the_reference_part_imports_no_backend():
    for name, path in modules():
        if LEVEL[name] < LEVEL["runtime"]:
            text = path.read_text()
            assert "import kp" not in text and "import vulkan" not in text, path
