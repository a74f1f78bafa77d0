"""Several processes that want the same shaders at the same moment, from one store that begins empty.

The compiler they call is the real one behind a script that counts its calls.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from storms.shaders import digest, requests_of
from vkdnn.shader import Compiler, compile_count, compile_many

_COUNTING = """#!/bin/sh
[ "$1" = --version ] || echo "$$" >> {log}
exec {compiler} "$@"
"""
_CHILD = "import sys; sys.path[:0] = sys.argv[1:3]; from storms.at_once import child; child(int(sys.argv[3]))"
_TOOLS = Path(__file__).resolve().parent.parent


def compile_at_once(processes: int, count: int, folder: Path, compiler: str | None = None) -> dict[str, Any]:
    """Compiler calls, seconds from the word go to the last process' end, and whether all got the same.

    The folder is an empty one for the store and the script; ``compiler``: path of the compiler in place of the usual.
    """
    log, counting = folder / "calls", folder / "counting"
    counting.write_text(
        _COUNTING.format(log=shlex.quote(str(log)), compiler=shlex.quote(compiler or Compiler.find().path))
    )
    counting.chmod(0o755)
    environment = {**os.environ, "VKDNN_GLSLANG": str(counting), "VKDNN_CACHE_DIR": str(folder / "store")}
    environment.pop("VKDNN_CACHE_DISABLE", None)
    command = [sys.executable, "-c", _CHILD, str(_TOOLS.parent), str(_TOOLS), str(count)]
    children = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)
        for _ in range(processes)
    ]
    for process in children:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()  # it has imported everything
    start = time.perf_counter()
    for process in children:
        process.stdin.write("go\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
    records = [json.loads(process.communicate()[0] or "{}") for process in children]
    return {
        "seconds": time.perf_counter() - start,
        "calls": len(log.read_text().splitlines()),
        "compiled": [record.get("compiled") for record in records],
        "digests": [record.get("digests") for record in records],
        "statuses": [process.returncode for process in children],
    }


def child(count: int) -> None:
    """A process: says when it is ready, waits for a line, and tells what it got."""
    requests = requests_of(count)
    print("ready", flush=True)
    sys.stdin.readline()
    digests = [digest(spirv) for spirv in compile_many(requests)]
    print(json.dumps({"compiled": compile_count(), "digests": digests}))
