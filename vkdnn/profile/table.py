"""A profile as text: where a call's time goes, and its kernels by their share."""

from __future__ import annotations

from vkdnn.profile.result import Profile, totals

HEADS = ("ms", "share", "launches", "µs each", "GB/s", "GFLOP/s", "roofline", "bound", "kernel")
_WIDTHS = (9, 6, 8, 9, 8, 8, 8)
_LONGEST = 110  # characters of a kernel's title
TOP = 40


def table(profile: Profile, top: int = TOP) -> str:
    """The call, then its ``top`` kernels; long titles are cut."""
    return "\n".join([*heading(profile), "", *kernel_lines(profile, top)])


def heading(profile: Profile) -> list[str]:
    """The call as a whole."""
    gaps = profile.gaps
    roof, first = profile.ceilings, totals(profile.first.stretches)
    parts = ", ".join(f"{_ms(first[name])} {name}" for name in ("trace", "plan", "compile", "record") if name in first)
    return [
        f"{profile.name} on {profile.device}",
        f"ceilings: copy {_rate(roof.bytes_per_s)} GB/s, multiply and add {_rate(roof.flops_per_s)} GFLOP/s",
        f"a call: {_ms(profile.wall)} of wall time, {_ms(profile.busy)} in kernels: busy {profile.busy_share:.1%}",
        "not in kernels: " + ", ".join(f"{_ms(seconds)} {where}" for where, seconds in gaps.items()),
        f"{_counted(profile.submissions, 'submission')}, {_counted(profile.dispatches, 'dispatch')}, "
        f"{_counted(profile.barriers, 'barrier')}; the kernels reach {profile.fraction:.0%} of the ceilings",
        "by family: " + ", ".join(f"{name} {share:.1%}" for name, share in profile.families().items()),
        f"the first call: {_ms(profile.first.seconds)}" + (f", of which {parts}" if parts else ""),
    ]


def kernel_lines(profile: Profile, top: int) -> list[str]:
    """A head, a line for each of the first kernels, and one for the rest."""
    lines, shares = [_line(HEADS)], profile.shares()
    for s in shares[:top]:
        cells = (
            f"{1e3 * s.seconds:.3f}",
            f"{s.share:.1%}",
            f"{s.launches:,}",
            f"{1e6 * s.seconds / max(1, s.launches):,.1f}",
            f"{s.bytes_per_s / 1e9:,.1f}",
            f"{s.flops_per_s / 1e9:,.1f}",
            f"{s.fraction:.0%}",
            s.bound,
            s.kernel.title if len(s.kernel.title) <= _LONGEST else s.kernel.title[: _LONGEST - 3] + "...",
        )
        lines.append(_line(cells))
    if rest := shares[top:]:
        seconds, share = sum(s.seconds for s in rest), sum(s.share for s in rest)
        lines.append(f"{1e3 * seconds:>9.3f}  {share:>6.1%}  and {_counted(len(rest), 'kernel')} more")
    return lines


def _line(cells: tuple[str, ...]) -> str:
    numbers = "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=False))
    bound, kernel = cells[len(_WIDTHS) :]
    return f"{numbers}  {bound:<10}  {kernel}"


def _rate(per_second: float) -> str:
    billions = per_second / 1e9
    return f"{billions:,.0f}" if billions >= 100 else f"{billions:.3g}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.3f} ms"


def _counted(number: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("h") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"
