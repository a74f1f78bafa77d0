"""The loss curve: a PNG that a reader of images accepts, and its moving average."""

import matplotlib.image
import pytest

from vkdnn.train.plot import plot_losses, smoothed


def test_a_png_is_drawn(tmp_path):
    path = tmp_path / "loss.png"
    plot_losses(path, [5.5, 4.0, 3.0], "a title", 5.545)
    image = matplotlib.image.imread(path)
    assert image.shape[:2] == (480, 840)
    assert image[..., :3].min() < 0.5  # something is drawn
    plot_losses(path, [5.5], "one step", 5.545)


def test_the_moving_average_starts_at_the_first_loss():
    assert smoothed([5.0]) == pytest.approx([5.0])
    line = smoothed([5.0] + [1.0] * 100)
    assert line == sorted(line, reverse=True) and line[-1] == pytest.approx(1.0, abs=1e-3)
