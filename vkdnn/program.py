"""A Program: a scheduled graph with its memory, made ready on a device and replayed.

Its results never depend on the device or on how often it ran; inputs and outputs are storages, everything between
lives in arenas that one replay hands to the next: of the device, and of the host for what the graph puts there.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from vkdnn.device import Device, Place, Progress, Run, Storage, Task, Words
from vkdnn.errors import ArgumentError
from vkdnn.fusion.scans import join_scans
from vkdnn.fusion.schedule import schedule, storage
from vkdnn.fusion.spans import cut_long
from vkdnn.ir.memory import on_host, settle
from vkdnn.ir.node import Node
from vkdnn.plan import in_place, lifetimes, plan_arenas
from vkdnn.schedules import generation
from vkdnn.timeline import stretch

KEPT_BINDINGS = 4  # recordings a Program keeps: one for each set of storages it was called with
DOWNLOADED_WORDS = 1 << 18  # results up to 1 MiB come back in the submission that computes them


@dataclass(frozen=True)
class Ran:
    """A run of a Program: the words of its inputs and of the values it captured, and afterwards of its outputs."""

    program: Program
    arguments: list[Words]
    captured: dict[Node, Words]
    results: list[Words] = field(default_factory=list)


_log: ContextVar[list[Ran] | None] = ContextVar("log", default=None)


@contextmanager
def recorded() -> Iterator[list[Ran]]:
    """Within, every run of a Program on this thread is written down, with all words that go in and come out."""
    found: list[Ran] = []
    token = _log.set(found)
    try:
        yield found
    finally:
        _log.reset(token)


_anew: ContextVar[int] = ContextVar("anew", default=0)
_scopes = count(1)


@contextmanager
def recorded_anew() -> Iterator[None]:
    """Within, this thread runs recordings made within, not those that Programs have; afterwards those serve again."""
    token = _anew.set(next(_scopes))
    try:
        yield
    finally:
        _anew.reset(token)


@dataclass(eq=False)
class _Buffer:
    """A buffer that a result is written to. Recordings share it: whoever writes detaches what it held."""

    handle: Any
    holder: weakref.ref[Storage] | None = None  # of the last result put there
    spoiled: bool = False  # donated to another Program: not to be written again

    @property
    def held(self) -> Storage | None:
        return None if self.holder is None else self.holder()


@dataclass(eq=False)
class _Bound:
    """A Program recorded over certain buffers."""

    run: Run
    slots: dict[int, Storage]  # inputs staged from the host
    buffers: dict[Node, _Buffer]  # of the results, but for those that take an argument's place
    handles: dict[Node, Any]  # of all results
    brought: set[Node]  # results that come back with the submission
    kept_alive: list[Any]  # buffers in the key: while they live, no other buffer can have their identity

    @property
    def spoiled(self) -> bool:
        return any(buffer.spoiled for buffer in self.buffers.values())


class Program:
    """Computes ``outputs`` from the leaves ``inputs`` (and whatever leaves with buffers the graph holds).

    ``donated`` are numbers of inputs whose storage an output may take over.
    """

    @stretch("plan")
    def __init__(
        self, device: Device, outputs: Sequence[Node], inputs: Sequence[Node] = (), donated: Sequence[int] = ()
    ):
        self.device, self.inputs = device, list(inputs)
        graph = cut_long(outputs)
        self.outputs, flushed = settle(graph if device.software else join_scans(graph))
        self.steps = schedule(self.outputs, flushed)
        self.donated = list(donated)
        self.results = list(map(storage, self.outputs))
        self.roots = [r for r in dict.fromkeys(self.results) if r.kind != "leaf" and r.buffer is None]
        self.returned = set(self.results)
        donated_nodes = [self.inputs[i] for i in donated if self.inputs[i] not in self.returned]
        self.taken = in_place(self.steps, donated_nodes, self.roots)
        lives = lifetimes(self.steps, self.roots)
        self.plan = plan_arenas([x for x in lives if not on_host(x.node)], device.max_words)
        self.host_plan = plan_arenas([x for x in lives if on_host(x.node)], device.max_words)
        self.cuts = [i for i, step in enumerate(self.steps[:-1], 1) if step.flush]
        # Values the function did not get as arguments. Held here: a node forgets its buffer when that is donated.
        known = [*(n for s in self.steps for n in s.inputs), *self.results]
        self.captured: dict[Node, Storage] = {n: n.buffer for n in known if n.buffer is not None}
        self._arenas: dict[bool, list[Any]] = {}  # of the device (False) and of the host (True)
        self._bound: OrderedDict[tuple[int, ...], _Bound] = OrderedDict()

    @property
    def peak_words(self) -> int:
        """Words of the arenas on the device."""
        return sum(self.plan.arenas)

    @property
    def host_words(self) -> int:
        """Words of the arenas in the host's memory."""
        return sum(self.host_plan.arenas)

    @property
    def submissions(self) -> int:
        """Submissions of a call."""
        return len(self.cuts) + 1 if self.steps else 0

    def __call__(self, arguments: Sequence[Storage | Words], progress: Progress | None = None) -> list[Storage]:
        """Run once: a storage or host words for each input; gives a storage for each output."""
        log = _log.get()
        with self.device.lock:
            if log is None:
                return self._call(arguments, progress)
            given = [a.read() if isinstance(a, Storage) else a.copy() for a in arguments]  # some may be donated
            ran = Ran(self, given, {node: storage.read() for node, storage in self.captured.items()})
            results = self._call(arguments, progress)
            ran.results.extend(r.read() for r in results)
            log.append(ran)
            return results

    def _call(self, arguments: Sequence[Storage | Words], progress: Progress | None) -> list[Storage]:
        handles = [a.handle() if isinstance(a, Storage) else None for a in arguments]
        constants = [s.handle() for s in self.captured.values()]
        key = (_anew.get(), generation(), *map(id, [*handles, *constants]))
        bound = self._bound.get(key)
        if bound is None or bound.spoiled:
            held = [*(h for h in handles if h is not None), *constants]
            self._check_donated(handles, held)
            bound = self._bound[key] = self._bind(arguments, held, progress)
            if len(self._bound) > KEPT_BINDINGS:
                self._bound.popitem(last=False)
        self._bound.move_to_end(key)
        for slot, target in bound.slots.items():
            if target.words:
                bound.run.stage(target.handle(), arguments[slot])  # type: ignore[arg-type]
        for buffer in bound.buffers.values():
            if buffer.held is not None:
                buffer.held.detach()
        if self.steps:
            try:
                bound.run()
            except BaseException:
                self._spoil(bound, arguments)
                raise
        return self._results(bound, arguments)

    def _spoil(self, bound: _Bound, arguments: Sequence[Storage | Words]) -> None:
        """The work broke off between submissions: donated arguments that outputs have taken over are gone."""
        written = {node for step in self.steps[: bound.run.begun] for node in step.outputs}
        for root in bound.handles:
            if root in written and root not in bound.buffers:
                donor = arguments[self.inputs.index(self.taken[root])]
                assert isinstance(donor, Storage)
                donor.donate()

    def _check_donated(self, handles: list[Any], held: list[Any]) -> None:
        for i in self.donated:
            if sum(1 for h in held if h is handles[i]) > 1:
                raise ArgumentError(
                    f"donate_argnums: leaf {i} of the arguments is donated, but the same array is also another "
                    "argument or a constant of the function; pass a copy (vk.array(x.numpy()))"
                )

    def _bind(self, arguments: Sequence[Storage | Words], held: list[Any], progress: Progress | None) -> _Bound:
        device = self.device
        slots = {i: device.storage(n.words) for i, n in enumerate(self.inputs) if not isinstance(arguments[i], Storage)}
        at = dict(
            zip(self.inputs, ((slots.get(i) or a).handle() for i, a in enumerate(arguments)), strict=True)  # type: ignore[union-attr]
        )
        # What the host stages lies in a slot that the next call stages into: no result may stay there.
        staged = {self.inputs[i] for i in slots}
        taken = {root: donor for root, donor in self.taken.items() if donor not in staged}
        buffers = {root: self._buffer(root, held) for root in self.roots if root not in taken}
        handles = {r: buffers[r].handle if r in buffers else at[taken[r]] for r in self.roots}
        if not self._arenas:
            self._arenas = {
                on: [device.allocate(words, host=False, remote=on) for words in plan.arenas]
                for on, plan in ((False, self.plan), (True, self.host_plan))
            }
        arenas = self._arenas

        def place(node: Node) -> Place:
            words = max(1, node.words)
            held = handles.get(node, at.get(node))
            if held is None and node in self.captured:
                held = self.captured[node].handle()
            if held is not None:
                return Place(held, 0, words)
            on = on_host(node)
            arena, offset = (self.host_plan if on else self.plan).places[node]
            return Place(arenas[on][arena], offset, words)

        tasks = [Task(s.spec, s.sizes, tuple(map(place, s.inputs)), tuple(map(place, s.outputs))) for s in self.steps]
        uploads = [s.handle() for s in slots.values() if s.words]
        brought = {r for r in buffers if 0 < r.words <= DOWNLOADED_WORDS}
        downloads = [handles[r] for r in self.roots if r in brought]
        run = self._prepare(tasks, uploads, downloads, progress)
        return _Bound(run, slots, buffers, handles, brought, held)

    def _prepare(self, tasks: list[Task], uploads: list[Any], downloads: list[Any], progress: Progress | None) -> Run:
        return self.device.prepare(tasks, uploads, downloads, progress, self.cuts)

    def _buffer(self, root: Node, held: list[Any]) -> _Buffer:
        """A buffer for a result: one of an earlier recording that is free, so that x = f(x) goes back and forth between
        two recordings, or a new one."""
        for bound in self._bound.values():
            buffer = bound.buffers.get(root)
            if buffer and not buffer.spoiled and buffer.held is None and all(h is not buffer.handle for h in held):
                return buffer
        return _Buffer(self.device.storage(root.words).handle())

    def _results(self, bound: _Bound, arguments: Sequence[Storage | Words]) -> list[Storage]:
        found: dict[Node, Storage] = {}
        for root, handle in bound.handles.items():
            result = Storage(self.device, root.words, handle, bound.run if root in bound.brought else None)
            found[root] = result
            if root in bound.buffers:
                result.producer = weakref.ref(bound.buffers[root])
                bound.buffers[root].holder = weakref.ref(result)
        donated = set(self.donated)
        for i, argument in enumerate(arguments):
            node = self.inputs[i]
            returned = node in self.returned
            if isinstance(argument, Storage):
                if returned:  # as it was; what is donated, under a new storage
                    found[node] = Storage(self.device, argument.words, argument.handle()) if i in donated else argument
                if i in donated:
                    argument.donate()
            elif returned:
                found[node] = self.device.upload(argument)  # its slot is staged anew by the next call
        return [found[n] if n in found else self.captured[n] for n in self.results]
