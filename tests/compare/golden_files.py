"""Golden cases as files: tensors as lists of numbers, without any package."""
import array
import json
import math
import struct
from dataclasses import dataclass, field
from pathlib import Path

CODES = {"F32": "f", "F64": "d", "I64": "q", "U8": "B", "I8": "b", "I16": "h", "I32": "i"}


def f32(x: float) -> float:
    return struct.unpack("<f", struct.pack("<f", x))[0]


def bf16(x: float) -> float:
    """To nearest, ties to even."""
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return struct.unpack("<f", struct.pack("<I", bits))[0]


@dataclass
class Tensor:
    shape: list
    values: list
    dtype: str = "F32"

    def bytes(self) -> bytes:
        if self.dtype == "BF16":
            return b"".join(struct.pack("<f", bf16(x))[2:] for x in self.values)
        values = self.values if self.dtype.startswith("F") else [int(x) for x in self.values]
        return array.array(CODES[self.dtype], values).tobytes()


def numbers(values: list, dtype: str = "F64") -> Tensor:
    return Tensor([len(values)], list(values), dtype)


def numel(shape: list) -> int:
    return math.prod(shape)


@dataclass
class Case:
    kind: str
    config: dict
    inputs: dict = field(default_factory=dict)    # name -> Tensor
    expected: dict = field(default_factory=dict)
    tolerance: object = "of its kind"
    files: dict = field(default_factory=dict)     # path -> a text, or what is written as JSON
    weights: dict = field(default_factory=dict)   # name -> Tensor, of model.safetensors
    tensors: dict = field(default_factory=dict)   # path of another file -> its tensors
    metadata: dict = field(default_factory=dict)  # path -> texts in its header
    about: dict = field(default_factory=dict)     # further fields of case.json
    loose: str = ""                               # part of the names of tensors of which some elements may differ
    alter: object = None                          # makes a value of `files` another one: alter(files, draw)
    settings: str = ""                            # of `files`, one whose settings are to be known, in place of config.json


def write(case: Case, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    about = {"kind": case.kind, "reference": "plain code", "notes": "drawn", "tolerance": case.tolerance, **case.about}
    for name, content in {"case.json": about, "config.json": case.config, **case.files}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    write_tensors({**case.inputs, **case.expected}, folder / "case.safetensors")
    if case.weights:
        write_tensors(case.weights, folder / "model.safetensors")
    for name, tensors in case.tensors.items():
        (folder / name).parent.mkdir(exist_ok=True)
        write_tensors(tensors, folder / name, case.metadata.get(name))
    return folder


def write_tensors(tensors: dict, path: Path, metadata: dict = None) -> None:
    header, parts, at = {"__metadata__": metadata} if metadata else {}, [], 0
    for name, tensor in tensors.items():
        data = tensor.bytes()
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def read(path: Path) -> dict:
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header, data = json.loads(data[8:8 + size]), data[8 + size:]
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] in CODES:
            begin, end = entry["data_offsets"]
            values = array.array(CODES[entry["dtype"]])
            values.frombytes(data[begin:end])
            tensors[name] = Tensor(entry["shape"], list(values), entry["dtype"])
    return tensors
