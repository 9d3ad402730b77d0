"""Optimisers, the average of weights and learning rates in plain code, with settings that are drawn."""
import bisect
import math
import random

from golden_files import Case, Tensor, bf16, f32, numbers, numel

STEPS, SHOTS = 50, 5
# None of a single value: its moment may be next to nothing by chance, and what is allowed with it.
SHAPES = [[6], [13], [31], [7, 11], [5, 3], [1, 17], [3, 5, 2], [2, 3, 3, 3], [5, 4, 1, 1]]


def gauss(draw: random.Random, count: int, scale: float = 1.0) -> list:
    return [f32(draw.gauss(0, scale)) for _ in range(count)]


class Run:
    """The parameters of a case and what became of them in one run."""

    def __init__(self, inputs: dict):
        self.shapes = {name[len("in.param."):]: t.shape for name, t in inputs.items() if name.startswith("in.param.")}
        self.p = {name: list(inputs["in.param." + name].values) for name in self.shapes}
        self.shots = {name: [] for name in self.shapes}
        self.states = {}  # (kind, parameter) -> [shape, values]

    def state(self, kind: str, name: str, shape: list = None) -> list:
        shape = self.shapes[name] if shape is None else shape
        return self.states.setdefault((kind, name), [shape, [0.0] * numel(shape)])[1]

    def after(self, step: int) -> None:
        if step % (STEPS // SHOTS) == 0:
            for name, values in self.p.items():
                self.shots[name] += values

    def results(self, run: str) -> dict:
        found = {f"out.{run}.param.{name}": Tensor([SHOTS, *self.shapes[name]], values)
                 for name, values in self.shots.items()}
        for (kind, name), (shape, values) in self.states.items():
            found[f"out.{run}.state.{kind}.{name}"] = Tensor(shape, values)
        return found


def inputs_of(draw: random.Random) -> dict:
    """Some parameters with a gradient for each step, half of the time in bf16."""
    dtype = draw.choice(["F32", "BF16"])
    rounded = bf16 if dtype == "BF16" else f32
    inputs = {}
    for name, shape in zip("abcd", draw.sample(SHAPES, 4)):
        count = numel(shape)
        inputs["in.param." + name] = Tensor(shape, gauss(draw, count, 0.5))
        scale = 10 ** draw.uniform(-3, 0)
        inputs["in.grad." + name] = Tensor([STEPS, *shape], [rounded(x) for x in gauss(draw, STEPS * count, scale)], dtype)
    return inputs


def gradient(inputs: dict, name: str, step: int) -> list:
    values = inputs["in.grad." + name].values
    count = len(values) // STEPS
    return values[(step - 1) * count:step * count]


def log_uniform(draw: random.Random, low: float, high: float) -> float:
    return 10 ** draw.uniform(math.log10(low), math.log10(high))


def far_apart(one: list, other: list) -> float:
    """As a share of the largest value."""
    return max(abs(a - b) for a, b in zip(one, other)) / max(abs(a) for a in one)


def rms(values: list) -> float:
    return math.sqrt(sum(x * x for x in values) / len(values))


class Factored:
    """Means of rows and columns of the matrices that a tensor is; of other tensors all values."""

    def __init__(self, run: Run, name: str, kind: str, last_two: bool):
        shape = run.shapes[name]
        matrix = len(shape) >= 2 and (last_two or all(n == 1 for n in shape[2:]))
        self.rows = self.columns = None
        if not matrix:
            self.whole = run.state(kind, name)
            return
        self.m, self.n = shape[-2:] if last_two else shape[:2]
        lead = shape[:-2] if last_two else []
        self.rows = run.state(kind + "_row", name, lead + [self.m])
        self.columns = run.state(kind + "_col", name, lead + [self.n])

    def take(self, squares: list, beta: float) -> None:
        if self.rows is None:
            self.whole[:] = [v * beta + s * (1 - beta) for v, s in zip(self.whole, squares)]
            return
        size = self.m * self.n
        for k in range(len(squares) // size):
            part = squares[k * size:(k + 1) * size]
            for i in range(self.m):
                at = k * self.m + i
                self.rows[at] = self.rows[at] * beta + sum(part[i * self.n:(i + 1) * self.n]) / self.n * (1 - beta)
            for j in range(self.n):
                at = k * self.n + j
                self.columns[at] = self.columns[at] * beta + sum(part[j::self.n]) / self.m * (1 - beta)

    def divided(self, values: list) -> list:
        if self.rows is None:
            return [x / math.sqrt(v) for x, v in zip(values, self.whole)]
        size, result = self.m * self.n, []
        for e, x in enumerate(values):
            k, i, j = e // size, e % size // self.n, e % self.n
            rows = self.rows[k * self.m:(k + 1) * self.m]
            second = rows[i] / (sum(rows) / self.m) * self.columns[k * self.n + j]
            result.append(x / math.sqrt(second))
        return result


def several(draw: random.Random, kind: str, settings, run_of, shared: dict = None) -> Case:
    """Two runs on the same gradients."""
    case = Case(kind, {"_class_name": kind, "runs": {}, "steps": STEPS, **(shared or {})}, inputs_of(draw))
    for name in ("first", "second"):
        given = settings(draw)
        case.config["runs"][name] = given
        case.expected.update(run_of(case.inputs, given).results(name))
    return case


def lion(draw: random.Random) -> Case:
    def settings(draw):
        return {"lr": log_uniform(draw, 1e-4, 1e-2), "betas": [draw.uniform(0.5, 0.99), draw.uniform(0.5, 0.99)],
                "weight_decay": draw.choice([0.0, draw.uniform(0, 0.05)]),
                "decoupled_weight_decay": draw.random() < 0.5}

    def run_of(inputs, s):
        run, (b1, b2), lr = Run(inputs), s["betas"], s["lr"]
        decay = s["weight_decay"] / lr if s["decoupled_weight_decay"] else s["weight_decay"]
        for step in range(1, STEPS + 1):
            for name, p in run.p.items():
                m = run.state("exp_avg", name)
                for i, g in enumerate(gradient(inputs, name, step)):
                    direction = m[i] * b1 + g * (1 - b1)
                    p[i] = p[i] * (1 - lr * decay) - lr * ((direction > 0) - (direction < 0))
                    m[i] = m[i] * b2 + g * (1 - b2)
            run.after(step)
        return run

    return several(draw, "lion", settings, run_of)


def adafactor(draw: random.Random) -> Case:
    def settings(draw):
        relative = draw.random() < 0.5
        return {"eps": [log_uniform(draw, 1e-30, 1e-12), log_uniform(draw, 1e-4, 1e-2)],
                "clip_threshold": draw.uniform(0.5, 2), "decay_rate": -draw.uniform(0.5, 0.9),
                "weight_decay": draw.choice([0.0, draw.uniform(0, 0.1)]),
                "lr": None if relative else log_uniform(draw, 1e-4, 1e-2),
                "beta1": draw.choice([None, draw.uniform(0.3, 0.95)]), "scale_parameter": draw.random() < 0.5,
                "relative_step": relative, "warmup_init": relative and draw.random() < 0.7}

    def run_of(inputs, s):
        run = Run(inputs)
        for step in range(1, STEPS + 1):
            beta = 1 - step ** s["decay_rate"]
            for name, p in run.p.items():
                size = rms(p)
                rate = s["lr"]
                if s["relative_step"]:
                    rate = min(1e-6 * step if s["warmup_init"] else 1e-2, 1 / math.sqrt(step))
                if s["scale_parameter"]:
                    rate *= max(s["eps"][1], size)
                g = gradient(inputs, name, step)
                second = Factored(run, name, "exp_avg_sq", last_two=True)
                second.take([x * x + s["eps"][0] for x in g], beta)
                update = second.divided(g)
                clip = max(1, rms(update) / s["clip_threshold"])
                update = [x / clip * rate for x in update]
                if s["beta1"] is not None:
                    m = run.state("exp_avg", name)
                    m[:] = [old * s["beta1"] + x * (1 - s["beta1"]) for old, x in zip(m, update)]
                    update = m
                for i, x in enumerate(update):
                    p[i] = p[i] * (1 - s["weight_decay"] * rate) - x
                run.states[("RMS", name)] = [[], [size]]
            run.after(step)
        return run

    return several(draw, "adafactor", settings, run_of)


def came(draw: random.Random) -> Case:
    shared = {"lr": log_uniform(draw, 1e-3, 1e-2), "betas": [draw.uniform(0.5, 0.95), draw.uniform(0.9, 0.999),
                                                             draw.uniform(0.9, 0.9999)],
              "eps": [log_uniform(draw, 1e-30, 1e-12), log_uniform(draw, 1e-16, 1e-10)],
              "clip_threshold": draw.uniform(0.5, 2), "wd": draw.uniform(0, 0.1)}
    case = Case("came", {"_class_name": "CAME", "steps": STEPS, **shared}, inputs_of(draw))
    for name in ("came_pytorch", "sana"):
        run, (b1, b2, b3) = Run(case.inputs), shared["betas"]
        for step in range(1, STEPS + 1):
            for param, p in run.p.items():
                g = gradient(case.inputs, param, step)
                second = Factored(run, param, "exp_avg_sq", name == "came_pytorch")
                second.take([x * x + shared["eps"][0] for x in g], b2)
                update = second.divided(g)
                clip = max(1, rms(update) / shared["clip_threshold"])
                update = [x / clip for x in update]
                m = run.state("exp_avg", param)
                m[:] = [old * b1 + x * (1 - b1) for old, x in zip(m, update)]
                moved = m
                if second.rows is not None:
                    residual = Factored(run, param, "exp_avg_res", name == "came_pytorch")
                    residual.take([(x - y) ** 2 + shared["eps"][1] for x, y in zip(update, m)], b3)
                    moved = residual.divided(m)
                for i, x in enumerate(moved):
                    p[i] = p[i] * (1 - shared["wd"] * shared["lr"]) - shared["lr"] * x
            run.after(step)
        case.expected.update(run.results(name))
    return case


def prodigy(draw: random.Random) -> Case:
    """In a closed loop: the gradient is h (p - c) + noise."""
    def settings(draw):
        given = {"lr": draw.uniform(0.3, 1), "d0": log_uniform(draw, 3e-3, 3e-2), "betas": [draw.uniform(0.8, 0.95), draw.uniform(0.95, 0.999)],
                 "eps": log_uniform(draw, 1e-9, 1e-7), "d_coef": draw.uniform(0.5, 2), "weight_decay": draw.choice([0.0, 0.01]),
                 "use_bias_correction": draw.random() < 0.5, "safeguard_warmup": draw.random() < 0.5,
                 "growth_rate": draw.uniform(1.01, 1.5), "decouple": True}
        if draw.random() < 0.5:
            given["beta3"] = draw.uniform(0.9, 0.99)
        return given

    def run_of(inputs, s, wobble=0.0):
        run, (b1, b2), signs = Run(inputs), s["betas"], random.Random(0)
        b3 = s.get("beta3", math.sqrt(b2))
        start = {name: list(p) for name, p in run.p.items()}
        d = most = s["d0"]
        numerator, found, estimates = 0.0, [], []
        for step in range(1, STEPS + 1):
            correction = math.sqrt(1 - b2 ** step) / (1 - b1 ** step) if s["use_bias_correction"] else 1
            rate, denominator = d * s["lr"] * correction, 0.0
            numerator *= b3
            gradients = {}
            for name, p in run.p.items():
                h, c = inputs["in.h." + name].values, inputs["in.c." + name].values
                g = [h[i] * (p[i] - c[i]) + noise
                     for i, noise in enumerate(gradient(inputs, name, step))]
                gradients[name] = g
                numerator += d / s["d0"] * rate * sum(x * (a - b) for x, a, b in zip(g, start[name], p))
                m, v, t = (run.state(kind, name) for kind in ("exp_avg", "exp_avg_sq", "s"))
                for i, x in enumerate(g):
                    m[i] = m[i] * b1 + d * (1 - b1) * x
                    v[i] = v[i] * b2 + d * d * (1 - b2) * x * x
                    t[i] = t[i] * b3 + d / s["d0"] * (d if s["safeguard_warmup"] else rate) * x
                denominator += sum(abs(x) for x in t)
            estimate = s["d_coef"] * numerator / denominator
            estimates.append(estimate)
            before = d
            if d == s["d0"]:
                d = max(d, estimate)
            most = max(most, estimate)
            d = min(most, d * s["growth_rate"])
            found.append(d)
            for name, p in run.p.items():
                m, v = run.state("exp_avg", name), run.state("exp_avg_sq", name)
                for i in range(len(p)):
                    # in fp32, because its distance from the start, which is small, is what d follows from
                    p[i] = f32((p[i] * (1 - s["weight_decay"] * rate)
                                - rate * m[i] / (math.sqrt(v[i]) + before * s["eps"])) * (1 + wobble * signs.uniform(-1, 1)))
            run.after(step)
        run.found = {"d": numbers(found), "d_hat": numbers(estimates)}
        return run

    case = Case("prodigy", {"_class_name": "prodigy", "runs": {}, "steps": STEPS}, inputs_of(draw))
    for name in [n[len("in.param."):] for n in list(case.inputs) if n.startswith("in.param.")]:
        count = len(case.inputs["in.param." + name].values)
        shape = case.inputs["in.param." + name].shape
        case.inputs["in.h." + name] = Tensor(shape, [f32(draw.uniform(0.5, 2)) for _ in range(count)])
        case.inputs["in.c." + name] = Tensor(shape, gauss(draw, count))
    for name in ("first", "second"):
        while True:  # a loop that makes much of a rounding in fp32 tells nothing
            given = settings(draw)
            run, other = run_of(case.inputs, given), run_of(case.inputs, given, wobble=1e-7)
            every, others = {**run.results(name), **run.found}, {**other.results(name), **other.found}
            if all(far_apart(every[what].values, others[what].values) < 1e-5 for what in every):
                break
        case.config["runs"][name] = given
        case.expected.update(run.results(name))
        case.expected.update({f"out.{name}.{what}": values for what, values in run.found.items()})
    return case


def adamw(draw: random.Random) -> Case:
    config = {"_class_name": "AdamW", "lr": log_uniform(draw, 1e-4, 1e-3), "warmup": draw.randrange(0, 20),
              "betas": [draw.uniform(0.5, 0.95), draw.uniform(0.9, 0.999)], "eps": log_uniform(draw, 1e-9, 1e-6),
              "wd": draw.uniform(0, 0.1), "clip": log_uniform(draw, 0.01, 1), "lr_big": log_uniform(draw, 1e-3, 1e-2),
              "steps": STEPS}
    config["eta_min"] = config["lr"] * draw.uniform(0, 0.5)
    case = Case("adamw", config, inputs_of(draw))
    b1, b2 = config["betas"]

    def scheduled(step):  # from 0
        if step < config["warmup"]:
            return config["lr"] * step / max(1, config["warmup"])
        share = (step - config["warmup"]) / max(1, STEPS - config["warmup"])
        return config["eta_min"] + (config["lr"] - config["eta_min"]) * (1 + math.cos(math.pi * share)) / 2

    case.expected["out.lr"] = numbers([scheduled(step) for step in range(STEPS)])
    for name in ("sched", "sched_clip", "const", "const_clip"):
        run, norms = Run(case.inputs), []
        for step in range(1, STEPS + 1):
            all_of = {param: gradient(case.inputs, param, step) for param in run.p}
            norms.append(math.sqrt(sum(x * x for g in all_of.values() for x in g)))
            scale = min(1.0, config["clip"] / (norms[-1] + 1e-6)) if name.endswith("clip") else 1.0
            lr = scheduled(step - 1) if name.startswith("sched") else config["lr_big"]
            for param, p in run.p.items():
                m, v = run.state("exp_avg", param), run.state("exp_avg_sq", param)
                for i, g in enumerate(all_of[param]):
                    m[i] = m[i] * b1 + g * scale * (1 - b1)
                    v[i] = v[i] * b2 + (g * scale) ** 2 * (1 - b2)
                    root = math.sqrt(v[i]) / math.sqrt(1 - b2 ** step) + config["eps"]
                    p[i] = p[i] * (1 - lr * config["wd"]) - lr / (1 - b1 ** step) * m[i] / root
            run.after(step)
        case.expected.update(run.results(name))
        if name.endswith("clip"):
            case.expected[f"out.{name}.grad_norm"] = numbers(norms)
    return case


def ema(draw: random.Random) -> Case:
    case = Case("ema", {"_class_name": "EMAModel", "decay": draw.uniform(0.9, 0.9999), "runs": {}})
    for name, shape in zip("ab", draw.sample(SHAPES, 2)):
        case.inputs["in.param0." + name] = Tensor(shape, gauss(draw, numel(shape)))
        case.inputs["in.param." + name] = Tensor([STEPS, *shape], gauss(draw, STEPS * numel(shape)))
    for run in ("first", "second", "third"):
        given = {"update_after_step": draw.randrange(0, 8), "min_decay": draw.choice([0.0, draw.uniform(0, 0.5)]),
                 "use_ema_warmup": draw.random() < 0.7, "inv_gamma": draw.uniform(0.5, 5), "power": draw.uniform(0.3, 1)}
        case.config["runs"][run] = given
        decays = []
        for step in range(1, STEPS + 1):
            s = max(0, step - given["update_after_step"] - 1)
            rising = 1 - (1 + s / given["inv_gamma"]) ** -given["power"] if given["use_ema_warmup"] else (1 + s) / (10 + s)
            decays.append(0.0 if s == 0 else max(min(rising, case.config["decay"]), given["min_decay"]))
        case.expected[f"out.{run}.decay"] = numbers(decays)
        for name in "ab":
            shadow, shots = list(case.inputs["in.param0." + name].values), []
            shape, count = case.inputs["in.param0." + name].shape, len(shadow)
            for step, decay in enumerate(decays):
                now = case.inputs["in.param." + name].values[step * count:(step + 1) * count]
                shadow = [a - (1 - decay) * (a - p) for a, p in zip(shadow, now)]
                if (step + 1) % (STEPS // SHOTS) == 0:
                    shots += shadow
            case.expected[f"out.{run}.shadow.{name}"] = Tensor([SHOTS, *shape], shots)
    return case


def grad_scaler(draw: random.Random) -> Case:
    config = {"_class_name": "GradScaler", "init_scale": float(2 ** draw.randrange(8, 17)),
              "growth_factor": draw.choice([1.5, 2.0, 4.0]), "backoff_factor": draw.choice([0.25, 0.5]),
              "growth_interval": draw.randrange(1, 6), "lr": draw.uniform(0.01, 0.2)}
    steps, width = draw.randrange(11, 40), draw.choice([1, 3, 7])
    grads = gauss(draw, steps * width, 0.1)
    found = [draw.choices([0, 1, 2], [8, 1, 1])[0] for _ in range(steps)]
    param = gauss(draw, width)
    case = Case("grad_scaler", config, {"in.grad": Tensor([steps, width], grads), "in.param": Tensor([width], param),
                                        "in.found": numbers(found, "I64")})
    scale, tracker, rows = config["init_scale"], 0, {"scale": [], "growth_tracker": [], "stepped": [], "param": []}
    for step in range(steps):
        if found[step]:
            scale, tracker = f32(scale * config["backoff_factor"]), 0
        else:
            param = [p - config["lr"] * g for p, g in zip(param, grads[step * width:(step + 1) * width])]
            tracker += 1
            if tracker == config["growth_interval"]:
                scale, tracker = f32(scale * config["growth_factor"]), 0
        rows["scale"].append(scale)
        rows["growth_tracker"].append(tracker)
        rows["stepped"].append(int(not found[step]))
        rows["param"] += param
    case.expected = {"out.scale": numbers(rows["scale"], "F32"), "out.growth_tracker": numbers(rows["growth_tracker"], "I64"),
                     "out.stepped": numbers(rows["stepped"], "I64"), "out.param": Tensor([steps, width], rows["param"])}
    return case


# Muon

MATRICES = [[7, 11], [5, 3], [1, 17], [13, 1], [3, 5, 2], [2, 3, 3, 3], [5, 4, 1, 1], [2, 2, 1, 3, 4]]


def product(a: list, b: list) -> list:
    columns = list(zip(*b))
    return [[sum(x * y for x, y in zip(row, column)) for column in columns] for row in a]


def orthogonal(x: list, steps: int, coefficients: list, eps: float, adds: bool) -> list:
    tall = len(x) > len(x[0])
    if tall:
        x = [list(row) for row in zip(*x)]
    norm = math.sqrt(sum(v * v for row in x for v in row))
    norm = norm + eps if adds else max(norm, eps)
    x = [[v / norm for v in row] for row in x]
    a, b, c = coefficients
    for _ in range(steps):
        square = product(x, [list(row) for row in zip(*x)])
        fourth = product(square, square)
        inner = [[b * v + c * w for v, w in zip(*rows)] for rows in zip(square, fourth)]
        x = [[a * v + w for v, w in zip(*rows)] for rows in zip(x, product(inner, x))]
    return [list(row) for row in zip(*x)] if tall else x


def muon_run(inputs: dict, s: dict, impl: str) -> Run:
    """`impl`: torch (matrices alone), kj, or one_rate."""
    run, lr = Run(inputs), s["lr"]
    taken = {name: 0 for name in run.p}
    for step in range(1, STEPS + 1):
        for name, p in run.p.items():
            shape, g = run.shapes[name], gradient(inputs, name, step)
            missing = inputs.get("in.missing." + name)
            if len(shape) < 2:
                if impl == "torch" or (missing and missing.values[step - 1]):
                    continue
                taken[name] += 1
                t, own = taken[name], impl == "one_rate"
                rate, decay = (lr, s["weight_decay"]) if own else (s["adam_lr"], s["adam_weight_decay"])
                b1, b2 = s["adamw_betas" if own else "adam_betas"]
                m, v = (run.state(kind, name) for kind in (("moment1", "moment2") if own else ("exp_avg", "exp_avg_sq")))
                for i, x in enumerate(g):
                    m[i] = m[i] * b1 + x * (1 - b1)
                    v[i] = v[i] * b2 + x * x * (1 - b2)
                    root = math.sqrt(1 - b2 ** t)
                    part = (m[i] / (math.sqrt(v[i]) + s["adamw_eps"]) * root if own
                            else m[i] / (math.sqrt(v[i]) / root + s["adam_eps"]))
                    p[i] = p[i] * (1 - rate * decay) - rate * part / (1 - b1 ** t)
                continue
            if impl == "torch" and len(shape) != 2:
                continue
            take = 1 if impl == "one_rate" else 1 - s["momentum"]
            m = run.state("momentum_buffer", name,
                          [shape[0], numel(shape[1:])] if impl == "one_rate" else shape)
            for i, x in enumerate(g):
                m[i] = m[i] * s["momentum"] + take * x
            u = [a * s["momentum"] + take * x for a, x in zip(m, g)] if s["nesterov"] else list(m)
            batch = impl == "kj" and len(shape) in (3, 5)
            columns = shape[-1] if batch else numel(shape[1:])
            size = shape[-2] * columns if batch else len(u)
            moved = []
            for at in range(0, len(u), size):
                rows = [u[k:k + columns] for k in range(at, at + size, columns)]
                moved += sum(orthogonal(rows, s["ns_steps"], s.get("ns_coefficients", [3.4445, -4.775, 2.0315]),
                                        s.get("eps", 1e-7), impl != "torch"), [])
            rms = impl == "one_rate" or s.get("adjust_lr_fn") == "match_rms_adamw"
            scale = 0.2 * math.sqrt(max(shape[:2])) if rms else math.sqrt(max(1, shape[-2] / shape[-1]))
            p[:] = [x * (1 - lr * s["weight_decay"]) - lr * scale * y for x, y in zip(p, moved)]
        run.after(step)
    return run


def muon_inputs(draw: random.Random) -> dict:
    inputs = {}
    shapes = draw.sample(MATRICES, 3)
    while all(len(shape) != 2 for shape in shapes):  # PyTorch's takes no others
        shapes = draw.sample(MATRICES, 3)
    for name, shape in zip("abcd", shapes + [[9]]):
        inputs["in.param." + name] = Tensor(shape, gauss(draw, numel(shape), 0.5))
        inputs["in.grad." + name] = Tensor([STEPS, *shape], gauss(draw, STEPS * numel(shape), 10 ** draw.uniform(-2, 0)))
    return inputs


def muon(draw: random.Random) -> Case:
    case = Case("muon", {"_class_name": "Muon", "runs": {}, "steps": STEPS}, muon_inputs(draw))
    for name, impl in (("first", "torch"), ("second", "kj")):
        given = {"impl": impl, "lr": log_uniform(draw, 1e-3, 3e-2), "weight_decay": draw.choice([0.0, draw.uniform(0, 0.2)]),
                 "momentum": draw.uniform(0.5, 0.97), "nesterov": impl == "kj" or draw.random() < 0.5,
                 "ns_steps": draw.randrange(1, 7)}
        if impl == "torch":
            given.update({"eps": log_uniform(draw, 1e-8, 1e-3), "adjust_lr_fn": draw.choice([None, "original", "match_rms_adamw"]),
                          "ns_coefficients": draw.choice([[3.4445, -4.775, 2.0315], [2.0, -1.5, 0.5]])})
        else:
            given.update({"adam_lr": log_uniform(draw, 1e-4, 1e-2), "adam_betas": [draw.uniform(0.5, 0.95), draw.uniform(0.9, 0.99)],
                          "adam_eps": log_uniform(draw, 1e-10, 1e-6), "adam_weight_decay": draw.choice([0.0, 0.1])})
        case.config["runs"][name] = given
        found = muon_run(case.inputs, given, impl).results(name + ".fp32")
        for key, values in found.items():  # PyTorch's has no others
            param = key[key.rindex(".") + 1:]
            if impl == "kj" or len(case.inputs["in.param." + param].shape) == 2:
                case.expected[key] = values
    return case


def one_rate_muon(draw: random.Random) -> Case:
    case = Case("hunyuan15_muon", {"_class_name": "Muon", "runs": {}, "steps": STEPS}, muon_inputs(draw))
    for name in "abcd":
        missing = [int(draw.random() < 0.2) for _ in range(STEPS)]
        case.inputs["in.missing." + name] = numbers(missing, "I64")
        values = case.inputs["in.grad." + name].values
        count = len(values) // STEPS
        for step in range(STEPS):
            if missing[step]:
                values[step * count:(step + 1) * count] = [0.0] * count
    for name in ("first", "second"):
        given = {"lr": log_uniform(draw, 1e-4, 1e-2), "weight_decay": draw.uniform(0, 0.2), "momentum": draw.uniform(0.5, 0.97),
                 "nesterov": draw.random() < 0.5, "ns_steps": draw.randrange(1, 7),
                 "adamw_betas": [draw.uniform(0.5, 0.95), draw.uniform(0.9, 0.99)], "adamw_eps": log_uniform(draw, 1e-8, 1e-2)}
        case.config["runs"][name] = given
        case.expected.update(muon_run(case.inputs, given, "one_rate").results(name + ".fp32"))
    return case


# Moments in 8 bits

BLOCK, LEAST_QUANTISED = 256, 4096


def dynamic_map(sign: bool) -> list:
    """Sorted: means of neighbours of evenly spaced values, in seven decades, with 0 and 1."""
    values = [0.0, 1.0]
    for i in range(7):
        count = 2 ** i if sign else 2 ** (i + 1)
        width = f32(f32(1 - f32(0.1)) / count)  # fp32, from the nearer end, rounded once
        edges = [f32(f32(0.1) + width * k) if k < (count + 1) // 2 else f32(1 - width * (count - k)) for k in range(count + 1)]
        of_decade = [f32(a + b) / 2 * f32(10.0 ** (i - 6)) for a, b in zip(edges, edges[1:])]
        values += of_decade + ([-v for v in of_decade] if sign else [])
    return sorted(f32(v) for v in values)


class Quantised:
    """A moment in codes with a scale for each block. `keep_sign`: no negative value becomes 0."""

    def __init__(self, sign: bool, keep_sign: bool = False):
        self.map, self.keep_sign = dynamic_map(sign), keep_sign
        self.middles = [(a + b) / 2 for a, b in zip(self.map, self.map[1:])]
        self.zero = self.map.index(0.0)

    def put(self, values: list) -> tuple:
        codes, scales = [], []
        for begin in range(0, len(values), BLOCK):
            block = values[begin:begin + BLOCK]
            scales.append(max(max(abs(x) for x in block), 1e-38))
            for x in block:
                code = bisect.bisect_right(self.middles, x / scales[-1])
                codes.append(code - 1 if self.keep_sign and code == self.zero and x < 0 else code)
        return codes, scales

    def take(self, codes: list, scales: list) -> list:
        return [self.map[code] * scales[i // BLOCK] for i, code in enumerate(codes)]


def adam8bit(draw: random.Random) -> Case:
    """Three libraries' orders: decay before or after the update, and with or without the sign's rule."""
    steps = 5
    c = {"_class_name": "AdamW8bit", "lr": log_uniform(draw, 1e-4, 1e-2), "eps": log_uniform(draw, 1e-9, 1e-5),
         "betas": [draw.choice([0.5, 0.8, 0.9]), draw.choice([0.9, 0.95, 0.99])], "wd": draw.choice([0.0, 0.01, 0.1]),
         "steps": steps, "block_size": BLOCK, "min_8bit_size": LEAST_QUANTISED}
    case, shapes = Case("adam8bit", c, loose="_codes."), {"small": [draw.choice([7, 12, 40])]}  # a single moment may be the rest of a difference
    uneven = draw.random() < 0.5  # a last block that is short, which torchao does not quantise
    shapes["big"] = draw.choice([[4099], [63, 67]]) if uneven else draw.choice([[64, 64], [17, 256], [4352]])
    for name, shape in shapes.items():
        count = numel(shape)
        case.inputs["in.param." + name] = Tensor(shape, gauss(draw, count, 0.5))
        case.inputs["in.grad." + name] = Tensor([steps, *shape], gauss(draw, steps * count, 10 ** draw.uniform(-3, 0)))
    for sign, name in ((True, "quant_signed"), (False, "quant_unsigned")):
        values = [x if sign else abs(x) for x in gauss(draw, 3 * BLOCK, 10 ** draw.uniform(-4, 2))]
        case.inputs["in." + name] = Tensor([3, BLOCK], values)
        quantised = Quantised(sign)
        codes, scales = quantised.put(values)
        out = {"codes": Tensor([3, BLOCK], codes, "U8"), "scale": numbers(scales, "F32"),
               "dequant": Tensor([3, BLOCK], quantised.take(codes, scales))}
        if sign:
            out["codes_signfix"] = Tensor([3, BLOCK], Quantised(True, True).put(values)[0], "U8")
        case.expected.update({f"out.{name}.{key}": tensor for key, tensor in out.items()})
        case.expected["out.qmap_" + name[len("quant_"):]] = numbers(quantised.map, "F32")
    runs = {"bnb": (False, False), "bnb_cuda_emulated": (True, True), "fp32": (False, False)}
    if not uneven:
        runs["torchao"] = (False, False)
    for run, (decay_last, keep_sign) in runs.items():
        for name, shape in shapes.items():
            adam8bit_run(case, run, name, shape, decay_last, keep_sign)
    return case


def adam8bit_run(case: Case, run: str, name: str, shape: list, decay_last: bool, keep_sign: bool) -> None:
    c, out, count = case.config, case.expected, numel(shape)
    (beta1, beta2), lr, steps = c["betas"], c["lr"], c["steps"]
    in_codes = run != "fp32" and count >= LEAST_QUANTISED
    forms = {"m": Quantised(True, keep_sign), "v": Quantised(False)}
    p, state, shots = list(case.inputs["in.param." + name].values), {"m": [0.0] * count, "v": [0.0] * count}, []
    for step in range(1, steps + 1):
        g = case.inputs["in.grad." + name].values[(step - 1) * count:step * count]
        m = [beta1 * a + (1 - beta1) * b for a, b in zip(state["m"], g)]
        v = [beta2 * a + (1 - beta2) * b * b for a, b in zip(state["v"], g)]
        root = math.sqrt(1 - beta2 ** step)
        move = [lr / (1 - beta1 ** step) * a / (math.sqrt(b) / root + c["eps"]) for a, b in zip(m, v)]
        keep = 1 - lr * c["wd"]
        p = [(x - d) * keep if decay_last else x * keep - d for x, d in zip(p, move)]
        shots += p
        stored = {}
        for letter, values in (("m", m), ("v", v)):
            at = f"out.{run}.step{step}.{letter}"
            if in_codes:
                codes, scales = forms[letter].put(values)
                state[letter] = forms[letter].take(codes, scales)
                stored |= {f"{at}_codes.{name}": Tensor(shape, codes, "U8"), f"{at}_scale.{name}": numbers(scales, "F32")}
            else:
                state[letter] = values
                stored[f"{at}.{name}"] = Tensor(shape, values)
        if run != "fp32" and step in (1, steps):
            out.update(stored)
    out[f"out.{run}.param.{name}"] = Tensor([steps, *shape], shots)


KINDS = {"adam8bit": adam8bit, "lion": lion, "adafactor": adafactor, "came": came, "prodigy": prodigy, "adamw": adamw, "ema": ema,
         "grad_scaler": grad_scaler, "muon": muon, "hunyuan15_muon": one_rate_muon}
