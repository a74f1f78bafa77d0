"""Memory of a Program: which arena and offset each intermediate gets, and which outputs take their inputs' place.

A pure function of the steps; it must never let two arrays that are alive at once overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vkdnn.errors import MemoryLimitError
from vkdnn.fusion.specs import Step
from vkdnn.ir.dims import largest
from vkdnn.ir.node import Node

ALIGNMENT = 4  # words: every array starts at a multiple, so that kernels may load four elements at once


@dataclass(frozen=True)
class Lifetime:
    """An array that exists from the step that writes it to the last that reads it; ``words`` with what follows it up
    to the next array."""

    node: Node
    words: int
    first: int
    last: int


@dataclass(frozen=True)
class ArenaPlan:
    """Sizes of the arenas in words, and for each node its arena and offset."""

    arenas: tuple[int, ...]
    places: dict[Node, tuple[int, int]]
    lower_bound: int  # words alive at once at the fullest step


def lifetimes(steps: Sequence[Step], kept: Iterable[Node]) -> list[Lifetime]:
    """Lifetimes of what the steps write, other than the nodes ``kept`` elsewhere."""
    skip = set(kept)
    first: dict[Node, int] = {}
    last: dict[Node, int] = {}
    for i, step in enumerate(steps):
        for node in step.inputs:
            last[node] = i
        for node in step.outputs:
            first[node] = i
            last[node] = i

    def words(node: Node) -> int:
        return max(1, -(-largest(node.words) // ALIGNMENT)) * ALIGNMENT

    return [Lifetime(n, words(n), first[n], last[n]) for n in first if n not in skip]


def plan_arenas(lives: Sequence[Lifetime], max_words: int) -> ArenaPlan:
    """Largest first, each at the lowest offset where it overlaps nothing alive with it.

    Raises MemoryLimitError when one array exceeds a buffer of the device.
    """
    placed: list[tuple[Lifetime, int, int]] = []
    arenas: list[int] = []
    for life in sorted(lives, key=lambda x: (-x.words, x.first)):
        if life.words > max_words:
            raise MemoryLimitError(
                f"an intermediate of shape {life.node.shape} takes {4 * life.words} bytes, but one buffer of this "
                f"device holds {4 * max_words}; use a smaller batch or split the work"
            )
        arena = 0
        while True:
            taken = sorted(
                (offset, offset + other.words)
                for other, where, offset in placed
                if where == arena and other.first <= life.last and life.first <= other.last
            )
            offset = 0
            for start, stop in taken:
                if offset + life.words <= start:
                    break
                offset = max(offset, stop)
            if offset + life.words <= max_words:
                break
            arena += 1
        if arena == len(arenas):
            arenas.append(0)
        arenas[arena] = max(arenas[arena], offset + life.words)
        placed.append((life, arena, offset))
    changes: dict[int, int] = {}
    for life in lives:
        changes[life.first] = changes.get(life.first, 0) + life.words
        changes[life.last + 1] = changes.get(life.last + 1, 0) - life.words
    alive = peak = 0
    for step in sorted(changes):
        alive += changes[step]
        peak = max(peak, alive)
    return ArenaPlan(tuple(arenas), {life.node: (arena, offset) for life, arena, offset in placed}, peak)


def in_place(steps: Sequence[Step], donated: Sequence[Node], outputs: Sequence[Node]) -> dict[Node, Node]:
    """Output node -> donated input whose memory it may take: of its shape and dtype, and read by no later step, nor by
    the writing step except element by element."""
    pairs: dict[Node, Node] = {}
    producer = {node: i for i, step in enumerate(steps) for node in step.outputs}
    readers: dict[Node, list[int]] = {}
    for i, step in enumerate(steps):
        for node in step.inputs:
            readers.setdefault(node, []).append(i)
    free = list(donated)
    for output in outputs:
        step_at = producer.get(output)
        if step_at is None or output in pairs:
            continue
        for k, candidate in enumerate(free):
            if (candidate.shape, candidate.dtype) != (output.shape, output.dtype):
                continue
            step = steps[step_at]
            aligned = all(ok for node, ok in zip(step.inputs, step.aligned, strict=True) if node is candidate)
            if aligned and max(readers.get(candidate, [-1])) <= step_at:
                pairs[output] = free.pop(k)
                break
    return pairs
