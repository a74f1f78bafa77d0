"""Tools that are Python scripts go on in the checkout's own environment, if tools/setup has made one.

It must do nothing elsewhere: on a machine without it they run with the Python they were started with.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON, ENVIRONMENT = ROOT / ".venv/bin/python", ROOT / ".devices/env.sh"
SOURCED = "VKDNN_TOOLS_SOURCED"  # set once this process has what tools/setup made


def enter(script: str) -> None:
    """Start the script again in the environment: a driver is chosen before a process starts."""
    if SOURCED in os.environ or not (PYTHON.exists() and ENVIRONMENT.exists()):
        return
    line = '. "$1"; shift; exec "$@"'
    os.environ[SOURCED] = "1"
    name = Path(script).name
    os.execvp("bash", ["bash", "-c", line, name, str(ENVIRONMENT), str(PYTHON), script, *sys.argv[1:]])
