"""Schedules, solvers, guidance and training draws of samplers in plain code, with shifts, steps and orders that are drawn."""
import math
import random

from golden_files import Case, Tensor, f32, numbers
from golden_optimisers import gauss

THOUSAND = 1000


def linspace(first: float, last: float, points: int) -> list:
    return [first + (last - first) * i / max(1, points - 1) for i in range(points)]


def shifted(values: list, shift: float) -> list:
    return [shift * u / (1 + (shift - 1) * u) for u in values]


def model(x: list, t: float) -> list:
    """The recorded one; t in 0..1000."""
    return [0.3 * math.sin(a) + 0.1 * t / THOUSAND for a in x]


def log_ratio(sigma: float) -> float:
    """log of data over noise."""
    return math.inf if sigma == 0 else -math.inf if sigma == 1 else math.log((1 - sigma) / sigma)


def mix(*terms) -> list:
    """Sum of (factor, list); what a factor of 0 stands before does not count."""
    used = [(factor, values) for factor, values in terms if factor != 0]
    return [sum(factor * values[i] for factor, values in used) for i in range(len(terms[0][1]))]


class Path:
    """Sigmas with 0 behind them, the timesteps that the model is given, and the latents from the first to the last."""

    def __init__(self, x: list, sigmas: list, whole: bool):
        self.sigmas = [*sigmas, 0.0]
        self.times = [float(int(THOUSAND * s)) if whole else THOUSAND * s for s in sigmas]
        self.latents = [list(x)]

    def alpha(self, i: int) -> float:
        return 1 - self.sigmas[i]

    def h(self, i: int) -> float:
        return log_ratio(self.sigmas[i + 1]) - log_ratio(self.sigmas[i])

    def data(self, i: int, x: list) -> list:
        return mix((1.0, x), (-self.sigmas[i], model(x, self.times[i])))

    def first(self, i: int, x: list, m: list) -> list:
        """Of first order, from i to i + 1."""
        return mix((self.sigmas[i + 1] / self.sigmas[i], x), (-self.alpha(i + 1) * math.expm1(-self.h(i)), m))

    def euler(self) -> "Path":
        for i, t in enumerate(self.times):
            x = self.latents[-1]
            self.latents.append(mix((1.0, x), (self.sigmas[i + 1] - self.sigmas[i], model(x, t))))
        return self

    def dpm(self, order: int = 2, heun: bool = False, lowers: bool = True) -> "Path":
        steps, ms = len(self.times), []
        for i in range(steps):
            x = self.latents[-1]
            ms.append(self.data(i, x))
            now = min(order, i + 1)
            if i == steps - 1:
                now = 1
            elif i == steps - 2 and lowers and steps < 15:
                now = min(now, 2)
            y = self.first(i, x, ms[-1])
            h, a = self.h(i), self.alpha(i + 1)
            if now > 1:
                r = self.h(i - 1) / h
                first = mix((1 / r, ms[-1]), (-1 / r, ms[-2])) if math.isfinite(r) else [0.0] * len(x)
            slope = a * (math.expm1(-h) / h + 1) if math.isfinite(h) else 0.0
            if now == 2:
                y = mix((1.0, y), (slope if heun else -0.5 * a * math.expm1(-h), first))
            if now == 3:
                before = self.h(i - 2) / h
                second = mix((1 / before, ms[-2]), (-1 / before, ms[-3]))
                bend = mix((1 / (r + before), first), (-1 / (r + before), second))
                first = mix((1.0, first), (r, bend))
                y = mix((1.0, y), (slope, first), (-a * ((math.expm1(-h) + h) / h ** 2 - 0.5), bend))
            self.latents.append(y)
        return self

    def unipc(self) -> "Path":
        steps, ms, corrected, orders = len(self.times), [], [], []
        for i in range(steps):
            x = self.latents[-1]
            ms.append(self.data(i, x))
            if i > 0:
                x = self.correct(i, corrected[-1], ms, orders[-1])
            corrected.append(x)
            orders.append(min(2, steps - i, i + 1))
            y = self.first(i, x, ms[-1])
            if orders[-1] == 2:
                r = -self.h(i - 1) / self.h(i)
                step = -0.5 * self.alpha(i + 1) * math.expm1(-self.h(i)) / r
                y = mix((1.0, y), (step, ms[-2]), (-step, ms[-1]))
            self.latents.append(y)
        return self

    def correct(self, i: int, x: list, ms: list, order: int) -> list:
        """The latent at i anew, from that of i - 1 and the data prediction at i."""
        y, h = self.first(i - 1, x, ms[-2]), -self.h(i - 1)
        b = math.expm1(h)
        step = -self.alpha(i) * b
        change = mix((1.0, ms[-1]), (-1.0, ms[-2]))
        if order == 1:
            return mix((1.0, y), (0.5 * step, change))
        r = -self.h(i - 2) / self.h(i - 1)
        phi = b / h - 1
        b1, b2 = phi / b, 2 * (phi / h - 0.5) / b
        # rho + other = b1, r rho + other = b2
        rho = (b1 - b2) / (1 - r)
        older = mix((1 / r, ms[-3]), (-1 / r, ms[-2]))
        return mix((1.0, y), (step * rho, older), (step * (b1 - rho), change))


def training_table(shift: float, count: int) -> tuple:
    sigmas = shifted(linspace(1, 0, count + 1)[:-1], shift)
    bell = [math.exp(-2 * ((THOUSAND * s - 500) / THOUSAND) ** 2) for s in sigmas]
    least = min(bell)
    total = sum(y - least for y in bell)
    weights = [(y - least) * THOUSAND / total for y in bell]
    if count != THOUSAND:
        weights = [w * count / THOUSAND for w in weights]
        weights = [w + weights[1] for w in weights]
    return sigmas, weights


def flow(draw: random.Random) -> Case:
    case = Case("flow", {"_class_name": "flow", "num_train_timesteps": THOUSAND},
                tolerance={"out": 1e-5, "timesteps": 0, "sigmas": 1e-6})
    count = draw.choice([5, 13, 24])
    x, noise = gauss(draw, count), gauss(draw, count)
    case.inputs = {"in.x": numbers(x, "F32"), "in.noise": numbers(noise, "F32")}
    for name in ("diffsynth", "euler", "unipc", "dpmpp", "diffusers_unipc"):
        shift, steps = round(draw.uniform(0.7, 9), 2), draw.choice([1, 2, 3, 7, 11, 19])
        whole = name not in ("diffsynth", "euler")
        even = linspace(1, 0, steps + 1)[:-1]
        if name == "euler":  # the ends of the range are those of the shifted table
            even = linspace(1, shifted([1 / THOUSAND], shift)[0], steps)
        if name == "unipc":
            even = linspace(f32(1 - 1 / THOUSAND), 0, steps + 1)[:-1]
        if name == "diffusers_unipc":
            even = linspace(1, 1 / THOUSAND, steps + 1)[:-1]
        sigmas = shifted(even, shift)
        if name == "diffusers_unipc":
            sigmas[0] -= 1e-6
        path = Path(x, sigmas, whole)
        path = path.unipc() if "unipc" in name else path.dpm() if name == "dpmpp" else path.euler()
        out = f"out.{name}.shift{shift}.steps{steps}."
        case.expected.update({out + "timesteps": numbers(path.times, "I64" if whole else "F32"),
                              out + "sigmas": numbers(path.sigmas, "F32"),
                              out + "trajectory": Tensor([steps + 1, count], [a for latent in path.latents for a in latent])})
    shift, length = round(draw.uniform(1, 9), 2), draw.choice([50, 333, THOUSAND])
    sigmas, weights = training_table(shift, length)
    ids = [draw.randrange(length) for _ in range(4)]
    out = f"out.diffsynth_train.shift{shift}.steps{length}."
    case.inputs[out + "ids"] = numbers(ids, "I64")
    noisy = [(1 - sigmas[i]) * a + sigmas[i] * b for i in ids for a, b in zip(x, noise)]
    case.expected.update({out + "timesteps": numbers([THOUSAND * s for s in sigmas], "F32"), out + "sigmas": numbers(sigmas, "F32"),
                          out + "weights": numbers(weights, "F32"), out + "noisy": Tensor([4, count], noisy),
                          out + "weight_at_ids": numbers([weights[i] for i in ids], "F32"),
                          out + "target": numbers([b - a for a, b in zip(x, noise)], "F32")})
    return case


def schedulers(draw: random.Random) -> Case:
    """Those of diffusers that Sana is sampled and trained with."""
    shift, steps = round(draw.uniform(1, 9), 2), draw.choice([2, 3, 4, 9, 14, 15, 21])
    config = {"_class_name": "samplers", "flow_shift": shift, "steps": steps, "runs": {}, "mu_exponential": draw.uniform(0.2, 2),
              "mu_linear": draw.uniform(0.5, 4), "scm_steps": draw.choice([1, 2, 3, 5]), "sigma_data": draw.choice([0.5, 0.8])}
    if config["scm_steps"] == 2:
        config.update({"scm_max_timesteps": 1.5708, "scm_intermediate_timesteps": 1.3})
    case = Case("sampling_sana", config)
    shape = [1, draw.choice([2, 3]), draw.choice([3, 5])]
    count = math.prod(shape)
    x = gauss(draw, count)
    case.inputs["in.x"] = Tensor(shape, x)

    def expect(run: str, path: Path) -> None:
        case.expected[f"out.{run}.timesteps"], case.expected[f"out.{run}.sigmas"] = numbers(path.times), numbers(path.sigmas)
        case.expected[f"out.{run}.x"] = Tensor([steps, *shape], [a for latent in path.latents[1:] for a in latent])

    even = linspace(1 - 1 / THOUSAND, 0, steps + 1)[:-1]
    for run in ("first", "second", "third"):
        given = {"solver_order": draw.choice([1, 2, 3])}
        if draw.random() < 0.6:
            given["solver_type"] = draw.choice(["midpoint", "heun"])
        if draw.random() < 0.6:
            given["lower_order_final"] = draw.random() < 0.3
        config["runs"][run] = given
        expect(run, Path(x, shifted(even, shift), True).dpm(given["solver_order"], given.get("solver_type") == "heun",
                                                           given.get("lower_order_final", True)))
    expect("euler", Path(x, shifted(linspace(1, shifted([1 / THOUSAND], shift)[0], steps), shift), False).euler())
    for run, by in (("euler_dynamic", math.exp(config["mu_exponential"])), ("euler_dynamic_linear", config["mu_linear"])):
        expect(run, Path(x, shifted(linspace(1, 1 / THOUSAND, steps), by), False).euler())

    n, deviation = config["scm_steps"], config["sigma_data"]
    angles = [1.5708, 1.3, 0.0] if n == 2 else linspace(1.5708, 0, n + 1)
    y, noise, after = gauss(draw, count, deviation), gauss(draw, n * count), []
    case.inputs.update({"in.scm.x": Tensor(shape, y), "in.scm.noise": Tensor([n, *shape], noise)})
    for i, (now, then) in enumerate(zip(angles, angles[1:])):
        end = [math.cos(now) * a - math.sin(now) * (0.3 * math.sin(a) + 0.1 * now) for a in y]
        y = [math.cos(then) * a + math.sin(then) * b * deviation for a, b in zip(end, noise[i * count:(i + 1) * count])]
        after += y
    case.expected.update({"out.scm.timesteps": numbers(angles), "out.scm.x": Tensor([n, *shape], after),
                          "out.scm.denoised": Tensor(shape, end)})

    table = shifted([i / THOUSAND for i in range(THOUSAND, 0, -1)], shift)
    normal, latent, noise = gauss(draw, 5), gauss(draw, 20), gauss(draw, 20)
    u = [1 / (1 + math.exp(-a)) for a in normal]
    index = [int(THOUSAND * a) for a in u]
    sigma = [table[i] for i in index]
    case.inputs.update({"in.train.normal": numbers(normal, "F32"), "in.train.latent": Tensor([5, 4], latent),
                        "in.train.noise": Tensor([5, 4], noise)})
    case.expected.update({
        "out.train.table_sigmas": numbers(table), "out.train.table_timesteps": numbers([THOUSAND * s for s in table]),
        "out.train.u": numbers(u, "F32"), "out.train.index": numbers(index, "I64"), "out.train.sigma": numbers(sigma, "F32"),
        "out.train.timestep": numbers([THOUSAND * s for s in sigma], "F32"),
        "out.train.noisy": Tensor([5, 4], [(1 - sigma[i // 4]) * a + sigma[i // 4] * b for i, (a, b) in enumerate(zip(latent, noise))]),
        "out.train.target": Tensor([5, 4], [b - a for a, b in zip(latent, noise)])})
    return case


# Open-Sora


def shift_of_tokens(tokens: float, frames: int) -> float:
    return (1 + (tokens - 256) * 2 / 3840) * math.sqrt(frames)


def shift_of_area(size: tuple, scale: float, version: str) -> float:
    height, width, frames = size
    latent = 1 if frames == 1 else frames // 17 * 5 if version == "v12" else (frames - 1) // 4
    return math.sqrt(height * width / 512 ** 2 * latent) * (1 if version == "v13" and frames == 1 else scale)


class Packed:
    """Latents as rows of 2 x 2 patches, and what the recorded model adds to them."""

    def __init__(self, channels: int, size: tuple):
        self.channels, (self.frames, self.height, self.width) = channels, size

    def rows(self, latent: list, channels: int) -> list:
        frames, height, width = self.frames, self.height, self.width
        return [latent[((c * frames + t) * height + 2 * y + i) * width + 2 * x + j] for t in range(frames)
                for y in range(height // 2) for x in range(width // 2) for c in range(channels) for i in (0, 1) for j in (0, 1)]

    def __len__(self) -> int:
        return self.frames * self.height * self.width // 4

    def frame_of(self, i: int) -> int:
        return i // (self.channels * self.height * self.width)


def sampling_opensora(draw: random.Random) -> Case:
    steps = draw.choice([4, 11, 14, 17])
    sizes = [[draw.randrange(100, 900), draw.randrange(100, 1300), draw.choice([1, 17, 34, 51, 102])] for _ in range(3)]
    frames, sides = draw.choice([1, 2, 3]), [2 * draw.choice([1, 2]), 2 * draw.choice([1, 2, 3])]
    channels, tokens = draw.choice([2, 4]), sides[0] * sides[1] // 4
    config = {"_class_name": "rectified_flow", "steps": steps, "hwf": sizes, "v12_cfg_scale": draw.uniform(1, 8),
              "v2_guidance": draw.uniform(1, 8), "v2_guidance_img": draw.uniform(1, 4),
              "v2_schedules": [[draw.randrange(64, 4096), draw.choice([1, 9, 33]), draw.choice([None, 2.5])] for _ in range(3)],
              "v2_train": {"latent_h*w": 4 * draw.randrange(20, 900), "latent_frames": draw.choice([1, 5, 9]), "sigma_min": 1e-5},
              "v2_i2v_schedule": [tokens, frames]}
    case = Case("sampling_opensora", config)
    times = [f32(draw.uniform(0, THOUSAND)) for _ in range(7)]
    case.inputs.update({"in.t": numbers(times, "F32"), "in.hwf": Tensor([3, 3], [float(a) for row in sizes for a in row])})
    for version in ("v12", "v13"):
        for scale in (1, 2):
            found = [THOUSAND * t for size in sizes
                     for t in shifted([a / THOUSAND for a in times], shift_of_area(size, scale, version))]
            case.expected[f"out.{version}.transform_scale{scale}"] = Tensor([3, 7], found)
    first_rows(draw, case)

    shift, size = shift_of_area(sizes[-1], 1, "v12"), [1, 2, 3, 2, 2]
    path = [THOUSAND * t for t in shifted(linspace(1, 0, steps + 1)[:-1], shift)]
    z = gauss(draw, math.prod(size))
    case.inputs["in.v12.z"] = Tensor(size, list(z))
    for t, then in zip(path, [*path[1:], 0.0]):
        both = [[v + 0.2 * text for v in model(z, t)] for text in (-0.4, 0.7)]
        z = [a + (n + config["v12_cfg_scale"] * (c - n)) * (t - then) / THOUSAND for a, n, c in zip(z, *both)]
    case.expected.update({"out.v12.timesteps": numbers(path, "F32"), "out.v12.sample": Tensor(size, z)})

    lengths = [draw.randrange(16, 9000) for _ in range(4)]
    case.inputs["in.v2.seq_len"] = numbers(lengths, "I64")
    case.expected["out.v2.lin"] = numbers([shift_of_tokens(n, 1) for n in lengths])
    for k, (length, count, given) in enumerate(config["v2_schedules"]):
        by = shift_of_tokens(length, count) if given is None else given
        case.expected[f"out.v2.schedule{k}"] = numbers(shifted(linspace(1, 0, steps + 1), by))
    case.expected["out.v2.schedule_noshift"] = numbers(linspace(1, 0, steps + 1))
    second_training(draw, case, config["v2_train"])
    second_guidance(draw, case, Packed(channels, (frames, *sides)))
    return case


def first_rows(draw: random.Random, case: Case) -> None:
    """1.2's noisy latents and losses, with frames that are given and without."""
    shape, frame = [2, 2, 3, 2, 2], 4
    per = math.prod(shape[1:])
    x, noise, times = gauss(draw, 2 * per), gauss(draw, 2 * per), [f32(draw.uniform(0, THOUSAND)) for _ in range(2)]
    mask = [1, *(draw.randrange(2) for _ in range(4)), 1]
    case.inputs.update({"in.rf.x_start": Tensor(shape, x), "in.rf.noise": Tensor(shape, noise), "in.rf.t": numbers(times, "F32"),
                        "in.rf.mask": Tensor([2, 3], mask, "I64")})
    for suffix, kept in (("", [1] * 6), ("_masked", mask)):
        noisy, losses = [], []
        for s, t in enumerate(times):
            squares = []
            for i in range(s * per, (s + 1) * per):
                counts = kept[3 * s + i // frame % 3]
                noisy.append((1 - t / THOUSAND) * x[i] + t / THOUSAND * noise[i] if counts else x[i])
                if counts:
                    squares.append((model([noisy[-1]], t)[0] - (x[i] - noise[i])) ** 2)
            losses.append(sum(squares) / len(squares))
        case.expected.update({"out.rf.x_t" + suffix: Tensor(shape, noisy), "out.rf.loss" + suffix: numbers(losses, "F32")})


def second_training(draw: random.Random, case: Case, given: dict) -> None:
    shift, least = shift_of_tokens(given["latent_h*w"] / 4, given["latent_frames"]), given["sigma_min"]
    normal, x, noise = gauss(draw, 3), gauss(draw, 12), gauss(draw, 12)
    t = shifted([1 / (1 + math.exp(-a)) for a in normal], shift)
    case.inputs.update({"in.v2.train.normal": numbers(normal, "F32"), "in.v2.train.x0": Tensor([3, 4], x),
                        "in.v2.train.x1": Tensor([3, 4], noise)})
    noisy = [(1 - t[i // 4]) * a + (least + (1 - least) * t[i // 4]) * b for i, (a, b) in enumerate(zip(x, noise))]
    case.expected.update({"out.v2.train.shift_alpha": Tensor([], [shift], "F64"), "out.v2.train.t": numbers(t, "F32"),
                          "out.v2.train.x_t": Tensor([3, 4], noisy),
                          "out.v2.train.target": Tensor([3, 4], [(1 - least) * b - a for a, b in zip(x, noise)])})


def second_guidance(draw: random.Random, case: Case, packed: Packed) -> None:
    config, wide, count = case.config, 4 * packed.channels, len(packed)
    steps, guidance = config["steps"], config["v2_guidance"]
    sides = [packed.frames, packed.height, packed.width]
    start, texts = gauss(draw, count * wide), gauss(draw, 3 * 2 * 3)
    mask, given = [float(draw.randrange(2)) for _ in range(math.prod(sides))], gauss(draw, packed.channels * math.prod(sides))
    case.inputs.update({"in.v2.img": Tensor([1, count, wide], start), "in.v2.txt": Tensor([3, 2, 3], texts),
                        "in.v2.masks": Tensor([1, 1, *sides], mask), "in.v2.masked_ref": Tensor([1, packed.channels, *sides], given)})
    text = [sum(texts[6 * i:6 * i + 6]) / 6 for i in range(3)]
    both = packed.rows(mask + given, packed.channels + 1)
    cond = [sum(both[i * (wide + 4):(i + 1) * (wide + 4)]) / (wide + 4) for i in range(count)]
    times = shifted(linspace(1, 0, steps + 1), shift_of_tokens(*config["v2_i2v_schedule"]))
    out = "out.v2.i2v."
    case.expected[out + "timesteps"] = numbers(times)

    def velocity(x: list, t: float, strength: float) -> list:
        return [0.3 * math.sin(a) + 0.1 * t + 0.01 * strength for a in x]

    for name, alternates, by_frame in (("plain", False, False), ("osci", True, False), ("osci_scale", True, True)):
        x = start
        for step, (t, then) in enumerate(zip(times, times[1:])):
            rests = alternates and step >= 10 and step % 2 == 1
            last = config["v2_guidance_img"] + (1 - config["v2_guidance_img"]) * step / steps
            image = linspace(1, last, packed.frames) if by_frame and packed.frames > 1 else [config["v2_guidance_img"]] * packed.frames
            moved = []
            for i, (a, v) in enumerate(zip(x, velocity(x, t, guidance))):
                neither = v + 0.2 * text[2]
                one, all_of = (v + 0.2 * text[k] + 0.05 * cond[i // wide] for k in (1, 0))
                g_text, g_image = (1, 1) if rests else (guidance, image[i // wide * packed.frames // count])
                moved.append(a + (then - t) * (neither + g_image * (one - neither) + g_text * (all_of - one)))
            x = moved
        case.expected[out + name] = Tensor([1, count, wide], x)
    x = start
    for t, then in zip(times, times[1:]):
        x = [a + (then - t) * v for a, v in zip(x, velocity(x, t, 4))]
    case.expected["out.v2.distilled"] = Tensor([1, count, wide], x)


KINDS = {"flow": flow, "sampling_sana": schedulers, "sampling_opensora": sampling_opensora}
