"""What HunyuanVideo-1.5's trainer and sampler make for its model, in plain code: draws, conditions, paths, sizes and cuts of pictures."""
import math
import random

from golden_files import Case, Tensor, f32
from golden_optimisers import gauss
from golden_samplers import linspace, model, shifted

THOUSAND, CELL, EDGE = 1000, 16, 1e-5


def of_draws(kind: str, draws: list) -> float:
    """A timestep in 0..1 from the draws of one sample, before the shift."""
    def inside(u: float) -> float:
        return EDGE + (1 - 2 * EDGE) * u

    def sigmoid(x: float) -> float:
        return inside(1 / (1 + math.exp(-x)))

    if kind == "lognorm":
        return sigmoid(draws[0])
    if kind == "uniform":
        return inside(draws[0])
    if kind == "mode":
        u = draws[0]
        return inside(1 - u - 1.29 * (math.cos(math.pi * u / 2) ** 2 - 1 + u))
    return sigmoid(draws[0]) if draws[2] > 0.3 else inside(draws[1])


def timesteps(case: Case, draw: random.Random) -> dict:
    runs = {}
    for kind in ("lognorm", "uniform", "mix", "mode"):
        name, shift, count = f"{kind}_{draw.randrange(9)}", draw.choice([1.0, 3.0, draw.uniform(0.5, 12)]), draw.randrange(1, 30)
        normal = gauss(draw, count)
        even, choice = ([f32(draw.random()) for _ in range(count)] for _ in range(2))
        draws = {"lognorm": [normal], "mix": [normal, even, choice]}.get(kind, [even])
        runs[name] = {"kind": kind, "shift": shift, "draws": len(draws)}
        for k, values in enumerate(draws):
            case.inputs[f"in.draw.{name}.{k}"] = Tensor([count], values)
        drawn = [of_draws(kind, list(sample)) for sample in zip(*draws)]
        case.expected["out.t." + name] = Tensor([count], [THOUSAND * s for s in shifted(drawn, shift)])
    return runs


def batch(case: Case, draw: random.Random) -> None:
    samples, channels, frames = draw.choice([1, 2, 3]), draw.randrange(1, 6), draw.choice([2, 3, 5])
    cells = draw.randrange(1, 5) * draw.randrange(1, 5)
    shape = [samples, channels, frames, cells, 1]
    per = channels * frames * cells
    x, noise, guess = (gauss(draw, samples * per) for _ in range(3))
    times = [f32(draw.uniform(0, THOUSAND)) for _ in range(samples)]
    case.inputs |= {"in.latents": Tensor(shape, x), "in.noise": Tensor(shape, noise), "in.pred": Tensor(shape, guess),
                    "in.t": Tensor([samples], times)}
    noised = [(1 - times[i // per] / THOUSAND) * x[i] + times[i // per] / THOUSAND * noise[i] for i in range(samples * per)]
    target = [n - a for n, a in zip(noise, x)]
    given, whole = [], []
    for s in range(samples):
        own = []
        for i in range(s * per, (s + 1) * per):
            own.append(x[i] if i // cells % frames == 0 else 0.0)
        own += [1.0 if i < cells else 0.0 for i in range(frames * cells)]
        given += own
        whole += noised[s * per:(s + 1) * per] + own
    case.expected |= {"out.noised": Tensor(shape, noised), "out.target": Tensor(shape, target),
                      "out.loss": Tensor([], [sum((g - t) ** 2 for g, t in zip(guess, target)) / len(target)]),
                      "out.cond_i2v": Tensor([samples, channels + 1, *shape[2:]], given),
                      "out.cond_t2v": Tensor([samples, channels + 1, *shape[2:]], [0.0] * len(given)),
                      "out.input_i2v": Tensor([samples, 2 * channels + 1, *shape[2:]], whole)}


def sampling(case: Case, draw: random.Random) -> dict:
    runs = {}
    for number in range(draw.choice([1, 2])):
        name, steps = f"run{number}", draw.choice([1, 2, 7, 12])
        shift, guidance = draw.uniform(0.5, 10), draw.choice([1.0, 6.0, draw.uniform(1.1, 9)])
        runs[name] = {"shift": shift, "steps": steps, "guidance": guidance}
        sigmas = shifted(linspace(1.0, 0.0, steps + 1), shift)
        x = gauss(draw, draw.randrange(1, 8))
        case.inputs["in.x." + name] = Tensor([len(x)], x)
        path = []
        for now, following in zip(sigmas, sigmas[1:]):
            with_text, without = model(x, THOUSAND * now), model([-a for a in x], THOUSAND * now)
            scale = guidance if guidance > 1 else 1.0
            x = [a + (following - now) * (u + scale * (c - u)) for a, c, u in zip(x, with_text, without)]
            path += x
        times = [THOUSAND * s for s in sigmas]
        case.expected |= {"out.sigmas." + name: Tensor([steps + 1], sigmas), "out.timesteps." + name: Tensor([steps], times[:-1]),
                          "out.timesteps_r." + name: Tensor([steps], times[1:]),
                          "out.trajectory." + name: Tensor([steps, len(x)], path)}
    return runs


def lanczos(values: list, to: int) -> list:
    """A row of bytes in another length, as Pillow has it: factors of 22 bits behind the point."""
    size = len(values)
    if size == to:
        return values
    scale = size / to
    wide, out = max(scale, 1.0), []
    for i in range(to):
        centre = (i + 0.5) * scale
        first, end = max(0, int(centre - 3 * wide + 0.5)), min(size, int(centre + 3 * wide + 0.5))
        factors = []
        for k in range(first, end):
            at = (k - centre + 0.5) / wide
            sinc = [math.sin(math.pi * a) / (math.pi * a) if a else 1.0 for a in (at, at / 3)]
            factors.append(sinc[0] * sinc[1] if -3 <= at < 3 else 0.0)
        whole = [int(f / sum(factors) * 2 ** 22 + math.copysign(0.5, f)) for f in factors]
        out.append(min(255, max(0, (sum(v * f for v, f in zip(values[first:end], whole)) + 2 ** 21) >> 22)))
    return out


def covering(rows: list, height: int, width: int) -> list:
    """`rows` of lists of colours; rows first, then columns, then the middle."""
    h, w = len(rows), len(rows[0])
    scale = max(width / w, height / h)
    tall, broad = round(h * scale), round(w * scale)
    planes = []
    for colour in range(3):
        lines = [lanczos([pixel[colour] for pixel in row], broad) for row in rows]
        columns = [lanczos(list(column), tall) for column in zip(*lines)]
        planes.append([list(line) for line in zip(*columns)])
    top, left = round((tall - height) / 2), round((broad - width) / 2)
    return [[[plane[y][x] for plane in planes] for x in range(left, left + width)] for y in range(top, top + height)]


def pictures(case: Case, draw: random.Random) -> list:
    sizes = []
    for i in range(draw.choice([1, 2])):
        height, width, h, w = (draw.randrange(4, 24) for _ in range(4))
        rows = [[[draw.randrange(256) for _ in range(3)] for _ in range(w)] for _ in range(h)]
        cut = covering(rows, height, width)
        flat = [[c for row in picture for pixel in row for c in pixel] for picture in (rows, cut)]
        case.inputs[f"in.picture.{i}"] = Tensor([h, w, 3], flat[0], "U8")
        case.expected[f"out.cropped.{i}"] = Tensor([height, width, 3], flat[1], "U8")
        case.expected[f"out.cond_pixels.{i}"] = Tensor([3, height, width], [(pixel[c] / 255 - 0.5) / 0.5 for c in range(3)
                                                                            for row in cut for pixel in row])
        sizes.append([height, width])
    return sizes


def shapes_of(base: int) -> list:
    cells = round((base / CELL) ** 2)
    rows, columns, found = cells, 1, []
    while rows > 0:
        if max(rows, columns) / min(rows, columns) <= 4:
            found.append([rows * CELL, columns * CELL])
        if (columns + 1) * rows <= cells:
            columns += 1
        else:
            rows -= 1
    return found


def sizes_of(draw: random.Random) -> dict:
    bases = draw.sample([64, 160, 256, 480, 640, 960, 1440], 2)
    rows = []
    for _ in range(8):
        base, height, width = draw.choice(bases), draw.randrange(16, 2000), draw.randrange(16, 2000)
        shapes = shapes_of(base)
        off = [abs(round(h / w, 5) - height / width) for h, w in shapes]
        rows.append({"base": base, "height": height, "width": width, "size": shapes[off.index(min(off))], "diffusers": [1, 1]})
    return {"buckets": {str(base): shapes_of(base) for base in bases}, "rows": rows}


def inputs(draw: random.Random) -> Case:
    case = Case("hunyuan15_inputs", {}, tolerance={"rule": "words", "out": {"rtol_of_max": 1e-5, "atol": 1e-6}})
    batch(case, draw)
    case.config = {"_class_name": "HunyuanVideo15Inputs", "num_train_timesteps": THOUSAND, "timesteps": timesteps(case, draw),
                   "sampling": sampling(case, draw), "crops": pictures(case, draw)}
    case.files = {"sizes.json": sizes_of(draw)}
    return case


KINDS = {"hunyuan15_inputs": inputs}
