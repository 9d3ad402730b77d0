"""Learning rates and shapes of training in plain code, with settings that are drawn."""
import math
import random

from golden_files import Case, Tensor, numbers


def lr_schedules(draw: random.Random) -> Case:
    total = draw.choice([17, 31, 64, 97])
    warmup = draw.randrange(0, total // 2)
    lr, power, cycles = 10 ** draw.uniform(-5, -2), draw.uniform(0.5, 3), draw.randrange(1, 6)
    stable, decay = draw.randrange(0, total // 3), draw.randrange(1, total // 2)
    ratio, start, eta_min = draw.uniform(0, 0.5), draw.uniform(0.001, 0.5), lr * draw.uniform(0, 0.5)
    config = {"_class_name": "lr_schedules", "lr": lr, "total": total, "warmup": warmup, "num_cycles": cycles, "power": power,
              "wsd": {"stable": stable, "decay": decay, "min_lr_ratio": ratio},
              "torch_linear_then_cosine": {"start_factor": start, "eta_min": eta_min},
              "opensora_initial_lr": lr * draw.uniform(0, 0.2)}

    def rising(i):
        return i / max(1, warmup)

    def share(i):
        return (i - warmup) / max(1, total - warmup)

    def half_cosine(x):
        return 0.5 * (1 + math.cos(math.pi * x))

    def wsd(i):
        if i < warmup:
            return ratio + (1 - ratio) * rising(i)
        if i < warmup + stable:
            return 1
        return ratio if i >= warmup + stable + decay else ratio + (1 - ratio) * half_cosine((i - warmup - stable) / decay)

    first = config["opensora_initial_lr"]
    formulas = {
        "constant": lambda i: lr,
        "constant_with_warmup": lambda i: lr * (rising(i) if i < warmup else 1),
        "linear": lambda i: lr * (rising(i) if i < warmup else max(0, 1 - share(i))),
        "cosine": lambda i: lr * (rising(i) if i < warmup else max(0, half_cosine(share(i)))),
        "cosine_with_restarts": lambda i: lr * (rising(i) if i < warmup else half_cosine(cycles * share(i) % 1.0)),
        "polynomial": lambda i: lr * rising(i) if i < warmup else (lr - 1e-7) * (1 - share(i)) ** power + 1e-7,
        "wsd": lambda i: lr * wsd(i),
        "torch_linear_then_cosine": lambda i: (lr * (start + (1 - start) * i / warmup) if i < warmup
                                               else eta_min + (lr - eta_min) * half_cosine(share(i))),
        "opensora_linear_warmup": lambda i: first + (lr - first) * (i + 1) / (warmup + 1) if i < warmup else lr,
    }
    case = Case("lr_schedules", config)
    case.expected = {"out." + name: numbers([formula(i) for i in range(total)]) for name, formula in formulas.items()}
    return case


def aspect_ratios(draw: random.Random) -> Case:
    """A table that nobody has published, in rising order; sizes are chosen from it."""
    side = draw.choice([16, 32])
    bins, seen = [], set()
    for _ in range(draw.randrange(3, 30)):
        height, width = side * draw.randrange(4, 60), side * draw.randrange(4, 60)
        if f"{height / width:.2f}" not in seen:
            seen.add(f"{height / width:.2f}")
            bins.append([f"{height / width:.2f}", height, width])
    bins.sort(key=lambda bin: float(bin[0]))
    sizes = []
    for _ in range(40):
        height, width = draw.choice([1, 7, 97, 720, 1081]) * draw.randrange(1, 5), draw.randrange(1, 3000)
        best = min(bins, key=lambda bin: abs(float(bin[0]) - height / width))  # the first of equals
        sizes.append({"height": height, "width": width, "bin": best[1:]})
    case = Case("aspect_ratios", {"_class_name": "aspect_ratios"})
    case.files = {"tables.json": {"own": {"from": "drawn", "bins": bins}}, "sizes.json": {"own": sizes}}

    def alter(files: dict, draw: random.Random) -> None:
        draw.choice(files["sizes.json"]["own"])["bin"][0] += 16

    case.alter = alter
    return case


def opensora_buckets(draw: random.Random) -> Case:
    case = Case("opensora_buckets", {"_class_name": "opensora_buckets", "configs": {}}, files={"buckets.json": {}})
    clips = []
    for _ in range(60):
        image = draw.random() < 0.3
        clips.append([1 if image else draw.choice([3, 17, 33, 65, 97, 129, 300]), draw.randrange(100, 1300),
                      draw.randrange(100, 2100), 0.0 if image else draw.choice([8.0, 16.0, 23.9, 24.0, 30.0, 60.0])])
    case.inputs["in.clips"] = Tensor([60, 4], [float(x) for clip in clips for x in clip], "F64")
    for name, style in (("first", "v12"), ("second", "v2"), ("third", "v13_ar")):
        about, config = bucket_table(draw, style)
        buckets = [(size, frames) for size, all_frames in about["order"] for frames in all_frames]
        count = 40 if style == "v2" else 2 * len(buckets)
        draws = [[draw.random() for _ in range(count)] for _ in clips]
        shape = [60, count] if style == "v2" else [60, len(buckets), 2]
        case.inputs[f"in.{name}.draws"] = Tensor(shape, [x for row in draws for x in row], "F64")
        case.config["configs"][name], case.files["buckets.json"][name] = config, about
        found = [(second if style == "v2" else first)(clip, row, about, config) for clip, row in zip(clips, draws)]
        case.expected[f"out.{name}.bucket"] = Tensor([60, 6], [x for row, _ in found for x in row], "I64")
        if style == "v2":
            case.expected[f"out.{name}.drawn"] = numbers([used for _, used in found], "I64")
    return case


def bucket_table(draw: random.Random, style: str) -> tuple:
    sides = draw.sample([144, 240, 333, 512, 720, 1000], 3)
    order, areas, ratios, config = [], {}, {}, {}
    for side in sorted(sides, reverse=True):
        name = f"{side}px"
        frames = sorted(draw.sample([1, 5, 17, 33, 65, 97, 129], 4), reverse=True)
        order.append([name, frames])
        areas[name] = side * side
        named = {}
        for _ in range(4):
            height, width = side + draw.randrange(-side // 2, side), side + draw.randrange(-side // 2, side)
            key = f"{width}:{height}" if style == "v2" else f"{height / width:.2f}"
            named[key] = [height, width]
        ratios[name] = named
        config[name] = {}
        for length in frames:
            share = round(draw.random(), 3)
            pair = [share, round(draw.random(), 3)]
            config[name][str(length)] = [pair if style == "v13_ar" or draw.random() < 0.5 else share, draw.randrange(1, 9)]
    about = {"style": style, "order": order, "areas": areas, "ratios": ratios}
    about.update({"fps_max": 24} if style == "v2" else {"frame_interval": draw.choice([1, 2, 3]) if style == "v12" else 1})
    return about, config


def value_of(name: str) -> float:
    width, _, height = name.partition(":")
    return float(height) / float(width) if height else float(width)


def row_of(about: dict, config: dict, size: int, frames: int, ratio: float) -> list:
    name = about["order"][size][0]
    table = list(about["ratios"][name].items())
    at = min(range(len(table)), key=lambda i: abs(value_of(table[i][0]) - ratio))
    return [size, frames, at, *table[at][1], config[name][str(frames)][1]]


def second(clip: list, draws: list, about: dict, config: dict) -> tuple:
    """Open-Sora 2.0's way."""
    frames, height, width, fps = clip
    interval = 1 if fps == 0 or fps < about["fps_max"] else math.ceil(fps / about["fps_max"])
    frames //= interval
    used = 0

    def next_draw():
        nonlocal used
        used += 1
        return draws[used - 1]

    for size, (name, lengths) in enumerate(about["order"]):
        if height * width < 0.8 * about["areas"][name]:
            continue
        if frames == 1:
            share = config[name]["1"][0] if "1" in config[name] else None
            if share is not None and next_draw() < (share[0] if isinstance(share, list) else share):
                return row_of(about, config, size, 1, height / width), used
            continue
        for length in lengths:
            if length == 1 or frames < length:
                continue
            share = config[name][str(length)][0]
            if isinstance(share, list) and (share[1] >= 1 or next_draw() <= share[1]):
                continue
            share = share[0] if isinstance(share, list) else share
            if share >= 1 or next_draw() <= share:
                return row_of(about, config, size, length, height / width), used
            break
    return [-1] * 6, used


def first(clip: list, draws: list, about: dict, config: dict) -> tuple:
    """1.2's way, and 1.3's second one, which takes the nearest ratio first."""
    frames, height, width, _ = clip
    order = [(size, name, lengths) for size, (name, lengths) in enumerate(about["order"])]
    begin, ratio, by_ratio = {}, height / width, about["style"] == "v13_ar"
    number = 0
    for size, _, lengths in order:
        begin[size] = number
        number += len(lengths)
    if by_ratio:
        if frames == 1:
            return [-1] * 6, 0
        names = sorted({float(key) for _, name, _ in order for key in about["ratios"][name]}, reverse=True)
        ratio = min(names, key=lambda value: abs(value - ratio))

        def target(name):
            return next((shape for key, shape in about["ratios"][name].items() if float(key) == ratio), None)

        order = [entry for entry in order if target(entry[1]) and target(entry[1])[0] <= height and target(entry[1])[1] <= width]
        order.sort(key=lambda entry: -target(entry[1])[0])
    for size, name, lengths in order:
        if not by_ratio and height * width < 0.8 * about["areas"][name]:
            continue
        if frames == 1:
            if 1 in lengths:
                share = config[name]["1"][0]
                if draws[2 * (begin[size] + lengths.index(1))] < (share[0] if isinstance(share, list) else share):
                    return row_of(about, config, size, 1, ratio), 0
            continue
        for at, length in enumerate(lengths):
            numbers_of = draws[2 * (begin[size] + at):2 * (begin[size] + at) + 2]
            if length == 1:
                continue
            share = config[name][str(length)][0]
            if isinstance(share, list) and numbers_of[0] > share[1]:
                continue
            if frames <= length * about["frame_interval"]:
                continue
            take, u = (share[0], numbers_of[1]) if isinstance(share, list) else (share, numbers_of[0])
            if take >= 1 or u < take:
                return row_of(about, config, size, length, ratio), 0
            break
    return [-1] * 6, 0


KINDS = {"lr_schedules": lr_schedules, "aspect_ratios": aspect_ratios, "opensora_buckets": opensora_buckets}
