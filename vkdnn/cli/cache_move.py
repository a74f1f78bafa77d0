"""vkdnn cache export and import: a warm store on one machine, made from another's.

An import must say what it refused and why, and whether what it took will be found here.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from vkdnn.cli.cache_check import DryRun
from vkdnn.cli.cache_common import SHADERS, bar, entries, family_of, headers, root, size
from vkdnn.cli.cache_look import is_family
from vkdnn.cli.console import JsonOption, counted, output, print_json, printable
from vkdnn.errors import ArgumentError, CompileError, StoreError
from vkdnn.shader import Compiler, Store
from vkdnn.shader.explain import versions
from vkdnn.shader.transfer import Imported, export_entries, import_entries
from vkdnn.shader.upkeep import items
from vkdnn.shader.verify import not_found_here, same_compiler

_NAMED = 5  # members refused that are named


def export(
    archive: Annotated[
        Path, typer.Argument(metavar="FILE", help="The archive to write: a name that ends in .tar.gz, .tgz or .zip.")
    ],
    family: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this kernel family, such as FoldSpec or fold.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if there is one.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the shaders of the store into one archive, for another machine or a container's image.

    Verdicts on devices and compilers' versions stay: they belong to this machine. The other machine needs the same
    vkdnn and a GLSL compiler of the same version, which is part of the key, though it runs none; for one without a
    compiler, `vkdnn aot build --device` makes a bundle. JSON: archive, entries, bytes,
    damaged (left out).
    """
    console = output(as_json)
    if archive.exists() and not overwrite:
        raise ArgumentError(f"archive: {archive} exists; name another file, or give --overwrite")
    store = Store(root(), SHADERS)
    if family is None:
        paths = [item.path for item in items(store)]
    else:
        paths = [item.path for item, entry in headers(store, console) if is_family(family_of(entry), family)]
    if not paths:
        what = f"no shaders of family {family}" if family else "no shaders"
        raise StoreError(f"{what} in {root()}: nothing to export; run something first, or `vkdnn cache warm`")
    with bar(console, "exporting", len(paths)) as progress:
        found = export_entries(paths, archive, progress)
    if as_json:
        print_json({"archive": str(archive)} | vars(found))
        return
    left = f"; {counted(found.damaged, 'damaged file')} left out (`vkdnn cache repair`)" if found.damaged else ""
    console.print(f"wrote {archive}: {counted(found.entries, 'shader')}, {size(found.bytes)}{left}", markup=False)
    console.print(f"on the other machine: vkdnn cache import {archive.name}", markup=False)


def import_archive(
    archive: Annotated[Path, typer.Argument(metavar="FILE", help="What `vkdnn cache export` wrote.")],
    trust: Annotated[
        bool,
        typer.Option(
            "--trust",
            help="Do not compile its shaders again: only for an archive that you made. Checksums alone do not show "
            "that a shader is what it says.",
        ),
    ] = False,
    dry_run: DryRun = False,
    as_json: JsonOption = False,
) -> None:
    """Take the shaders of an archive into the store, after every one of them was verified.

    Verified are name, checksum, texts against components, and the SPIR-V word by word and by spirv-val; then each is
    compiled again and its bytes are compared: if one differs, nothing is imported. A damaged archive changes nothing.
    Exit status 1 if anything was refused. JSON: dry_run, imported, known (in the store
    before), bytes, recompiled, refused [{member, reason}], not_found_here {reason: count}, compilers {version: count}.
    """
    console = output(as_json)
    if not archive.is_file():
        raise ArgumentError(f"archive: {archive} is no file; name what `vkdnn cache export` wrote")
    with bar(console, "verifying", None) as progress:
        found = import_entries(Store(root(), SHADERS), archive, 0 if trust else None, dry_run, progress)
    lost, compilers = _lost(found)
    if as_json:
        print_json(
            {
                "dry_run": dry_run,
                "imported": len(found.imported),
                "known": found.known,
                "bytes": found.bytes,
                "recompiled": found.recompiled,
                "refused": [{"member": name, "reason": reason} for name, reason in found.refused],
                "not_found_here": dict(lost),
                "compilers": dict(compilers),
            }
        )
    else:
        _print(found, lost, dry_run)
    if found.refused:
        raise typer.Exit(1)


def _lost(found: Imported) -> tuple[Counter[str], Counter[str]]:
    """Why entries will not be found here, and their compilers, each with how many."""
    try:
        here: Compiler | None = Compiler.find()
    except CompileError:
        here = None
    lost: Counter[str] = Counter()
    compilers: Counter[str] = Counter()
    for entry in found.imported:
        theirs = entry.components["compiler"]
        compilers[theirs] += 1
        reason = not_found_here(entry.components, here)
        if reason is not None:
            if here is not None and not same_compiler(entry.components, here):
                there, version = versions(theirs, here.version)
                if there != version:
                    reason = f"they are of compiler {there}, here is {version}, and the version is part of the key"
            lost[reason] += 1
    return lost, compilers


def _print(found: Imported, lost: Counter[str], dry_run: bool) -> None:
    console = output()
    verb = "would import" if dry_run else "imported"
    parts = [f"{verb} {counted(len(found.imported), 'shader')} ({size(found.bytes)})", f"{found.known:,} known before"]
    if found.recompiled:
        parts.append(f"{found.recompiled:,} compiled again with the same bytes")
    console.print(", ".join(parts), markup=False)
    for reason, count in lost.items():
        console.print(f"[yellow]note:[/] {entries(count)} will not be found here: {escape(printable(reason))}")
    for reason, count in found.reasons.most_common():
        console.print(f"[red]refused[/] {count:,}: {escape(printable(reason))}")
        for name in [n for n, r in found.refused if r == reason][:_NAMED]:
            console.print(f"  {printable(name)[:100]}", markup=False)
