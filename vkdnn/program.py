"""A Program: a scheduled graph with its memory, made ready on a device and replayed.

Its results never depend on the device or on how often it ran; inputs and outputs are storages, everything between
lives in arenas that one replay hands to the next.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vkdnn.device import Device, Place, Progress, Run, Storage, Task, Words
from vkdnn.fusion.schedule import schedule, storage
from vkdnn.fusion.spans import cut_folds
from vkdnn.ir.node import Node
from vkdnn.plan import in_place, lifetimes, plan_arenas

KEPT_BINDINGS = 4  # recordings a Program keeps: one for each set of storages it was called with
DOWNLOADED_WORDS = 1 << 18  # results up to 1 MiB come back in the submission that computes them


@dataclass
class _Bound:
    """A Program recorded over certain buffers."""

    run: Run
    slots: dict[int, Storage]  # inputs staged from the host
    inputs: list[Storage]
    handles: dict[Node, Any]  # buffers of the results
    brought: set[Node]  # results that come back with the submission
    given: list[weakref.ref[Storage]]  # result storages of the last replay
    arguments: list[Any]  # buffers of the inputs: while they live, no other buffer can have their identity


class Program:
    """Computes ``outputs`` from the leaves ``inputs`` (and whatever leaves with buffers the graph holds).

    ``donated`` are numbers of inputs whose storage an output may take over.
    """

    def __init__(
        self, device: Device, outputs: Sequence[Node], inputs: Sequence[Node] = (), donated: Sequence[int] = ()
    ):
        self.device, self.outputs, self.inputs = device, cut_folds(outputs), list(inputs)
        self.steps = schedule(self.outputs)
        self.donated = list(donated)
        roots = list(dict.fromkeys(map(storage, self.outputs)))
        self.roots = [r for r in roots if r.kind != "leaf" and r.buffer is None]
        donated_nodes = [self.inputs[i] for i in donated]
        self.taken = in_place(self.steps, donated_nodes, self.roots)
        self.plan = plan_arenas(lifetimes(self.steps, self.roots), device.max_words)
        self._arenas: list[Any] | None = None
        self._bound: OrderedDict[tuple[int, ...], _Bound] = OrderedDict()

    @property
    def peak_words(self) -> int:
        """Words of the arenas."""
        return sum(self.plan.arenas)

    def __call__(self, arguments: Sequence[Storage | Words], progress: Progress | None = None) -> list[Storage]:
        """Run once: a storage or host words for each input; gives a storage for each output."""
        key = tuple(id(a.handle()) if isinstance(a, Storage) else 0 for a in arguments)
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bound[key] = self._bind(arguments, progress)
            if len(self._bound) > KEPT_BINDINGS:
                self._bound.popitem(last=False)
        self._bound.move_to_end(key)
        bound.inputs = [bound.slots.get(i, a) for i, a in enumerate(arguments)]  # type: ignore[misc]
        for slot, target in bound.slots.items():
            bound.run.stage(target.handle(), arguments[slot])  # type: ignore[arg-type]
        for given in bound.given:
            earlier = given()
            if earlier is not None:
                earlier.detach()
        if self.steps:
            bound.run()
        return self._results(bound)

    def _bind(self, arguments: Sequence[Storage | Words], progress: Progress | None) -> _Bound:
        device = self.device
        slots = {i: device.storage(n.size) for i, n in enumerate(self.inputs) if not isinstance(arguments[i], Storage)}
        inputs: list[Storage] = [slots.get(i, a) for i, a in enumerate(arguments)]  # type: ignore[misc]
        at = dict(zip(self.inputs, (s.handle() for s in inputs), strict=True))
        handles: dict[Node, Any] = {}
        for root in self.roots:
            donor = self.taken.get(root)
            handles[root] = at[donor] if donor is not None else device.storage(root.size).handle()
        if self._arenas is None:
            self._arenas = [device.allocate(words, host=False) for words in self.plan.arenas]
        arenas = self._arenas

        def place(node: Node) -> Place:
            words = max(1, node.size)
            held = handles.get(node, at.get(node))
            if held is None and node.buffer is not None:
                held = node.buffer.handle()
            if held is not None:
                return Place(held, 0, words)
            arena, offset = self.plan.places[node]
            return Place(arenas[arena], offset, words)

        tasks = [Task(s.spec, s.sizes, tuple(map(place, s.inputs)), tuple(map(place, s.outputs))) for s in self.steps]
        uploads = [s.handle() for s in slots.values() if s.words]
        brought = {r for r in self.roots if r not in self.taken and 0 < r.size <= DOWNLOADED_WORDS}
        run = device.prepare(tasks, uploads, [handles[r] for r in self.roots if r in brought], progress)
        return _Bound(run, slots, inputs, handles, brought, [], list(at.values()))

    def _results(self, bound: _Bound) -> list[Storage]:
        at: dict[Node, Storage] = dict(zip(self.inputs, bound.inputs, strict=True))
        for i in self.donated:
            donated = bound.inputs[i]
            at[self.inputs[i]] = Storage(self.device, donated.words, donated.handle())  # if it is a result as it was
            donated.donate()
        new = {
            root: Storage(self.device, root.size, handle, bound.run if root in bound.brought else None)
            for root, handle in bound.handles.items()
        }
        bound.given = [weakref.ref(s) for root, s in new.items() if root not in self.taken]
        return [new.get(n) or at.get(n) or n.buffer for n in map(storage, self.outputs)]
