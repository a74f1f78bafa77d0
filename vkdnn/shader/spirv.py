"""A pass over SPIR-V words that puts NoContraction on every float operation, so that no driver may fuse them.

fma() stands in one function alone, which shaders/numerics.glsl has where the probe found it fused. The pass must never
reorder, drop or rewrite an instruction: it adds annotations, and refuses what it cannot read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vkdnn.errors import CompileError

MAGIC = 0x07230203
_HEADER_WORDS = 5
_NO_CONTRACTION = 42
_GLSL_FMA = 50
_FUSED = "fused(f1;f1;f1;"  # the function of shaders/numerics.glsl, as glslangValidator names it

_OP_NAME = 5
_OP_EXT_INST_IMPORT = 11
_OP_EXT_INST = 12
_OP_FUNCTION = 54
_OP_FUNCTION_END = 56
_OP_FUNCTION_CALL = 57
_OP_DECORATE = 71
_OP_GROUP_DECORATE = 74

# Float instructions whose result a driver may contract or refactor unless told not to.
FLOAT_OPS = {
    127: "OpFNegate",
    129: "OpFAdd",
    131: "OpFSub",
    133: "OpFMul",
    136: "OpFDiv",
    140: "OpFRem",
    141: "OpFMod",
    142: "OpVectorTimesScalar",
    143: "OpMatrixTimesScalar",
    144: "OpVectorTimesMatrix",
    145: "OpMatrixTimesVector",
    146: "OpMatrixTimesMatrix",
    147: "OpOuterProduct",
    148: "OpDot",
}

# Everything that may stand before the first type, constant, variable or function of a module:
# no-ops, source and names, imports, memory model, entry points, execution modes, annotations.
_PREAMBLE = frozenset({0, 2, 3, 4, 5, 6, 7, 10, 11, 14, 15, 16, 17, 71, 72, 73, 74, 75, 330, 331, 332, 5632, 5633})


@dataclass(frozen=True)
class FloatOp:
    """A float instruction of a module: its opcode's name, its result id and the word where it starts."""

    name: str
    result_id: int
    word: int


def instructions(words: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yields (opcode, start, end) of each instruction; raises CompileError where the words make no module."""
    if len(words) < _HEADER_WORDS:
        raise CompileError(
            f"SPIR-V module has {len(words)} words, expected at least the {_HEADER_WORDS} of its header; "
            "compile the shader again"
        )
    if words[0] != MAGIC:
        raise CompileError(
            f"SPIR-V module starts with {words[0]:#010x}, expected the magic number {MAGIC:#010x} "
            "in little-endian order; compile the shader again"
        )
    start = _HEADER_WORDS
    while start < len(words):
        opcode, count = words[start] & 0xFFFF, words[start] >> 16
        if count == 0 or start + count > len(words):
            raise CompileError(
                f"SPIR-V instruction at word {start} (opcode {opcode}) says it has {count} words, expected 1 "
                f"to {len(words) - start}: the module is truncated or damaged; compile the shader again"
            )
        yield opcode, start, start + count
        start += count


def is_whole(spirv: bytes) -> bool:
    """Whether a module (little-endian words) goes on to its end: the last function ended, each called one there.

    glslangValidator writes the entry point first, so a module that was cut between two functions lacks one it calls.
    """
    if len(spirv) % 4:
        return False
    words = np.frombuffer(spirv, "<u4").tolist()
    last, functions, called = 0, set(), set()
    try:
        for opcode, start, end in instructions(words):
            if opcode == _OP_FUNCTION:
                functions.add(operand(words, start, end, 2))
            elif opcode == _OP_FUNCTION_CALL:
                called.add(operand(words, start, end, 3))
            last = opcode
    except CompileError:
        return False
    return last == _OP_FUNCTION_END and called <= functions


def operand(words: Sequence[int], start: int, end: int, index: int) -> int:
    """Word number `index` of the instruction; raises CompileError if the instruction is shorter than that."""
    if start + index >= end:
        raise CompileError(
            f"SPIR-V instruction at word {start} (opcode {words[start] & 0xFFFF}) has {end - start} words, "
            f"expected at least {index + 1}: the module is damaged; compile the shader again"
        )
    return words[start + index]


def _is_glsl_std_450(words: Sequence[int], start: int, end: int) -> bool:
    return _string(words, start + 2, end) == "GLSL.std.450"


def _string(words: Sequence[int], start: int, end: int) -> str:
    text = b"".join(int(word).to_bytes(4, "little") for word in words[start:end])
    return text.split(b"\0", 1)[0].decode(errors="replace")


def undecorated_float_ops(words: Sequence[int], fused: bool = True) -> list[FloatOp]:
    """Float instructions of the module that carry no NoContraction, in order.

    `words` are the module's 32-bit words. Raises CompileError for a malformed module and for GLSL's fma(), which is
    fused on some devices and not on others: everywhere, or with `fused` outside of fused().
    """
    exempt: set[int] = set()
    groups: list[tuple[int, Sequence[int]]] = []
    imports: set[int] = set()
    found: list[FloatOp] = []
    names: dict[int, str] = {}
    function = ""
    for opcode, start, end in instructions(words):
        if opcode in FLOAT_OPS:
            found.append(FloatOp(FLOAT_OPS[opcode], operand(words, start, end, 2), start))
        elif opcode == _OP_DECORATE:
            if operand(words, start, end, 2) == _NO_CONTRACTION:
                exempt.add(words[start + 1])
        elif opcode == _OP_GROUP_DECORATE:
            groups.append((operand(words, start, end, 1), words[start + 2 : end]))
        elif opcode == _OP_EXT_INST_IMPORT:
            if _is_glsl_std_450(words, start, end):
                imports.add(operand(words, start, end, 1))
        elif opcode == _OP_NAME:
            names[operand(words, start, end, 1)] = _string(words, start + 2, end)
        elif opcode == _OP_FUNCTION:
            function = names.get(operand(words, start, end, 2), "")
        elif opcode == _OP_EXT_INST and (
            operand(words, start, end, 3) in imports
            and operand(words, start, end, 4) == _GLSL_FMA
            and not (fused and function == _FUSED)
        ):
            raise CompileError(
                f"SPIR-V instruction at word {start} is fma(), which fuses on some devices and not on "
                "others; write a * b + c, which is rounded twice everywhere"
            )
    for group, targets in groups:
        if group in exempt:
            exempt.update(targets)
    return [op for op in found if op.result_id not in exempt]


def decorate_no_contraction(words: Sequence[int]) -> list[int]:
    """The module's words with `OpDecorate %id NoContraction` for every float instruction that lacks it.

    Takes and returns 32-bit words; running it on its own result changes nothing. Raises CompileError for a
    malformed module and for fma().
    """
    missing = undecorated_float_ops(words)
    place = len(words)
    for opcode, start, _ in instructions(words):
        if opcode not in _PREAMBLE:
            place = start
            break
    decorations: list[int] = []
    for op in missing:
        decorations += [3 << 16 | _OP_DECORATE, op.result_id, _NO_CONTRACTION]
    return [*words[:place], *decorations, *words[place:]]
