"""Files as lists of keys and values: what differ.py holds against each other.

Numbers stay the text that was written, so that two are equal when every digit is.
"""
import json
import struct
import tomllib
from pathlib import Path


class Number(str):
    """A number with a point or an exponent, as it stands in the file."""

    def __repr__(self) -> str:
        return str(self)


def read_json(text: str):
    return json.loads(text, parse_float=Number, parse_constant=Number)


def read_toml(path: Path):
    return tomllib.loads(path.read_text(), parse_float=Number)


class Safetensors:
    """Names, types, shapes and bytes of a .safetensors file."""

    def __init__(self, path: Path):
        self.bytes = memoryview(path.read_bytes())
        (length,) = struct.unpack("<Q", self.bytes[:8])
        header = read_json(bytes(self.bytes[8:8 + length]).decode())
        self.metadata = header.pop("__metadata__", {})
        self.entries = header
        self.data = self.bytes[8 + length:]

    def tensor(self, name: str) -> memoryview:
        begin, end = self.entries[name]["data_offsets"]
        return self.data[begin:end]


_SIZES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
_FORMATS = {"F64": "d", "I64": "q", "U64": "Q", "F32": "f", "I32": "i", "U32": "I", "F16": "e", "I16": "h", "U16": "H",
            "I8": "b"}


def element(dtype: str, data: memoryview, index: int) -> str:
    """The number at `index` and its bytes."""
    size = _SIZES.get(dtype, 1)
    raw = bytes(data[size * index:size * (index + 1)])
    if dtype == "BF16":
        value = struct.unpack("<f", b"\0\0" + raw)[0]
    elif dtype in _FORMATS:
        value = struct.unpack("<" + _FORMATS[dtype], raw)[0]
    else:
        value = raw[0]
    return f"{value!r} (0x{raw[::-1].hex()})"


def first_other(a, b) -> int:
    """Index of the first byte that differs; the shorter length where one is the beginning of the other."""
    at, step = 0, 1 << 16
    length = min(len(a), len(b))
    while at < length and a[at:at + step] == b[at:at + step]:
        at += step
    while at < length and a[at] == b[at]:
        at += 1
    return min(at, length)


def first_element(dtype: str, a: memoryview, b: memoryview) -> int:
    return first_other(a, b) // _SIZES.get(dtype, 1)


def _fields(message: bytes):
    """(number, value) of each field of a protobuf message: whole numbers, floats by their width, bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        wire = key & 7
        if wire == 0:
            value = varint()
        elif wire == 1:
            value, at = struct.unpack("<d", message[at:at + 8])[0], at + 8
        elif wire == 5:
            value, at = struct.unpack("<f", message[at:at + 4])[0], at + 4
        elif wire == 2:
            length = varint()
            value, at = message[at:at + length], at + length
        else:
            raise ValueError(f"wire type {wire}")
        yield key >> 3, value


def read_events(path: Path) -> list:
    """[key, value] of what a TensorBoard file says, but for the time of each event. A picture's value is its file."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        (length,) = struct.unpack("<Q", data[at:at + 8])
        event = list(_fields(data[at + 12:at + 12 + length]))
        at += 16 + length
        step = next((value for number, value in event if number == 2), 0)
        for number, value in event:
            if number != 5:  # Event.summary
                if number not in (1, 2):  # the time, the step
                    found.append((f"step {step}: field {number}", value))
                continue
            for _, entry in _fields(value):
                parts = dict(_fields(entry))
                tag = parts.get(1, b"").decode()
                if 2 in parts:
                    found.append((f"step {step}: {tag}", Number(f"{parts[2]:.9g}")))
                if 4 in parts:
                    picture = dict(_fields(parts[4]))
                    found.append((f"step {step}: {tag}: size", (picture.get(1), picture.get(2))))
                    found.append((f"step {step}: {tag}: picture", picture.get(4, b"")))
    return found
