"""The declarations of a SPIR-V module: names, decorations, types, constants, variables, entry points.

Types refer to types before them alone, so nothing here can be circular; what cannot be read is refused, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vkdnn.errors import CompileError
from vkdnn.shader.spirv import instructions, operand

# Numbers of the SPIR-V specification, version 1.6, section 3.
NON_WRITABLE, BUILT_IN, BINDING, DESCRIPTOR_SET = 24, 11, 33, 34
BLOCK, BUFFER_BLOCK, ARRAY_STRIDE, OFFSET = 2, 3, 6, 35
OP_INT, OP_VECTOR, OP_ARRAY, OP_RUNTIME_ARRAY, OP_STRUCT, OP_POINTER = 21, 23, 28, 29, 30, 32
_GL_COMPUTE, _LOCAL_SIZE, _LOCAL_SIZE_ID = 5, 17, 38
_OP_FUNCTION_END = 56
_GROUP_NON_UNIFORM = range(333, 367)

_SCALARS = {
    (21, 8, 0): "uint8_t", (21, 8, 1): "int8_t", (21, 16, 0): "uint16_t", (21, 16, 1): "int16_t",
    (21, 32, 0): "uint", (21, 32, 1): "int", (21, 64, 0): "uint64_t", (21, 64, 1): "int64_t",
    (22, 16, 0): "float16_t", (22, 32, 0): "float", (22, 64, 0): "double",
}  # fmt: skip
_VECTORS = {
    "float": "vec", "int": "ivec", "uint": "uvec", "bool": "bvec", "double": "dvec", "float16_t": "f16vec",
    "uint8_t": "u8vec", "int8_t": "i8vec", "uint16_t": "u16vec", "int16_t": "i16vec", "uint64_t": "u64vec",
    "int64_t": "i64vec",
}  # fmt: skip
_DEEPEST = 16  # nested types: far more than any shader has, and few enough to write down
_LARGEST = 2**40  # bytes of a type: beyond any memory


def damaged(what: str) -> CompileError:
    """The error for a module that is not as it should be."""
    return CompileError(f"SPIR-V: {what}; compile the shader again")


def round_up(size: int, multiple: int) -> int:
    """The next multiple at or above size."""
    return -(-size // multiple) * multiple


def read_module(words: Sequence[int]) -> Module:
    """The declarations of a whole module. Raises CompileError where it is truncated, damaged or not understood."""
    module, last = Module(words), 0
    for opcode, start, end in instructions(words):
        last = opcode
        read = _READERS.get(opcode)
        if read is not None:
            read(module, start, end)
        elif opcode in _GROUP_NON_UNIFORM:
            module.uses_subgroups = True
    if last != _OP_FUNCTION_END:
        raise damaged(f"the module ends with opcode {last}, expected the end of a function: it is truncated")
    return module


@dataclass(frozen=True)
class Type:
    """A type: its opcode, its name, size (None: not known here) and alignment under std430, and what it is made of."""

    opcode: int
    name: str
    size: int | None = None
    align: int = 1
    parts: tuple[Type, ...] = ()
    depth: int = 0


@dataclass
class Module:
    """What has been read so far, by id, and the reader of each instruction that declares something."""

    words: Sequence[int]
    names: dict[int, str] = field(default_factory=dict)
    member_names: dict[tuple[int, int], str] = field(default_factory=dict)
    decorations: dict[tuple[int, int], int] = field(default_factory=dict)  # (id, decoration): its first literal
    member_decorations: dict[tuple[int, int, int], int] = field(default_factory=dict)
    types: dict[int, Type] = field(default_factory=dict)
    pointees: dict[int, int] = field(default_factory=dict)  # pointer type: the type that it points to
    constants: dict[int, int] = field(default_factory=dict)
    composites: dict[int, tuple[int, ...]] = field(default_factory=dict)
    variables: list[tuple[int, int, int]] = field(default_factory=list)  # (id, pointer type, storage class)
    entry_points: list[tuple[int, str]] = field(default_factory=list)
    local_sizes: dict[int, tuple[int, ...]] = field(default_factory=dict)  # entry point: x, y, z
    local_size_ids: dict[int, tuple[int, ...]] = field(default_factory=dict)  # the same, ids of constants
    capabilities: list[int] = field(default_factory=list)
    extensions: list[str] = field(default_factory=list)
    uses_subgroups: bool = False

    def capability(self, start: int, end: int) -> None:
        self.capabilities.append(operand(self.words, start, end, 1))

    def extension(self, start: int, end: int) -> None:
        self.extensions.append(self._text(start, end, 1))

    def name(self, start: int, end: int) -> None:
        self.names[operand(self.words, start, end, 1)] = self._text(start, end, 2)

    def member_name(self, start: int, end: int) -> None:
        key = operand(self.words, start, end, 1), operand(self.words, start, end, 2)
        self.member_names[key] = self._text(start, end, 3)

    def entry_point(self, start: int, end: int) -> None:
        model = operand(self.words, start, end, 1)
        if model != _GL_COMPUTE:
            raise damaged(f"an entry point has execution model {model}, expected {_GL_COMPUTE} (GLCompute)")
        self.entry_points.append((operand(self.words, start, end, 2), self._text(start, end, 3)))

    def execution_mode(self, start: int, end: int) -> None:
        entry, mode = operand(self.words, start, end, 1), operand(self.words, start, end, 2)
        if mode in (_LOCAL_SIZE, _LOCAL_SIZE_ID):
            sizes = self.local_sizes if mode == _LOCAL_SIZE else self.local_size_ids
            sizes[entry] = tuple(operand(self.words, start, end, i) for i in (3, 4, 5))

    def decorate(self, start: int, end: int) -> None:
        key = operand(self.words, start, end, 1), operand(self.words, start, end, 2)
        if key[1] in (BUILT_IN, BINDING, DESCRIPTOR_SET, ARRAY_STRIDE):
            self.decorations[key] = operand(self.words, start, end, 3)
        else:
            self.decorations[key] = 1

    def member_decorate(self, start: int, end: int) -> None:
        struct, member, decoration = (operand(self.words, start, end, i) for i in (1, 2, 3))
        literal = operand(self.words, start, end, 4) if decoration == OFFSET else 1
        self.member_decorations[struct, member, decoration] = literal

    def group(self, start: int, end: int) -> None:
        raise damaged("the module has decoration groups, which are not read here")

    def constant(self, start: int, end: int) -> None:
        self.constants[operand(self.words, start, end, 2)] = operand(self.words, start, end, 3)

    def composite(self, start: int, end: int) -> None:
        self.composites[operand(self.words, start, end, 2)] = tuple(self.words[start + 3 : end])

    def variable(self, start: int, end: int) -> None:
        pointer, found, storage = (operand(self.words, start, end, i) for i in (1, 2, 3))
        self.variables.append((found, pointer, storage))

    def bool_type(self, start: int, end: int) -> None:
        # GLSL keeps a shared bool in 32 bits.
        self._add_type(start, end, Type(20, "bool", 4, 4))

    def number_type(self, start: int, end: int) -> None:
        opcode, width = self.words[start] & 0xFFFF, operand(self.words, start, end, 2)
        sign = operand(self.words, start, end, 3) if opcode == OP_INT else 0
        name = _SCALARS.get((opcode, width, sign))
        if name is None:
            raise damaged(f"a number at word {start} has {width} bits, expected 8, 16, 32 or 64")
        self._add_type(start, end, Type(opcode, name, width // 8, width // 8))

    def vector_type(self, start: int, end: int) -> None:
        scalar, count = self._type(start, end, 2), operand(self.words, start, end, 3)
        prefix = _VECTORS.get(scalar.name)
        if prefix is None or scalar.size is None or scalar.parts or not 2 <= count <= 4:
            raise damaged(f"a vector at word {start} is {count} of {scalar.name}, expected 2 to 4 numbers")
        align = scalar.size * (2 if count == 2 else 4)
        self._add_type(start, end, Type(OP_VECTOR, f"{prefix}{count}", scalar.size * count, align, (scalar,)))

    def matrix_type(self, start: int, end: int) -> None:
        column, count = self._type(start, end, 2), operand(self.words, start, end, 3)
        if column.opcode != OP_VECTOR or column.size is None or not 2 <= count <= 4:
            raise damaged(f"a matrix at word {start} is {count} of {column.name}, expected 2 to 4 vectors")
        name = column.name.replace("vec", f"mat{count}x")
        size = round_up(column.size, column.align) * count
        self._add_type(start, end, Type(24, name, size, column.align, (column,)))

    def array_type(self, start: int, end: int) -> None:
        opcode, element = self.words[start] & 0xFFFF, self._type(start, end, 2)
        if opcode == OP_RUNTIME_ARRAY:
            self._add_type(start, end, Type(opcode, f"{element.name}[]", None, element.align, (element,)))
            return
        length = self.constants.get(operand(self.words, start, end, 3))
        if length is None:
            raise damaged(f"an array at word {start} has a length that is no constant")
        size = None
        if element.size is not None:
            natural = round_up(element.size, element.align)
            size = self.decorations.get((operand(self.words, start, end, 1), ARRAY_STRIDE), natural) * length
        self._add_type(start, end, Type(opcode, f"{element.name}[{length}]", size, element.align, (element,)))

    def struct_type(self, start: int, end: int) -> None:
        found = operand(self.words, start, end, 1)
        members = tuple(self._type(start, end, i) for i in range(2, end - start))
        align = max((m.align for m in members), default=1)
        size: int | None = 0
        for number, member in enumerate(members):
            if size is None or member.size is None:
                size = None
                continue
            offset = self.member_decorations.get((found, number, OFFSET), round_up(size, member.align))
            size = max(size, offset + member.size)
        name = self.names.get(found, "") or f"struct_{found}"
        self._add_type(start, end, Type(OP_STRUCT, name, size, align, members))

    def pointer_type(self, start: int, end: int) -> None:
        target = operand(self.words, start, end, 3)
        self._add_type(start, end, Type(OP_POINTER, "pointer", None, 8, (self._type(start, end, 3),)))
        self.pointees[operand(self.words, start, end, 1)] = target

    def other_type(self, start: int, end: int) -> None:
        self._add_type(start, end, Type(self.words[start] & 0xFFFF, "opaque"))

    def _add_type(self, start: int, end: int, made: Type) -> None:
        depth = 1 + max((part.depth for part in made.parts), default=0)
        if depth > _DEEPEST:
            raise damaged(f"a type at word {start} is nested {depth} deep, expected at most {_DEEPEST}")
        if made.size is not None and made.size > _LARGEST:
            raise damaged(f"a type at word {start} has {made.size} bytes, expected at most {_LARGEST}")
        found = operand(self.words, start, end, 1)
        self.types[found] = replace(made, depth=depth)

    def _type(self, start: int, end: int, index: int) -> Type:
        found = operand(self.words, start, end, index)
        if found not in self.types:
            raise damaged(f"the instruction at word {start} names type %{found}, which is not defined before it")
        return self.types[found]

    def _text(self, start: int, end: int, index: int) -> str:
        operand(self.words, start, end, index)
        raw = b"".join(int(word).to_bytes(4, "little") for word in self.words[start + index : end])
        text, nul, _ = raw.partition(b"\0")
        if not nul:
            raise damaged(f"the text in the instruction at word {start} has no end")
        return text.decode("utf-8", errors="replace")


_READERS: Mapping[int, Callable[[Module, int, int], None]] = {
    5: Module.name,
    6: Module.member_name,
    10: Module.extension,
    15: Module.entry_point,
    16: Module.execution_mode,
    17: Module.capability,
    20: Module.bool_type,
    21: Module.number_type,
    22: Module.number_type,
    23: Module.vector_type,
    24: Module.matrix_type,
    28: Module.array_type,
    29: Module.array_type,
    30: Module.struct_type,
    32: Module.pointer_type,
    43: Module.constant,
    44: Module.composite,
    50: Module.constant,
    51: Module.composite,
    59: Module.variable,
    71: Module.decorate,
    72: Module.member_decorate,
    73: Module.group,
    74: Module.group,
    75: Module.group,
    331: Module.execution_mode,
} | dict.fromkeys((19, 25, 26, 27, 31, 33), Module.other_type)
