"""Cases spread over processes and machines by Dask: a task is a case, run by a process of its own.

A case must be counted once, however often its worker died and it was started again.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vkdnn.check.accuracy.cases import Spec, from_record
from vkdnn.check.accuracy.isolate import run_one
from vkdnn.check.accuracy.run import Row, Settings, row_from, settings_from, without_results
from vkdnn.errors import ArgumentError

CONNECT = 30.0  # seconds until a scheduler has to answer
RETRIES = 3  # of a task that raises; how often a worker may die under one is the scheduler's own setting


def run_spread(specs: Sequence[Spec], settings: Settings, scheduler: str) -> Iterator[list[Row]]:
    """The rows of each case as it ends, run by the workers of the Dask scheduler at this address.

    A case whose worker dies is given to another by the scheduler; one under which too many die is a `crash`. Paths of
    the settings are those of the workers. Raises ArgumentError where distributed is missing or nobody answers.
    """
    try:
        from distributed import Client, as_completed
    except ImportError as error:
        raise ArgumentError(f"--scheduler: distributed is missing ({error}); pip install 'vkdnn[dask]'") from None
    try:
        client = Client(scheduler, timeout=CONNECT, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise ArgumentError(
            f"--scheduler: no Dask scheduler answers at {scheduler!r} ({error}); start one with `dask scheduler`"
        ) from None
    run = secrets.token_hex(8)
    with client:
        futures = [
            client.submit(
                task, spec.record(), settings.record(), key=f"accuracy-{run}-{number}", retries=RETRIES, pure=False
            )
            for number, spec in enumerate(specs)
        ]
        left = {future.key: spec for future, spec in zip(futures, specs, strict=True)}
        for future in as_completed(futures, loop=client.loop):
            spec = left.pop(future.key, None)
            if spec is None:
                continue  # counted already
            if future.status == "finished":
                yield [row_from(r) for r in future.result()]
            else:
                why = future.exception() if future.status == "error" else future.status
                yield without_results(spec, settings, "crash", f"lost by Dask: {why}")


def task(spec: Mapping[str, Any], settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a worker does: one case, in a process of its own."""
    return [row.record() for row in run_one(from_record(spec), settings_from(settings))]
