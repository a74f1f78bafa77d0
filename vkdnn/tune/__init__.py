"""The autotuner: candidates of each kernel are timed on the device, winners and all times are kept.

It must never change a result, nor time anything unasked.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from vkdnn import tree
from vkdnn.array import Array, asarray, realize
from vkdnn.device import Progress, Run, Task, VulkanDevice, Work, stand_by, tuned_by
from vkdnn.errors import ArgumentError, MemoryLimitError
from vkdnn.ir.arguments import short
from vkdnn.kernels.base import KernelSpec
from vkdnn.profile.ceilings import Ceilings
from vkdnn.schedules import current_choice, outdate
from vkdnn.schedules.winners import Candidate, Tuned
from vkdnn.shader.request import label_of
from vkdnn.transform import Jitted, positions
from vkdnn.tune.bounds import ceilings_of
from vkdnn.tune.race import LIMITS, Limits, race
from vkdnn.tune.rehearsal import Rehearsal, Scratch
from vkdnn.tune.stopwatch import Stopwatch

__all__ = ["Candidate", "Limits", "Tuned", "Tuning", "TunedKernel", "autotune"]


class TunedKernel:
    """A kernel that was timed: its label, family, device, how often its Program launches it, times of candidates."""

    def __init__(self, spec: KernelSpec, device: VulkanDevice, launches: int, tuned: Tuned) -> None:
        self.label, self.family = label_of(spec.text()), type(spec).__name__
        self.device, self.launches, self.tuned = device.name, launches, tuned

    def __repr__(self) -> str:
        return f"<{self.label}: {self.tuned.winner}, {self.tuned.gain:.2f} times as fast as the default>"


class Tuning(AbstractContextManager["Tuning"]):
    """Within ``with tuning:``, Programs on Vulkan devices tune their kernels when they run first.

    ``kernels`` lists what was timed, ``skipped`` the labels of kernels for which there was no memory or no time,
    ``spent`` is how many seconds it took.
    """

    def __init__(
        self,
        seconds: float | None = None,
        again: bool = False,
        progress: Progress | None = None,
        limits: Limits = LIMITS,
    ) -> None:
        self.seconds, self.again, self.progress, self.limits = seconds, again, progress, limits
        self.kernels: list[TunedKernel] = []
        self.skipped: list[str] = []
        self.spent = 0.0
        self._done: set[tuple[int, str, tuple[int, ...]]] = set()  # device, spec, sizes
        self._measured: dict[int, tuple[Stopwatch, Ceilings | None]] = {}
        self._scopes: list[AbstractContextManager[None]] = []

    # ---- as a scope

    def __enter__(self) -> Tuning:
        outdate()  # Programs that are ready get their kernels tuned when they run next
        scope = tuned_by(self)
        scope.__enter__()
        self._scopes.append(scope)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scopes.pop().__exit__(kind, error, trace)

    # ---- as a tuner (vkdnn.device.vulkan.Tuner)

    def __call__(self, device: VulkanDevice, work: Work) -> Run | None:
        if current_choice() is not None:  # schedules that are asked for by name are not to be timed
            return None
        tasks = work.tasks
        keys = [_key(device, task) for task in tasks]
        first = {key: i for i, key in reversed(list(enumerate(keys)))}
        wanted = [i for key, i in first.items() if self._wants(device, tasks[i], key)]
        if not wanted:
            return None
        count, done = Counter(keys), itertools.count(1)

        def tune(task: Task, scratch: Scratch) -> None:
            self._tune(device, task, scratch, count[_key(device, task)])
            if self.progress is not None:
                self.progress(next(done), len(wanted), label_of(task.spec.text()))

        return Rehearsal(device, work, wanted, tune)

    def _wants(self, device: VulkanDevice, task: Task, key: Any) -> bool:
        if key in self._done or any(type(n) is not int for n in task.sizes):
            return False
        if len(task.spec.schedules(device.target)) < 2:
            return False
        return self.again or device.winners.exactly(task.spec, task.sizes) is None

    def _tune(self, device: VulkanDevice, task: Task, scratch: Scratch, launches: int) -> None:
        """Times the candidates of a task on its inputs and keeps what came of it."""
        self._done.add(_key(device, task))
        if self.seconds is not None and self.spent >= self.seconds:
            self.skipped.append(label_of(task.spec.text()))
            return
        begun = time.perf_counter()
        try:
            task = scratch.beside(task)
        except MemoryLimitError:
            self.skipped.append(label_of(task.spec.text()))
            return
        with device.winners.alone():
            if self.again or device.winners.exactly(task.spec, task.sizes, anew=True) is None:
                self._race(device, task, launches)
        self.spent += time.perf_counter() - begun

    def _race(self, device: VulkanDevice, task: Task, launches: int) -> None:
        def keep(tuned: Tuned) -> None:
            device.winners.add(task.spec, tuned)

        if id(device) not in self._measured:
            self._measured[id(device)] = Stopwatch(device), ceilings_of(device)
        watch, ceilings = self._measured[id(device)]
        tuned = race(device, task, task.spec.schedules(device.target), watch, ceilings, self.limits, keep)
        keep(tuned)
        self.kernels.append(TunedKernel(task.spec, device, launches, tuned))


def _key(device: VulkanDevice, task: Task) -> tuple[int, str, tuple[int, ...]]:
    return id(device), task.spec.text(), task.sizes


def autotune(
    function: Callable[..., Any] | None = None,
    /,
    *arguments: Any,
    seconds: float | None = None,
    again: bool = False,
    progress: Progress | None = None,
) -> Tuning:
    """Find the fastest schedule of each kernel on this device, by timing them. No result changes by a bit.

    With a function, it is run once on the arguments, which stay as they are even where it donates them. Without one,
    ``with vk.autotune():`` tunes whatever runs inside for the first time, such as the first steps of a training loop.
    Kernels are timed on the data that they are run on. Winners are kept on disk beside the compiled shaders, for this
    device, driver and version of vkdnn, and serve every later process; a kernel that is known is not timed again,
    unless ``again``. ``seconds`` is how long to time at most, all kernels together; ``progress`` is called with (done,
    total, label) after each kernel of a Program. The reference has no schedules: nothing is timed there.

    Gives the Tuning, whose ``kernels`` have the times. VKDNN_AUTOTUNE=1 tunes without a change of the program,
    VKDNN_AUTOTUNE=0 leaves tuned schedules aside. Raises ArgumentError for what is no function or no time.

    >>> import vkdnn as vk
    >>> with vk.device("cpu"):
    ...     vk.autotune(vk.jit(lambda x: vk.softmax(x)), vk.ones((4, 8))).kernels
    []
    """
    if function is not None and not callable(function):
        raise ArgumentError(f"autotune: got {short(function)}, expected a function, or nothing for a with statement")
    if function is None and arguments:
        raise ArgumentError("autotune: got arguments without a function, expected the function first")
    if seconds is not None and not (isinstance(seconds, (int, float)) and seconds > 0):
        raise ArgumentError(f"autotune: seconds is {short(seconds)}, expected a positive number or None")
    tuning = Tuning(seconds, again, progress)
    if function is not None:
        with tuning:
            given = _kept(function, arguments)
            results = tree.flatten(function(*given))[0]
            realize([r for r in results if isinstance(r, Array)])
    return tuning


def _kept(function: Callable[..., Any], arguments: Sequence[Any]) -> list[Any]:
    """The arguments, with copies of those that the function would donate."""
    donated = positions("donate_argnums", function.donate, len(arguments)) if isinstance(function, Jitted) else ()
    return [tree.map_leaves(_copy, x) if i in donated else x for i, x in enumerate(arguments)]


def _copy(x: Any) -> Any:
    if not isinstance(x, Array):
        return x
    realize([x])
    with x.device:
        return asarray(x.numpy()).astype(x.dtype)


stand_by(Tuning())
