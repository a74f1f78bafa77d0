"""What kernels are called."""

import pytest

from vkdnn.shader.request import label_of

FOLD = """\
fold rows (rows, ) elements [8]
  %0 = load float32 in0[8*i0 + 1*i1]
  %1 = const float32 0x497424f0
  %2 = mul float32 %0 %1
  %3 = mul float32 %2 %2
  %4 = exp float32 %3
  %5 = reduced float32 0
  reduced 0 = maximum over elements of %4
  out0[8*i0 + 1*i1] = %5 per element"""


@pytest.mark.parametrize(
    ("spec", "label"),
    [
        (FOLD, "fold rows (rows, ) elements [8] by maximum: 2 mul exp"),
        ("expr dims (count, )\n  %0 = load float32 in0[1*i0]\n  %1 = exp float32 %0", "expr dims (count, ): exp"),
        ("expr dims (count, )\n  %0 = load float32 in0[1*i0]\n  out0 = %0", "expr dims (count, ): load"),
        ("scan forward heads 3\n  term in0[32*i2]", "scan forward heads 3"),
        ("", ""),
    ],
)  # fmt: skip
def test_labels_tell_kernels_apart(spec, label):
    assert label_of(spec) == label


def test_labels_are_short():
    many = "expr dims (count, )\n" + "".join(f"  %{i} = operation{i} float32 %0\n" for i in range(20))
    assert len(label_of(many)) == 70 and label_of(many).endswith("…")
