"""What the command lines of tools/bench share: choosing names, files to write, records as JSON."""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO


def add_outputs(parser: argparse.ArgumentParser, drawn: str) -> None:
    """Options that say where a record goes."""
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="part of a name; repeatable")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record; - is stdout, all else on stderr")
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    parser.add_argument("--png", type=Path, metavar="FILE", help=f"draw {drawn} (needs matplotlib)")


def check_outputs(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the program for files that could not be written after all the measuring."""
    if options.png and importlib.util.find_spec("matplotlib") is None:
        parser.error("--png: matplotlib is not installed; install it or leave --png out")
    for path in (options.json, options.png):
        if path and str(path) != "-" and not path.absolute().parent.is_dir():
            parser.error(f"{path}: its folder does not exist; make it first")


def write_json(record: dict[str, Any], path: Path | None) -> TextIO:
    """Write the record if a file is named; gives the stream for people, which is not the record's."""
    if path is None:
        return sys.stdout
    text = json.dumps(record, indent=2) + "\n"
    if str(path) == "-":
        sys.stdout.write(text)
        return sys.stderr
    path.write_text(text)
    return sys.stdout


def matching(names: Iterable[str], patterns: list[str]) -> list[str]:
    """The names that fit one of the patterns, or all."""

    def fits(name: str, pattern: str) -> bool:
        return fnmatch.fnmatchcase(name, pattern if set("*?[") & set(pattern) else f"*{pattern}*")

    return [name for name in names if not patterns or any(fits(name, p) for p in patterns)]


def positive(text: str) -> int:
    """A whole number of 1 or more, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number, 1 or more")
    return int(text)
