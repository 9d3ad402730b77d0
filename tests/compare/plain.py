"""Arrays of numbers with gradients in plain Python, in which golden_networks.py and its like write networks down.

    w = Weights(random.Random(1))
    y = linear(Array([3, 2], values), w("proj.weight", [5, 2]), w("proj.bias", [5]))
    backward(mean(square(y)))
    w.gradients("grad.")

All arithmetic is in double. An operation moves numbers (take), multiplies rows (products) or maps elements; everything
else is made of these.
"""
import math
import random
from operator import mul

from golden_files import Tensor, f32

_tape = []


class IllConditioned(Exception):
    """Drawn numbers of which any two programs give other results: the case is drawn again."""


class Array:
    def __init__(self, shape: list, values: list):
        self.shape, self.v, self.g = list(shape), values, None

    def grad(self) -> list:
        if self.g is None:
            self.g = [0.0] * len(self.v)
        return self.g

    def __add__(self, other):
        return pairwise(self, other, lambda a, b: a + b, lambda a, b: (1.0, 1.0))

    def __sub__(self, other):
        return pairwise(self, other, lambda a, b: a - b, lambda a, b: (1.0, -1.0))

    def __mul__(self, other):
        return pairwise(self, other, lambda a, b: a * b, lambda a, b: (b, a))

    def __truediv__(self, other):
        return pairwise(self, other, lambda a, b: a / b, lambda a, b: (1 / b, -a / (b * b)))

    def tensor(self) -> Tensor:
        return Tensor(self.shape, self.v)

    def gradient(self) -> Tensor:
        return Tensor(self.shape, self.grad())


def backward(loss: Array) -> None:
    """Of the one number; the tape is empty afterwards."""
    loss.grad()[0] = 1.0
    while _tape:
        out, step = _tape.pop()
        if out.g is not None:
            step(out.g)


def _new(shape: list, values: list, step) -> Array:
    out = Array(shape, values)
    _tape.append((out, step))
    return out


def strides(shape: list) -> list:
    steps, step = [], 1
    for n in reversed(shape):
        steps.append(step)
        step *= n
    return steps[::-1]


_spread = {}


def spread(shape: list, to: list) -> list:
    """For each element of `to` that of an array whose sides of 1 stand for all."""
    key = (tuple(shape), tuple(to))
    if key not in _spread:
        padded = [1] * (len(to) - len(shape)) + shape
        places = [0]
        for n, step, side in zip(to, strides(padded), padded):
            assert side in (1, n), (shape, to)
            places = [at + (i * step if side > 1 else 0) for at in places for i in range(n)]
        _spread[key] = places
    return _spread[key]


def pairwise(a: Array, b, f, slopes) -> Array:
    if not isinstance(b, Array):
        b = Array([], [float(b)])
    rank = max(len(a.shape), len(b.shape))
    shape = [max(m, n) for m, n in zip([1] * (rank - len(a.shape)) + a.shape, [1] * (rank - len(b.shape)) + b.shape)]
    left = a.v if a.shape == shape else [a.v[i] for i in spread(a.shape, shape)]
    right = b.v if b.shape == shape else [b.v[i] for i in spread(b.shape, shape)]

    def step(g):
        ga, gb = a.grad(), b.grad()
        ia = range(len(g)) if a.shape == shape else spread(a.shape, shape)
        ib = range(len(g)) if b.shape == shape else spread(b.shape, shape)
        for i, j, x, y, z in zip(ia, ib, left, right, g):
            sa, sb = slopes(x, y)
            ga[i] += sa * z
            gb[j] += sb * z

    return _new(shape, list(map(f, left, right)), step)


def each(x: Array, f, slope) -> Array:
    """f of every element; slope(x, f(x))."""
    values = [f(a) for a in x.v]

    def step(g):
        gx = x.grad()
        for i, (a, y, z) in enumerate(zip(x.v, values, g)):
            gx[i] += slope(a, y) * z

    return _new(x.shape, values, step)


def take(x: Array, places: list, shape: list) -> Array:
    """The elements at these places in this order; None is 0."""
    values = [0.0 if i is None else x.v[i] for i in places]

    def step(g):
        gx = x.grad()
        for i, z in zip(places, g):
            if i is not None:
                gx[i] += z

    return _new(shape, values, step)


def reshape(x: Array, *shape) -> Array:
    shape = list(shape)
    if -1 in shape:
        known = math.prod(n for n in shape if n != -1)
        shape[shape.index(-1)] = len(x.v) // known
    assert math.prod(shape) == len(x.v), (x.shape, shape)

    def step(g):
        gx = x.grad()
        for i, z in enumerate(g):
            gx[i] += z

    return _new(shape, x.v, step)


def permute(x: Array, *axes) -> Array:
    steps, places = strides(x.shape), [0]
    for axis in axes:
        places = [at + i * steps[axis] for at in places for i in range(x.shape[axis])]
    return take(x, places, [x.shape[axis] for axis in axes])


def narrow(x: Array, axis: int, begin: int, count: int) -> Array:
    steps, places = strides(x.shape), [0]
    axis %= len(x.shape)
    for k, n in enumerate(x.shape):
        of = range(begin, begin + count) if k == axis else range(n)
        places = [at + i * steps[k] for at in places for i in of]
    return take(x, places, [count if k == axis else n for k, n in enumerate(x.shape)])


def chunks(x: Array, count: int, axis: int = -1) -> list:
    size = x.shape[axis] // count
    return [narrow(x, axis, i * size, size) for i in range(count)]


def cat(parts: list, axis: int = 0) -> Array:
    """Of arrays that differ in this axis alone."""
    axis %= len(parts[0].shape)
    lead, tail = math.prod(parts[0].shape[:axis]), math.prod(parts[0].shape[axis + 1:])
    sizes = [p.shape[axis] * tail for p in parts]
    values = []
    for k in range(lead):
        for p, n in zip(parts, sizes):
            values += p.v[k * n:(k + 1) * n]

    def step(g):
        at = 0
        for k in range(lead):
            for p, n in zip(parts, sizes):
                gp = p.grad()
                for i in range(n):
                    gp[k * n + i] += g[at + i]
                at += n

    shape = list(parts[0].shape)
    shape[axis] = sum(p.shape[axis] for p in parts)
    return _new(shape, values, step)


def stack(parts: list) -> Array:
    return cat([reshape(p, 1, *p.shape) for p in parts])


def rows(values: list, width: int) -> list:
    return [values[i:i + width] for i in range(0, len(values), width)]


def _dots(a: list, b: list) -> list:
    return [sum(map(mul, x, y)) for x in a for y in b]


def products(a: Array, b: Array) -> Array:
    """[..., m, k] and [..., n, k] -> [..., m, n]: rows times rows."""
    m, n, k = a.shape[-2], b.shape[-2], a.shape[-1]
    assert k == b.shape[-1] and a.shape[:-2] == b.shape[:-2], (a.shape, b.shape)
    count = math.prod(a.shape[:-2])
    values = []
    for i in range(count):
        values += _dots(rows(a.v[i * m * k:(i + 1) * m * k], k), rows(b.v[i * n * k:(i + 1) * n * k], k))

    def step(g):
        ga, gb = a.grad(), b.grad()
        for i in range(count):
            g_rows = rows(g[i * m * n:(i + 1) * m * n], n)
            a_rows, b_rows = rows(a.v[i * m * k:(i + 1) * m * k], k), rows(b.v[i * n * k:(i + 1) * n * k], k)
            for at, z in enumerate(_dots(g_rows, list(zip(*b_rows))), i * m * k):
                ga[at] += z
            for at, z in enumerate(_dots(list(zip(*g_rows)), list(zip(*a_rows))), i * n * k):
                gb[at] += z

    return _new([*a.shape[:-1], n], values, step)


def swap(x: Array) -> Array:
    """The last two axes."""
    axes = list(range(len(x.shape)))
    return permute(x, *axes[:-2], axes[-1], axes[-2])


def linear(x: Array, weight: Array, bias: Array = None) -> Array:
    flat = products(reshape(x, -1, x.shape[-1]), reshape(weight, weight.shape[0], -1))
    y = reshape(flat, *x.shape[:-1], weight.shape[0])
    return y if bias is None else y + bias


def conv(x: Array, weight: Array, bias: Array = None, stride=1, pad=0, groups: int = 1) -> Array:
    """Of [C, *sides] with weights [out, C / groups, *kernel]. `pad`: zeros at both ends of a side, or (before, behind)."""
    sides, kernel = x.shape[1:], weight.shape[2:]
    stride = [stride] * len(sides) if isinstance(stride, int) else stride
    pad = [pad] * len(sides) if isinstance(pad, int) else pad
    pad = [(p, p) if isinstance(p, int) else p for p in pad]
    out = [(n + p[0] + p[1] - k) // s + 1 for n, p, k, s in zip(sides, pad, kernel, stride)]
    steps = strides(x.shape)
    channels, of_group = x.shape[0], x.shape[0] // groups
    corners = [[]]
    for n in out:
        corners = [c + [i] for c in corners for i in range(n)]
    cells = [[]]
    for k in kernel:
        cells = [c + [i] for c in cells for i in range(k)]
    results = []
    for group in range(groups):
        places = []
        for corner in corners:
            at = []
            for cell in cells:
                where = [c * s - p[0] + d for c, s, p, d in zip(corner, stride, pad, cell)]
                inside = all(0 <= w < n for w, n in zip(where, sides))
                at.append(sum(w * s for w, s in zip(where, steps[1:])) if inside else None)
            for channel in range(group * of_group, (group + 1) * of_group):
                places += [None if a is None else a + channel * steps[0] for a in at]
        unfolded = take(x, places, [len(corners), of_group * len(cells)])
        mine = weight if groups == 1 else narrow(weight, 0, group * (weight.shape[0] // groups), weight.shape[0] // groups)
        results.append(swap(linear(unfolded, reshape(mine, mine.shape[0], -1))))
    y = results[0] if groups == 1 else cat(results)
    if bias is not None:
        y = y + reshape(bias, -1, 1)
    return reshape(y, weight.shape[0], *out)


def square(x: Array) -> Array:
    return each(x, lambda a: a * a, lambda a, y: 2 * a)


def rsqrt(x: Array) -> Array:
    return each(x, lambda a: 1 / math.sqrt(a), lambda a, y: -0.5 * y / a)


def exp(x: Array) -> Array:
    return each(x, math.exp, lambda a, y: y)


def relu(x: Array) -> Array:
    return each(x, lambda a: max(a, 0.0), lambda a, y: float(a > 0))


def tanh(x: Array) -> Array:
    return each(x, math.tanh, lambda a, y: 1 - y * y)


def _sigmoid(a: float) -> float:
    return 1 / (1 + math.exp(-a)) if a > -700 else 0.0


def silu(x: Array) -> Array:
    return each(x, lambda a: a * _sigmoid(a), lambda a, y: _sigmoid(a) * (1 + a * (1 - _sigmoid(a))))


def gelu(x: Array) -> Array:
    def slope(a, _):
        return 0.5 * (1 + math.erf(a / math.sqrt(2))) + a * math.exp(-a * a / 2) / math.sqrt(2 * math.pi)

    return each(x, lambda a: 0.5 * a * (1 + math.erf(a / math.sqrt(2))), slope)


def gelu_tanh(x: Array) -> Array:
    c = math.sqrt(2 / math.pi)

    def slope(a, _):
        t = math.tanh(c * (a + 0.044715 * a ** 3))
        return 0.5 * (1 + t) + 0.5 * a * (1 - t * t) * c * (1 + 3 * 0.044715 * a * a)

    return each(x, lambda a: 0.5 * a * (1 + math.tanh(c * (a + 0.044715 * a ** 3))), slope)


def sums(x: Array) -> Array:
    """Of the last axis, which stays as 1."""
    n = x.shape[-1]

    def step(g):
        gx = x.grad()
        for i in range(len(gx)):
            gx[i] += g[i // n]

    return _new([*x.shape[:-1], 1], [sum(row) for row in rows(x.v, n)], step)


def means(x: Array) -> Array:
    return sums(x) * (1 / x.shape[-1])


def mean(x: Array) -> Array:
    return means(reshape(x, -1))


def softmax(x: Array) -> Array:
    """Of the last axis. -inf is left out."""
    n, values = x.shape[-1], []
    for row in rows(x.v, n):
        most = max(row)
        powers = [math.exp(a - most) for a in row]
        total = sum(powers)
        values += [p / total for p in powers]

    def step(g):
        gx = x.grad()
        for r in range(0, len(g), n):
            inner = sum(map(mul, g[r:r + n], values[r:r + n]))
            for i in range(r, r + n):
                gx[i] += values[i] * (g[i] - inner)

    return _new(x.shape, values, step)


def rms_norm(x: Array, weight: Array = None, eps: float = 1e-6) -> Array:
    y = x * rsqrt(means(square(x)) + eps)
    return y if weight is None else y * weight


def layer_norm(x: Array, weight: Array = None, bias: Array = None, eps: float = 1e-6) -> Array:
    centred = x - means(x)
    y = centred * rsqrt(means(square(centred)) + eps)
    return y if weight is None else y * weight + bias


def heads(x: Array, count: int) -> Array:
    """[n, count * d] -> [count, n, d]"""
    return permute(reshape(x, x.shape[0], count, -1), 1, 0, 2)


def unheads(x: Array) -> Array:
    return reshape(permute(x, 1, 0, 2), x.shape[1], -1)


def attention(q: Array, k: Array, v: Array, scale: float = None, bias: Array = None) -> Array:
    """Of [heads, n, d]."""
    scores = products(q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    return products(softmax(scores if bias is None else scores + bias), swap(v))


def rotate(x: Array, angles: list, halves: bool) -> Array:
    """Pairs of the last axis by angles[n][d / 2], of [heads, n, d]: neighbours, or (i, i + d / 2)."""
    d = x.shape[-1]
    if halves:
        first, second = list(range(d // 2)), list(range(d // 2, d))
    else:
        first, second = list(range(0, d, 2)), list(range(1, d, 2))
    partner, pair, sign = [0] * d, [0] * d, [0.0] * d
    for i, (a, b) in enumerate(zip(first, second)):
        partner[a], partner[b], pair[a], pair[b], sign[a], sign[b] = b, a, i, i, -1.0, 1.0
    places = [r * d + partner[c] for r in range(len(x.v) // d) for c in range(d)]
    cos = Array([len(angles), d], [math.cos(row[pair[c]]) for row in angles for c in range(d)])
    sin = Array([len(angles), d], [sign[c] * math.sin(row[pair[c]]) for row in angles for c in range(d)])
    return x * cos + take(x, places, x.shape) * sin


def sinusoid(values: list, width: int, base: float = 10000.0) -> Array:
    """Cosines, then sines."""
    half = width // 2
    rates = [base ** (-i / half) for i in range(half)]
    return Array([len(values), width], [f(t * r) for t in values for f in (math.cos, math.sin) for r in rates])


class Weights:
    """The parameters of a network, drawn when they are asked for the first time; all fit fp32."""

    def __init__(self, draw: random.Random):
        self.draw, self.all = draw, {}

    def __call__(self, name: str, shape: list, scale: float = None, around: float = 0.0) -> Array:
        if name not in self.all:
            count = math.prod(shape)
            width = math.prod(shape[1:]) if len(shape) > 1 else shape[0]
            deviation = scale if scale is not None else 1 / math.sqrt(width) if len(shape) > 1 else 0.2
            self.all[name] = Array(shape, [f32(around + self.draw.gauss(0, deviation)) for _ in range(count)])
        assert self.all[name].shape == list(shape), (name, shape, self.all[name].shape)
        return self.all[name]

    def linear(self, name: str, x: Array, out: int, bias: bool = True, kernel: list = ()) -> Array:
        weight = self(name + ".weight", [out, x.shape[-1]] if not kernel else [out, x.shape[-1] // math.prod(kernel), *kernel])
        return linear(x, weight, self(name + ".bias", [out]) if bias else None)

    def conv(self, name: str, x: Array, out: int, kernel: list, bias: bool = True, groups: int = 1, **how) -> Array:
        weight = self(name + ".weight", [out, x.shape[0] // groups, *kernel])
        return conv(x, weight, self(name + ".bias", [out]) if bias else None, groups=groups, **how)

    def norm(self, name: str, width: int) -> Array:
        return self(name, [width], 0.2, 1.0)

    def tensors(self) -> dict:
        return {name: array.tensor() for name, array in self.all.items()}

    def gradients(self, prefix: str = "grad.") -> dict:
        return {prefix + name: array.gradient() for name, array in self.all.items()}


def forget() -> None:
    """Of computations whose gradients nobody wants."""
    _tape.clear()


def noise(draw: random.Random, shape: list, scale: float = 1.0, round_to=f32) -> Array:
    return Array(shape, [round_to(draw.gauss(0, scale)) for _ in range(math.prod(shape))])
