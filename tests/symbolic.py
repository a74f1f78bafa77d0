"""Functions traced with symbolic sizes and run at others: what an exporter of bundles does, and what their loader does.

Nothing here may compare with a tolerance: check() demands the bits of the concrete function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import vkdnn as vk
from vkdnn import dtypes, tracing, tree
from vkdnn.array import Array, asarray, host_words
from vkdnn.check.hard import bits_equal
from vkdnn.codegen.render import render
from vkdnn.device import Place, Task, VulkanDevice
from vkdnn.ir.dims import evaluate, formula, guards, hints, symbol
from vkdnn.ir.node import Node, leaf
from vkdnn.ir.symbolic import alike, concrete, symbols
from vkdnn.kernels.base import Target
from vkdnn.program import Program
from vkdnn.runtime import Launch, Region
from vkdnn.shader import compile_many

TARGET = Target(software=False)
Ranges = Mapping[str, tuple[int, int]]
Shapes = Sequence[tuple[tuple[Any, ...], str]]  # lengths, or names of symbols, and a dtype


def traced(function: Callable[..., Any], arguments: Shapes, ranges: Ranges) -> Program:
    """The Program of a function over symbolic sizes: traced with several hints, which must give the same."""
    programs, forms = [], []
    for picked in zip(*(hints(*ranges[name]) for name in ranges), strict=True):
        chosen = {name: symbol(name, hint, *ranges[name]) for name, hint in zip(ranges, picked, strict=True)}
        with guards() as found:
            inputs = [leaf(tuple(chosen.get(n, n) for n in shape), dtypes.as_dtype(d)) for shape, d in arguments]
            with tracing.trace():
                results = tree.flatten(function(*map(Array, inputs)))[0]
            program = Program(vk.device("cpu"), [asarray(r).node for r in results], inputs)
            # What a bundle is made of: results, memory planned for the largest sizes, kernels, extents, workgroups.
            form: list[Any] = [program.plan.arenas, *(n.shape for n in program.outputs)]
            for spec, sizes in ((s.spec, s.sizes) for s in program.steps):
                schedule = spec.schedules(TARGET)[0]
                form += [spec, schedule, sizes, spec.groups(sizes, schedule), spec.cost(sizes)]
        found.check()
        form += [render(s.spec, s.spec.schedules(TARGET)[0], ()) for s in program.steps]  # nothing is left to decide
        programs.append(program)
        forms.append(form)
    alike(forms)
    return programs[0]


def run(program: Program, values: Mapping[str, int], arrays: Sequence[Any], device: Any) -> list[Any]:
    """The results at these values: of symbolic kernels on a Vulkan device, of concrete ones on the reference."""
    handles: dict[Node, Any] = {n: device.upload(s.read()).handle() for n, s in program.captured.items()}

    def words(node: Node) -> int:
        return max(1, evaluate(formula(node.words), values))

    def place(node: Node) -> Place:
        if node not in handles:
            handles[node] = device.allocate(words(node), True)
        return Place(handles[node], 0, words(node))

    for node, array in zip(program.inputs, arrays, strict=True):
        device.write(place(node).handle, host_words(array, node.dtype))
    tasks = []
    for step in program.steps:
        places = tuple(map(place, step.inputs)), tuple(map(place, step.outputs))
        spec = step.spec if isinstance(device, VulkanDevice) else concrete(step.spec, values)
        tasks.append(Task(spec, concrete(step.sizes, values), *places))
    if isinstance(device, VulkanDevice):
        launch(device, tasks, values)
    else:
        device.prepare(tasks, (), ())()
    found = []
    for node, result in zip(program.outputs, program.results, strict=True):
        shape = concrete(node.shape, values)
        stored = device.read(place(result).handle, words(result))[: node.dtype.words(int(np.prod(shape)))]
        found.append(dtypes.from_words(stored, node.dtype, shape))
    return found


def launch(device: VulkanDevice, tasks: Sequence[Task], values: Mapping[str, int]) -> None:
    """What the loader of a bundle does: the words of the symbols in a kernel come after its sizes, by name."""
    schedules = [t.spec.schedules(device.target)[0] for t in tasks]
    spirv = compile_many([device.shader(t.spec, s) for t, s in zip(tasks, schedules, strict=True)])
    launches = []
    for task, schedule, code in zip(tasks, schedules, spirv, strict=True):
        places = (*task.inputs, *task.outputs)
        reads, writes = (tuple(Region(p.handle, 0, p.words) for p in part) for part in (task.inputs, task.outputs))
        push = (*(p.start for p in places), *task.sizes, *(values[s.name] for s in symbols(task.spec)))
        x, y, z = concrete(task.spec.groups(task.sizes, schedule), values)
        launches.append(Launch(code, "", tuple(p.handle for p in places), push, (x, y, z), reads, writes))
    device.opened.record(launches).run()


def filled(arguments: Shapes, values: Mapping[str, int], top: int = 9) -> list[Any]:
    """Arrays of these shapes: normal numbers, or integers below ``top``."""
    generator = np.random.default_rng(sum(values.values()))
    found = []
    for lengths, dtype in arguments:
        shape = tuple(values.get(n, n) for n in lengths)
        if dtype == "int32":
            found.append(generator.integers(0, top, shape, np.int32))
        else:
            array = generator.normal(size=shape).astype(np.float32)
            found.append(vk.array(array).astype(dtype).numpy() if dtype != "float32" else array)
    return found


def check(
    function: Callable[..., Any], arguments: Shapes, ranges: Ranges, *values: Mapping[str, int], top: int = 9
) -> Program:
    """At each of the values: the bits of the concrete function, from the symbolic kernels on both devices."""
    program = traced(function, arguments, ranges)
    for at in values:
        arrays = filled(arguments, at, top)
        with vk.device("cpu"):
            want = [r.numpy() for r in tree.flatten(function(*map(vk.array, arrays)))[0]]
        for device in (vk.device("cpu"), vk.device()):
            for k, (a, b) in enumerate(zip(want, run(program, at, arrays, device), strict=True)):
                assert a.shape == b.shape
                wrong = ~bits_equal(a, b)
                assert not wrong.any(), f"result {k} at {at} on {device.name}: {np.argwhere(wrong)[:3]} of {a.shape}"
    return program
