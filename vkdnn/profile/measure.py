"""Calls a function and watches: the host's stretches, and the launches of the device by its own clock.

It must never change what the function computes, nor which recordings serve it afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from vkdnn import tree
from vkdnn.array import Array, common_device, realize
from vkdnn.device import Device, Prepared, VulkanDevice, current_device, prepared
from vkdnn.device import device as find_device
from vkdnn.errors import ArgumentError, DeviceError
from vkdnn.ir.arguments import integer, short
from vkdnn.profile.awake import awake
from vkdnn.profile.ceilings import Ceilings, measured
from vkdnn.profile.result import SUBMIT, Call, Kernel, Profile, Ran, Stretch
from vkdnn.profile.work import kernel_work, title
from vkdnn.program import recorded_anew
from vkdnn.timeline import listening
from vkdnn.transform import Jitted

STEPS = 10


def profile(
    function: Callable[..., Any],
    *arguments: Any,
    steps: int = STEPS,
    device: Device | str | int | None = None,
    ceilings: Ceilings | None = None,
) -> Profile:
    """Where the time of ``function(*arguments)`` goes, on the host and kernel by kernel on the device.

    Calls it once and then ``steps`` times with recordings that carry time stamps between launches; and once more and
    ``steps`` times without, for the wall time. A graphics card is brought to its full clock before. Arrays that it
    returns are computed. Give a vk.jit function, or one that calls such: any other traces, plans and records in each
    call, as it always does, and the profile shows that. ``device`` is where to look, by default where the arguments
    are; ``ceilings`` saves measuring them again.

    Raises DeviceError for a device without time stamps (the reference has none), and ArgumentError for a function
    that launches nothing there, and for one that donates its arguments, which cannot be called twice with the same:
    profile a function that keeps the state, such as Trainer.step.

    >>> import vkdnn as vk
    >>> found = vk.profile(vk.jit(vk.softmax), vk.array([[1.0, 2.0]]), steps=2)
    >>> found.dispatches, found.submissions
    (1, 1)
    """
    if not callable(function):
        raise ArgumentError(f"profile: got {short(function)}, expected a function")
    count = integer("profile: steps", steps, "an int of 1 or more")
    if count < 1:
        raise ArgumentError(f"profile: steps: got {count}, expected 1 or more")
    if isinstance(function, Jitted) and function.donate:
        raise ArgumentError(
            "profile: the function donates its arguments, so it cannot be called twice with the same; "
            "profile a function that keeps the state between calls"
        )
    place = _place(arguments, device)
    roof = ceilings or measured(place)
    watch = _Watch(function, arguments)
    with place:
        with recorded_anew(), place.opened.timing(), prepared() as watch.log, watch.stamps():
            first = watch.call()
            awake(place)
            calls = tuple(watch.call() for _ in range(count))
        if not calls[-1].launches:
            raise ArgumentError(f"profile: the function launches nothing on {place.name}; give another device")
        watch.call()
        awake(place)
        plain = tuple(watch.call() for _ in range(count))
    name = getattr(function, "__qualname__", type(function).__name__)
    return Profile(name, place.name, roof, tuple(watch.kernels), first, calls, plain)


def _place(arguments: tuple[Any, ...], device: Device | str | int | None) -> VulkanDevice:
    if device is None:
        arrays = [x for x in tree.flatten(list(arguments))[0] if isinstance(x, Array)]
        place: Device = common_device("profile", arrays) or current_device()
    else:
        place = device if isinstance(device, Device) else find_device(device)
    if not isinstance(place, VulkanDevice):
        raise DeviceError(f"profile: {place.name} has no time stamps; choose a Vulkan device")
    return place


class _Watch:
    """Calls the function and hears what happens in it."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]):
        self.function, self.arguments = function, arguments
        self.log: list[Prepared] = []
        self.kernels: list[Kernel] = []
        self.numbers: dict[tuple[Any, ...], int] = {}
        self.launched: dict[int, list[int]] = {}  # of a recording, by identity: the kernels of its launches
        self.known = 0  # entries of the log that are in there
        self.stamped = False
        self.begun = time.perf_counter()

    @contextmanager
    def stamps(self) -> Iterator[None]:
        """Within, recordings have times."""
        self.stamped = True
        try:
            yield
        finally:
            self.stamped = False

    def call(self) -> Call:
        """A call, with its results computed, and its stretches."""
        heard: list[Stretch] = []

        def hear(name: str, start: float, stop: float, what: Any) -> None:
            launches: tuple[Ran, ...] = ()
            if name == SUBMIT and self.stamped:
                launches = tuple(Ran(k, *span) for k, span in zip(self._of(what), what.launch_spans(), strict=True))
            barriers = what.barriers if name == SUBMIT else 0
            heard.append(Stretch(name, start - self.begun, stop - self.begun, launches, barriers))

        start = time.perf_counter()
        with listening(hear):
            result = self.function(*self.arguments)
            realize([x for x in tree.flatten(result)[0] if isinstance(x, Array)])
        stop = time.perf_counter()
        ordered = tuple(sorted(heard, key=lambda s: (s.start, -s.stop)))
        return Call(start - self.begun, stop - self.begun, ordered)

    def _of(self, recording: Any) -> list[int]:
        """The kernels that a recording launches."""
        for made in self.log[self.known :]:
            at = 0
            for part in made.recordings:
                size = len(part.plan)
                pairs = zip(made.tasks[at : at + size], made.schedules[at : at + size], strict=True)
                self.launched[id(part)] = [self._number(task, schedule) for task, schedule in pairs]
                at += size
        self.known = len(self.log)
        return self.launched[id(recording)]

    def _number(self, task: Any, schedule: Any) -> int:
        spec, sizes = task.spec, task.sizes
        words = sum({(id(p.handle), p.start): p.words for p in (*task.inputs, *task.outputs)}.values())
        key = (spec.text(), sizes, words, str(schedule))
        if key not in self.numbers:
            self.numbers[key] = len(self.kernels)
            cost = kernel_work(spec, sizes, words)
            family = type(spec).__name__.removesuffix("Spec").lower()
            self.kernels.append(Kernel(title(spec, sizes), family, spec.text(), str(schedule), cost))
        return self.numbers[key]
