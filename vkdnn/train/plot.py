"""The loss curve as a PNG.

It must never need a display or touch matplotlib's global state.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

SMOOTHING = 0.9  # of the line drawn over the losses: an exponential moving average


def plot_losses(path: str | os.PathLike[str], losses: Sequence[float], title: str, chance: float) -> None:
    """Draw losses (nats a byte) over steps from 1 to ``path``; ``chance`` is the loss of guessing evenly."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # its first start reports on its fonts
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    steps = range(1, len(losses) + 1)
    axes.axhline(chance, color="0.6", linestyle="--", linewidth=1, label="even guess")
    axes.plot(steps, losses, color="tab:blue", alpha=0.35, linewidth=1, label="batch")
    axes.plot(steps, smoothed(losses), color="tab:blue", linewidth=2, label="moving average")
    axes.set(title=title, xlabel="step", ylabel="loss (nats a byte)", ylim=(0, None))
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Software": None})


def smoothed(losses: Sequence[float]) -> list[float]:
    """The exponential moving average, its start weighted out.

    >>> smoothed([4.0, 4.0])
    [4.0, 4.0]
    """
    average = weight = 0.0
    result = []
    for loss in losses:
        average = SMOOTHING * average + (1 - SMOOTHING) * loss
        weight = SMOOTHING * weight + (1 - SMOOTHING)
        result.append(average / weight)
    return result
