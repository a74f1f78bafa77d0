"""A process that runs cases one after the other: a line of JSON in, a line of JSON out, until its input ends.

Run as `python -m vkdnn.check.accuracy.worker`. It must print nothing else on its standard output, and must not outlive
the process that started it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import queue
import signal
import sys
import threading
from typing import IO

LOST = 70
"""Exit status of a worker that cannot answer any more: its operator has closed its files."""


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a driver or a twin prints
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to deal with
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    from vkdnn.check.accuracy.cases import from_record
    from vkdnn.check.accuracy.run import run_case, settings_from

    _say(answers, {"ready": os.getpid()})
    while True:
        job = json.loads(lines.get())
        rows = run_case(from_record(job["spec"]), settings_from(job["settings"]))
        _say(answers, {"rows": [row.record() for row in rows]})


def _read(lines: queue.Queue[str]) -> None:
    try:
        for line in sys.stdin:
            lines.put(line)
    finally:
        os._exit(0)  # the parent has closed our input, or is gone, even if a case is running


def _say(answers: IO[str], record: object) -> None:
    text = json.dumps(record) + "\n"
    try:
        answers.write(text)
        answers.flush()
    except OSError:
        os._exit(LOST)  # an orderly end might wait for threads of the case


if __name__ == "__main__":
    main()
