"""8-bit floats, blocks of int8 and stochastic rounding in plain code, of sizes and tiles that are drawn."""
import math
import random
import struct

from golden_files import Case, Tensor, bf16, f32
from golden_optimisers import gauss

INT8_BLOCK = 256


class Float8:
    """A format by its exponent's and fraction's bits. e4m3 has no infinities, and one NaN with each sign."""

    def __init__(self, exponent: int, fraction: int, finite: bool):
        self.fraction, self.finite = fraction, finite
        bias, self.values = 2 ** (exponent - 1) - 1, []
        for code in range(128):
            power, rest = code >> fraction, code & (2 ** fraction - 1)
            value = math.ldexp(rest, 1 - bias - fraction) if power == 0 else math.ldexp(rest + 2 ** fraction, power - bias - fraction)
            special = power == 2 ** exponent - 1
            if finite:
                value = math.nan if code == 127 else value
            elif special:
                value = math.nan if rest else math.inf
            self.values.append(value)
        self.top = max(v for v in self.values if math.isfinite(v))
        self.last = self.values.index(self.top)

    def table(self) -> list:
        return self.values + [-v for v in self.values]

    def code(self, x: float) -> int:
        """To nearest, ties to even. Too large: the NaN, or infinity."""
        sign, size = (128 if math.copysign(1, x) < 0 else 0), abs(x)
        if math.isnan(x):
            return sign + 127
        following = self.top + (self.values[self.last] - self.values[self.last - 1])
        if size > (self.top + following) / 2 or (size == (self.top + following) / 2 and self.last % 2 == 1):
            return sign + self.last + 1
        low, high = 0, self.last
        while low < high:  # the largest that is not above it
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.values[middle] <= size else (low, middle - 1)
        if low == self.last:
            return sign + low
        below, above = size - self.values[low], self.values[low + 1] - size
        return sign + low + (above < below or (above == below and low % 2 == 1))


E4M3, E5M2 = Float8(4, 3, True), Float8(5, 2, False)


def quantised(x: list, shape: list, tile: tuple, form: Float8) -> tuple:
    """Scales of the tiles, row by row, and codes."""
    rows, columns = shape
    down, across = -(-rows // tile[0]), -(-columns // tile[1])
    largest = [0.0] * (down * across)

    def tile_of(i: int) -> int:
        return i // columns // tile[0] * across + i % columns // tile[1]

    for i, a in enumerate(x):
        largest[tile_of(i)] = max(largest[tile_of(i)], abs(a))
    scales = [f32(max(f32(a / form.top), f32(1e-12))) for a in largest]
    codes = [form.code(max(-form.top, min(form.top, f32(a / scales[tile_of(i)])))) for i, a in enumerate(x)]
    return Tensor([down, across], scales), Tensor(shape, codes, "U8")


def bits(x: float, form: str) -> int:
    return struct.unpack("<h", struct.pack(form, x))[0]


def f16_bits(x: float) -> int:
    if math.isfinite(x) and abs(x) >= 65520:
        x = math.copysign(math.inf, x)
    return bits(x, "<e")


def bf16_bits(x: float) -> int:
    return struct.unpack("<hh", struct.pack("<f", bf16(x) if math.isfinite(x) else x))[1]


def fp8(draw: random.Random) -> Case:
    rows, columns, block = draw.choice([3, 5, 13, 16]), draw.choice([4, 7, 12, 33]), draw.choice([1, 2, 3, 8, 32])
    case = Case("fp8", {"_class_name": "quantisation examples", "block": block, "int8_block": INT8_BLOCK, "M": rows, "N": columns})
    scale = 10 ** draw.uniform(-4, 4)
    x, w = gauss(draw, rows * columns, scale), gauss(draw, 5 * columns)
    for row in range(rows):  # rows of very different sizes, one without a value
        factor = draw.choice([0.0, 1.0, 1e-3, 1e3])
        x[row * columns:(row + 1) * columns] = [f32(a * factor) for a in x[row * columns:(row + 1) * columns]]
    x[draw.randrange(len(x))] = f32(scale)
    edge = [0.0, -0.0, math.inf, -math.inf, 448.0, -448.0, 464.0, 464.5, -465.0, 57344.0, 61439.0, 61440.0, 65504.0, 65519.0, 65520.0]
    edge += [f32(a) for form in (E4M3, E5M2) for k in draw.sample(range(1, form.last), 6)
             for a in ((form.values[k] + form.values[k + 1]) / 2, form.values[k])]
    edge += gauss(draw, 9, 10 ** draw.uniform(-6, 6))
    act = [bf16(a) for a in gauss(draw, draw.choice([1, 255, 256, 257, 600]), 3.0)]
    if len(act) > INT8_BLOCK:
        act[:INT8_BLOCK] = [0.0] * INT8_BLOCK
    small = gauss(draw, 37)
    drawn = [draw.randrange(65536) for _ in small]
    shape = [rows, columns]
    case.inputs = {"in.x": Tensor(shape, x), "in.w": Tensor([5, columns], w), "in.edge": Tensor([len(edge)], edge),
                   "in.act": Tensor([len(act)], act, "BF16"), "in.sr.x": Tensor([37], small), "in.sr.rand16": Tensor([37], drawn, "I32")}
    out = case.expected
    out["out.table_e4m3"], out["out.table_e5m2"] = Tensor([256], E4M3.table()), Tensor([256], E5M2.table())
    for name, form in (("e4m3", E4M3), ("e5m2", E5M2)):
        out[f"out.edge.{name}_bits"] = Tensor([len(edge)], [form.code(a) for a in edge], "U8")
    out["out.edge.bf16_bits"] = Tensor([len(edge)], [bf16_bits(a) for a in edge], "I16")
    out["out.edge.fp16_bits"] = Tensor([len(edge)], [f16_bits(a) for a in edge], "I16")
    for name, tile, form in (("tensor", (rows, columns), E4M3), ("row", (1, columns), E4M3), ("block", (block, block), E4M3),
                             ("group", (1, block), E4M3), ("tensor_e5m2", (rows, columns), E5M2)):
        scales, codes = quantised(x, shape, tile, form)
        if name.startswith("tensor"):
            scales.shape = []
        out[f"out.{name}.scale"], out[f"out.{name}.bits"] = scales, codes
        if name == "tensor":
            out["out.tensor.dequant"] = Tensor(shape, [f32(E4M3.table()[c] * scales.values[0]) for c in codes.values])
    torchao(case, x, rows, columns)
    a, b = quantised(x, shape, (1, columns), E4M3), quantised(w, [5, columns], (1, columns), E4M3)
    out["out.w.row.scale"], out["out.w.row.bits"] = b
    values = E4M3.table()
    out["out.matmul"] = Tensor([rows, 5], [
        sum(values[a[1].values[i * columns + k]] * values[b[1].values[j * columns + k]] for k in range(columns))
        * a[0].values[i] * b[0].values[j] for i in range(rows) for j in range(5)])
    scales = [f32(max(map(abs, act[i:i + INT8_BLOCK])) / 127) for i in range(0, len(act), INT8_BLOCK)]
    q = [round(f32(v / scales[i // INT8_BLOCK])) if scales[i // INT8_BLOCK] else 0 for i, v in enumerate(act)]
    out["out.int8.scale"], out["out.int8.q"] = Tensor([len(scales)], scales), Tensor([len(q)], q, "I8")
    out["out.int8.dequant"] = Tensor([len(q)], [f32(v * scales[i // INT8_BLOCK]) for i, v in enumerate(q)], "BF16")
    rounded = []
    for v, chance in zip(small, drawn):
        low = struct.unpack("<I", struct.pack("<f", v))[0]
        rounded.append(struct.unpack("<f", struct.pack("<I", (low & 0xFFFF0000) + (0x10000 if chance < low & 0xFFFF else 0)))[0])
    out["out.sr.bf16"] = Tensor([37], rounded, "BF16")
    return case


def torchao(case: Case, x: list, rows: int, columns: int) -> None:
    """It keeps the factor 448 / largest."""
    def factor(values: list) -> float:
        return f32(E4M3.top / max(max(map(abs, values)), 1e-12))

    whole, out = factor(x), case.expected
    out["out.torchao.scale_tensor"] = Tensor([], [whole])
    out["out.torchao.scale_tensor_pow2"] = Tensor([], [2.0 ** math.floor(math.log2(whole))])
    out["out.torchao.scale_row"] = Tensor([rows, 1], [factor(x[i * columns:(i + 1) * columns]) for i in range(rows)])
    clamped = [max(-E4M3.top, min(E4M3.top, f32(a * whole))) for a in x]
    out["out.torchao.bits_tensor"] = Tensor([rows, columns], [E4M3.code(a) for a in clamped], "U8")


KINDS = {"fp8": fp8}
