"""What Open-Sora's trainers make of a sample: timesteps by its size, frames that are given, losses; in plain code."""
import bisect
import itertools
import math
import random

from golden_files import Case, Tensor, bf16, f32, numbers
from golden_optimisers import gauss
from plain import sinusoid

EXACT = {"out": {"rtol_of_max": 0.0, "atol": 0.0}}

# Timesteps


def shifted(t: float, shift: float) -> float:
    return shift * t / (1 + (shift - 1) * t)


def shift_of_tokens(tokens: float, frames: int) -> float:
    """2.0's: a line through (256, 1) and (4096, 3), which goes on at both ends."""
    return (1 + 2 * (tokens - 256) / (4096 - 256)) * math.sqrt(frames)


def shift_by_area(size: list, scale: float, release: str) -> float:
    height, width, frames = size
    if release == "1.2":
        latents = 1 if frames == 1 else frames // 17 * 5
    else:
        latents = 1 if frames == 1 else (frames - 1) // 4
        scale = 1 if frames == 1 else scale
    return math.sqrt(height * width / 512 ** 2) * math.sqrt(latents) * scale


def timesteps(draw: random.Random) -> Case:
    count = draw.choice([1, 2, 5])
    hwf = [[draw.randrange(97, 1100), draw.randrange(97, 1100), draw.choice([1, 17, draw.randrange(17, 200)])]
           for _ in range(count)]
    cut = [[max(32, h // 32 * 32), max(32, w // 32 * 32), 1 if f == 1 else f // 4 * 4] for h, w, f in hwf]
    steps, of_bf16 = draw.choice([1, 7, 30, 50]), lambda x: bf16(f32(x))
    case = Case("opensora_timesteps", {"_class_name": "opensora_timesteps", "hwf": hwf, "hwf_dc_ae": cut, "steps": steps},
                tolerance={"out": {"rtol_of_max": 1e-6, "atol": 1e-7}})
    put, out = case.inputs, case.expected
    sampled = []
    for codec, sizes, cell, patch in (("hunyuan", hwf, 8, 2), ("dc_ae", cut, 32, 1)):
        latents = [[(f - 1) // 4 + 1, -(-h // cell), -(-w // cell)] for h, w, f in sizes]
        put[f"in.v2.{codec}.latent_thw"] = Tensor([count, 3], [x for row in latents for x in row], "I64")
        shifts = [shift_of_tokens(h * w // 4, t) for t, h, w in latents]
        out[f"out.v2.{codec}.alpha"] = numbers(shifts)
        if codec == "hunyuan":
            alphas = shifts
        sampled += [[i, h * w // patch ** 2, t] for i, (t, h, w) in enumerate(latents)]
    normal = gauss(draw, draw.choice([3, 8, 17]), draw.choice([0.5, 1, 3]))
    put["in.v2.normal"] = numbers(normal, "F32")
    shares = [1 / (1 + math.exp(-x)) for x in normal]
    rows = [[shifted(u, a) for u in shares] for a in alphas]
    rounded = [[of_bf16(t) for t in row] for row in rows]
    shape = [count, len(normal)]
    out["out.v2.sigmoid"] = numbers(shares, "F32")
    out["out.v2.t"] = Tensor(shape, [t for row in rows for t in row])
    out["out.v2.t_bf16"] = Tensor(shape, [t for row in rounded for t in row])
    out["out.v2.t_rev_bf16"] = Tensor(shape, [of_bf16(1 - t) for row in rounded for t in row])
    embedded = sinusoid([f32(1000 * t) for row in rounded for t in row[:3]], 256)
    out["out.v2.embedding_bf16_compiled"] = Tensor([3 * count, 256], [of_bf16(x) for x in embedded.v])
    put["in.v2.sample.row_seq_frames"] = Tensor([len(sampled), 3], [x for row in sampled for x in row], "I64")
    shifts = [shift_of_tokens(tokens, frames) for _, tokens, frames in sampled]
    line = [1 - i / steps for i in range(steps + 1)]
    out["out.v2.sample.alpha"] = numbers(shifts)
    out["out.v2.sample.schedule"] = Tensor([len(shifts), steps + 1], [shifted(t, a) for a in shifts for t in line], "F64")
    known = draw.choice(["5", "3", "1.5", "0.25"])
    out["out.v2.sample.schedule_alpha" + known] = numbers([shifted(t, float(known)) for t in line])
    moved = [draw.uniform(0.2, 8) for _ in range(draw.choice([1, 3]))]
    at = [f32(draw.random()) for _ in range(draw.choice([2, 9]))]
    put["in.shift.alpha"], put["in.shift.t"] = numbers(moved), numbers(at, "F32")
    out["out.shift.t"] = Tensor([len(moved), len(at)], [shifted(t, a) for a in moved for t in at])

    def thousandths(times: list, shifts: list) -> Tensor:
        return Tensor([len(shifts), len(times)], [1000 * shifted(t / 1000, s) for s in shifts for t in times])

    times = [f32(draw.uniform(0, 1000)) for _ in range(draw.choice([1, 6]))]
    put["in.v1.t"] = numbers(times, "F32")
    for scale, release in itertools.product(draw.sample([0.5, 1.0, 2.0, 2.5, 3.0], 2), ("1.2", "1.3")):
        name = f"out.v{release.replace('.', '')}.fp32.scale{scale}"
        out[name] = thousandths(times, [shift_by_area(size, scale, release) for size in hwf])
    over = [f32(draw.uniform(0, 1000)) for _ in range(4)]
    put["in.v13.over.t"] = numbers(over, "F32")
    out["out.v13.no_temporal"] = numbers(thousandths(over, [shift_by_area([*hwf[-1][:2], 1], 1, "1.3")]).values, "F32")
    last = [shift_by_area(hwf[-1], 1, "1.3")]
    uniform, normals = [f32(draw.random()) for _ in range(5)], gauss(draw, 5)
    put["in.v13.sample.uniform"], put["in.v13.sample.logit_normal"] = numbers(uniform, "F32"), numbers(normals, "F32")
    out["out.v13.sample.uniform"] = numbers(thousandths([1000 * u for u in uniform], last).values, "F32")
    out["out.v13.sample.logit_normal"] = numbers(
        thousandths([1000 / (1 + math.exp(-x)) for x in normals], last).values, "F32")
    return case

# Latents as nested places (channel, frame, row, column), each a list of numbers in this order


def packed(values: list, shape: list, patch: int) -> list:
    """Of [C, T, H, W]: rows of patches, channels before the places in a patch."""
    c, t, h, w = shape
    return [values[((k * t + f) * h + y * patch + dy) * w + x * patch + dx]
            for f, y, x in itertools.product(range(t), range(h // patch), range(w // patch))
            for k, dy, dx in itertools.product(range(c), range(patch), range(patch))]


def frame_of(place: int, shape: list) -> int:
    return place // (shape[2] * shape[3]) % shape[1]

# Frames that are given beside the noisy ones, 2.0


CONDITIONS = ["t2v", "i2v_head", "i2v_loop", "i2v_tail", "v2v_head", "v2v_tail", "v2v_head_easy", "v2v_tail_easy"]


def chosen(weights: dict, u: float) -> str:
    sums = list(itertools.accumulate(weights.values()))
    return list(weights)[min(bisect.bisect_right(sums, u * sums[-1]), len(sums) - 1)]


def latents_given(kind: str, causal: bool) -> int:
    """At each end that has any."""
    if not kind.startswith("v2v"):
        return 1
    return (16 if kind.endswith("easy") else 8) + causal


def ends_given(kind: str) -> list:
    return [end for end in ("head", "tail") if end in kind or kind == "i2v_loop"]


def condition_run(draw: random.Random, case: Case, name: str) -> dict:
    channels, height, width = case.config["latent_channels"], 2 * draw.choice([1, 2]), 2
    causal = draw.random() < 0.5
    latents = draw.choice([2, 5, 9, 10, 17, 18, 20])
    frames = 4 * (latents - 1) + 1 if causal else 4 * latents
    before = {kind: draw.choice([1, 2, 0.5]) for kind in draw.sample(CONDITIONS, draw.randint(1, 7))}
    before.setdefault("t2v", 1)
    least = {"v2v": 9 if causal else 8, "easy": 17 if causal else 16}
    left = {kind: weight for kind, weight in before.items()
            if not (kind.startswith("v2v") and latents <= least["v2v"]) and
            not (kind.endswith("easy") and latents <= least["easy"])}
    samples = draw.choice([1, 3])
    drawn = [draw.random() for _ in range(samples)]
    encodes, wholes, conds = [], [], []

    def encode(sample: int, begin: int, end: int, count: int) -> list:
        values = gauss(draw, channels * count * height * width)
        case.inputs[f"in.{name}.enc{len(encodes)}"] = Tensor([1, channels, count, height, width], values)
        encodes.append({"frames": [begin, end], "sample": sample})
        return values

    shape = [channels, latents, height, width]
    picks = [chosen(left, u) for u in drawn]
    for sample, kind in enumerate(picks):
        whole = encode(sample, 0, frames, latents)
        cond, size = [[0.0] * latents * height * width for _ in range(channels + 1)], height * width
        count = latents_given(kind, causal)
        for end in ends_given(kind):
            first = 0 if end == "head" else latents - count
            if kind.startswith("v2v") and not causal:
                piece = [whole[((k * latents + first) * size):((k * latents + first + count) * size)] for k in range(channels)]
            else:
                pixels = 1 if count == 1 else 4 * (count - 1) + 1
                begin = 0 if end == "head" else frames - pixels
                values = encode(sample, begin, begin + pixels, count)
                piece = [values[k * count * size:(k + 1) * count * size] for k in range(channels)]
            cond[0][first * size:(first + count) * size] = [1.0] * count * size
            for k in range(channels):
                cond[k + 1][first * size:(first + count) * size] = piece[k]
        wholes += whole
        conds.append([x for channel in cond for x in channel])
    out, wide = case.expected, [channels + 1, *shape[1:]]
    case.inputs[f"in.{name}.u"] = numbers(drawn)
    out[f"out.{name}.x0"] = Tensor([samples, *shape], wholes)
    out[f"out.{name}.cond"] = Tensor([samples, *wide], [x for cond in conds for x in cond])
    for patch in (1, 2):
        out[f"out.{name}.cond_packed{patch}"] = Tensor(
            [samples, latents * height * width // patch ** 2, (channels + 1) * patch ** 2],
            [x for cond in conds for x in packed(cond, wide, patch)])
    return {"causal": causal, "pad": False, "frames": frames, "config_before": before, "config_after": left,
            "chosen": picks, "encodes": encodes}


def references(draw: random.Random, case: Case, name: str) -> dict:
    channels, height, width = case.config["latent_channels"], draw.choice([1, 2]), 3
    kind, causal = draw.choice(CONDITIONS), draw.random() < 0.5
    count = latents_given(kind, causal)
    latents = draw.choice([1, count + 1, count + 4]) if count == 1 else count + draw.choice([0, 1, 5])
    lengths = [count + draw.choice([0, 1, 3]) for _ in range(2 if kind == "i2v_loop" and draw.random() < 0.7 else 1)]
    size, given = height * width, []
    for i, length in enumerate(lengths):
        given.append(gauss(draw, channels * length * size))
        case.inputs[f"in.{name}.ref{i}"] = Tensor([channels, length, height, width], given[-1])
    mask, masked = [0.0] * latents * size, [[0.0] * latents * size for _ in range(channels)]
    for end in ends_given(kind) if latents > 1 else []:
        first, values, length = (0, given[0], lengths[0]) if end == "head" else (latents - count, given[-1], lengths[-1])
        begin = 0 if end == "head" else length - count
        mask[first * size:(first + count) * size] = [1.0] * count * size
        for k in range(channels):
            masked[k][first * size:(first + count) * size] = values[(k * length + begin) * size:(k * length + begin + count) * size]
    nothing = [0.0] * latents * size
    shape = [latents, height, width]
    case.expected[f"out.{name}.masks"] = Tensor([2, 1, *shape], mask + nothing)
    case.expected[f"out.{name}.masked"] = Tensor([2, channels, *shape], [x for row in masked for x in row] + nothing * channels)
    return {"condition": kind, "latent_frames": latents, "causal": causal, "ref_latent_frames": lengths}


def condition(draw: random.Random) -> Case:
    case = Case("opensora_condition", {"_class_name": "opensora_condition", "runs": {}, "inference": {},
                                       "latent_channels": draw.choice([1, 3, 4]), "compression": [4, 2, 2]}, tolerance=EXACT)
    for i in range(2):
        case.config["runs"][f"run{i}"] = condition_run(draw, case, f"run{i}")
        case.config["inference"][f"infer{i}"] = references(draw, case, f"infer{i}")
    shares = {"t5": draw.uniform(0.2, 0.8), "clip": draw.uniform(0.2, 0.8)}
    case.config["dropout"] = shares
    samples, length, null, wide, pooled = draw.choice([1, 5]), 7, draw.choice([1, 4, 7]), 3, 5
    put = case.inputs
    for name, shape in {"txt": [samples, length, wide], "vec": [samples, pooled], "null_txt": [1, null, wide],
                        "null_vec": [1, pooled]}.items():
        put["in.drop." + name] = Tensor(shape, gauss(draw, math.prod(shape)))
    drawn = {name: [draw.random() for _ in range(samples)] for name in shares}
    for name, values in drawn.items():
        put[f"in.drop.u_{name}"] = numbers([f32(u) for u in values], "F32")
    text, vector = [], []
    for s in range(samples):
        instead = put["in.drop.null_txt"].values
        instead = instead + instead[-wide:] * (length - null)
        text += instead if drawn["t5"][s] < shares["t5"] else put["in.drop.txt"].values[s * length * wide:(s + 1) * length * wide]
        own = put["in.drop.vec"].values[s * pooled:(s + 1) * pooled]
        vector += put["in.drop.null_vec"].values if drawn["clip"][s] < shares["clip"] else own
    case.expected["out.drop.txt"], case.expected["out.drop.vec"] = (Tensor([samples, length, wide], text),
                                                                      Tensor([samples, pooled], vector))
    return case

# Frames that are given among the noisy ones, 1.2 and 1.3


MASKS = ["random", "intepolate", "quarter_random", "quarter_head", "quarter_tail", "quarter_head_tail", "image_random",
         "image_head", "image_tail", "image_head_tail"]


def masked(draw: random.Random, kind: str, frames: int, release: str) -> tuple:
    """1 for frames that are trained on, and what was drawn: whole numbers, a share, a number for each frame."""
    mask, whole, share, of_frame = [1] * frames, [], -1.0, [-1.0] * frames
    if frames > 1 and kind == "random":
        share, of_frame = draw.uniform(0.1, 0.9), [f32(draw.random()) for _ in range(frames)]
        if draw.random() < 0.3:
            of_frame = [f32(x / 20) for x in of_frame]  # all are given, and so the last is not
        mask = [int(x > share) for x in of_frame]
    elif frames > 1 and kind == "intepolate":
        whole = [draw.randint(0, 1)]
        mask = [int((f - whole[0]) % 2 != 0 or f < whole[0]) for f in range(frames)]
    elif frames > 1 and kind != "identity":
        size = 1
        if kind.startswith("quarter"):
            size = draw.randint(1, frames // 4)
            whole.append(size)
        begins = []
        if kind.endswith("_random"):
            begins = [draw.randint(0, frames - size)]
            whole += begins
        begins += [0] if "_head" in kind else []
        begins += [frames - size] if kind.endswith("tail") else []
        for begin in begins:
            mask[begin:begin + size] = [0] * size
    if not any(mask) and (release == "1.3" or kind == "random"):
        mask[-1] = 1
    return mask, (whole + [-1, -1])[:2], share, of_frame


def masks(draw: random.Random) -> Case:
    case = Case("opensora_masks", {"_class_name": "opensora_masks", "runs": {}}, tolerance="exact")
    put, out, count = case.inputs, case.expected, draw.choice([3, 12])
    for i, release in enumerate(["1.2", "1.3"]):
        frames = draw.choice([1, 2, 3, 5, 8, 13, 31])
        kinds = [kind for kind in MASKS if frames == 1 or frames > 3 or not kind.startswith("quarter")]
        some = draw.sample(kinds, draw.randint(1, len(kinds)))
        weights = [draw.random() for _ in range(len(some) + 1)]
        ratios = {kind: w / sum(weights) for kind, w in zip(some, weights)}
        ratios["identity"] = 1.0 - sum(ratios.values())
        us, names, found = [draw.random() for _ in range(count)], [], []
        for u in us:
            sums = itertools.accumulate(ratios.values())
            names.append(next((kind for kind, total in zip(ratios, sums) if u < total), "identity"))
            found.append(masked(draw, names[-1], frames, release))
        run = f"run{i}"
        case.config["runs"][run] = {"release": release, "frames": frames, "mask_ratios": ratios, "names": names}
        put[f"in.{run}.u"] = numbers(us)
        put[f"in.{run}.ints"] = Tensor([count, 2], [n for one in found for n in one[1]], "I64")
        put[f"in.{run}.uniform"] = numbers([one[2] for one in found])
        put[f"in.{run}.rand"] = Tensor([count, frames], [x for one in found for x in one[3]])
        out[f"out.{run}.mask"] = Tensor([count, frames], [x for one in found for x in one[0]], "I64")
    known = ["i2v_head", "i2v_tail", "i2v_loop", "v2v_head", "v2v_head_noisy", "v2v_tail", "other", "none"]
    types = {kind: draw.choice([1, 2, 0.5]) for kind in draw.sample(known, draw.randint(1, len(known)))}
    us, edges = [draw.random() for _ in range(count)], [draw.random() for _ in range(count)]
    lengths = [draw.choice([3, 4, 7, 20]) for _ in range(count)]
    ints, rows, names = [], [], []
    for u, edge, t in zip(us, edges, lengths):
        kind, n = chosen(types, u), draw.randint(1, t - 2)
        names.append(kind)
        ints.append(n if kind == "other" else -1)
        given = {"i2v_head": [0], "i2v_tail": [t - 1], "i2v_loop": [0, t - 1], "v2v_head": range(t // 2),
                 "v2v_head_noisy": range(t // 2), "v2v_tail": range(t // 2, t), "none": [],
                 "other": range(n) if int(2 * edge) == 0 else range(n, t)}[kind]
        rows.append([int(f in given) for f in range(max(lengths))])
    case.config["runs"]["index"] = {"release": "1.3", "mask_types": types, "names": names}
    put["in.index.u"], put["in.index.edge_u"] = numbers(us), numbers(edges)
    put["in.index.latent_frames"], put["in.index.int"] = numbers(lengths, "I64"), numbers(ints, "I64")
    out["out.index.mask"] = Tensor([count, max(lengths)], [x for row in rows for x in row], "I64")
    out["out.all_masked_v12"], out["out.all_masked_v13"] = numbers([0, 0], "I64"), numbers([0, 1], "I64")
    return case

# Losses


LEAST = 1e-5  # of noise, in 2.0
PATTERNS = {"t2v": lambda t: [], "i2v_head": lambda t: [0], "i2v_tail": lambda t: [t - 1], "i2v_loop": lambda t: [0, t - 1],
            "v2v_head": lambda t: range(t - 2), "v2v_tail": lambda t: range(2, t)}


def counted(given: list) -> list:
    """Frames of 2.0's loss: pictures that are given do not count, given videos do."""
    if any(given[1:-1]):
        return [1] * len(given)
    return [int(not (g and f in (0, len(given) - 1))) for f, g in enumerate(given)]


def loss_of_second(draw: random.Random, case: Case, shape: list) -> None:
    samples, latent = shape[0], shape[1:]
    size, put, out = math.prod(latent), case.inputs, case.expected
    put["in.v2.latent"], put["in.v2.noise"] = (Tensor(shape, gauss(draw, samples * size)) for _ in range(2))
    normal = gauss(draw, samples)
    put["in.v2.normal"] = numbers(normal, "F32")
    frames = latent[1]
    kinds = [draw.choice(list(PATTERNS)) for _ in range(draw.choice([1, 4]))]
    patterns = [[int(f in PATTERNS[kind](frames)) for f in range(frames)] for kind in kinds]
    mixed = [draw.randrange(len(kinds)) for _ in range(samples)]
    case.config["mask_patterns"] = kinds
    put["in.v2.mask_patterns"] = Tensor([len(kinds), frames], [g for row in patterns for g in row])
    put["in.v2.mixed_pattern"] = numbers(mixed, "I64")
    rows = [samples, latent[1] * latent[2] * latent[3] // 4, latent[0] * 4]
    places = packed(list(range(size)), latent, 2)
    for dtype in ("fp32", "bf16"):
        rounded = (lambda x: bf16(f32(x))) if dtype == "bf16" else f32
        times, noisy, target = [], [], []
        for s in range(samples):
            t = rounded(shifted(1 / (1 + math.exp(-normal[s])), case.config["v2_alpha"]))
            times.append(t)
            clean, noise = (put["in.v2." + name].values[s * size:(s + 1) * size] for name in ("latent", "noise"))
            x = [rounded(v) for v in clean], [rounded(v) for v in noise]
            back = rounded(1 - t)
            rest = rounded(1 - rounded((1 - LEAST) * back))
            noisy += [rounded(rounded(back * x[0][p]) + rounded(rest * x[1][p])) for p in places]
            target += [rounded(rounded((1 - LEAST) * x[1][p]) - x[0][p]) for p in places]
        name = "v2." + dtype + "."
        out[f"out.{name}t"] = numbers(times, "F32")
        out[f"out.{name}x_t"], out[f"out.{name}target"] = Tensor(rows, noisy), Tensor(rows, target)
        pred = [rounded(x) for x in gauss(draw, len(target))]
        put[f"in.{name}pred"] = Tensor(rows, pred)
        off = [p - t for p, t in zip(pred, target)]

        def mean_of(counts: list) -> tuple:
            """Each sample over its frames that count, then over samples; with the gradient."""
            total, gradient = 0.0, [0.0] * len(off)
            for s in range(samples):
                inside = [s * size + i for i, p in enumerate(places) if counts[s][frame_of(p, latent)]]
                total += sum(off[i] ** 2 for i in inside) / len(inside) / samples
                for i in inside:
                    gradient[i] = rounded(2 * off[i] / len(inside) / samples)
            return total, gradient

        loss, gradient = mean_of([[1] * frames] * samples)
        out[f"out.{name}loss"] = Tensor([], [loss])
        out[f"grad_in.{name}pred"] = Tensor(rows, gradient)
        out[f"out.{name}loss_per_pattern"] = numbers([mean_of([counted(given)] * samples)[0] for given in patterns], "F32")
        loss, gradient = mean_of([counted(patterns[k]) for k in mixed])
        out[f"out.{name}loss_mixed"] = Tensor([], [loss])
        out[f"grad_in.{name}mixed"] = Tensor(rows, gradient)


def third_run(draw: random.Random, case: Case, name: str, shape: list) -> dict:
    samples, channels, frames = shape[:3]
    size, put, drops = math.prod(shape[1:]), case.inputs, case.config["v13_drop_condition"]
    index, uses, u, drop = None, [], None, None
    if draw.random() < 0.6:
        index = sorted(draw.sample(range(frames), draw.randint(0, frames - 1)))
        if index:  # without one nothing is drawn
            u = draw.random()
            drop = chosen(drops, u)
        uses += draw.choice([[], ["x_noisy_ref"], ["x_gt"], ["x_gt", "x_noisy_ref"]]) if index else []
    else:
        uses += draw.choice([[], ["mask"], ["x_gt", "noise_disable_threshold"], ["x_gt"], ["mask", "x_gt"]])
    weight = draw.choice([1.0, 0.5, 0.2, 0.0])

    def own(input_name: str, s: int) -> list:
        return put["in.v13." + input_name].values[s * size:(s + 1) * size]

    null, wide = put["in.v13.y_embedding"].values, put["in.v13.y"].shape[2] * put["in.v13.y"].shape[3]
    found = {"cond": [], "y": [], "x_t": [], "loss": []}
    for s in range(samples):
        t, noise, clean = put["in.v13.t"].values[s], own("noise", s), own("x", s)
        wanted = own("x_gt", s) if "x_gt" in uses else clean
        if "noise_disable_threshold" in uses and t > case.config["v13_noise_disable_threshold"]:
            clean = wanted
        given = own("x_noisy_ref", s) if "x_noisy_ref" in uses else clean
        y = put["in.v13.y"].values[s * wide:(s + 1) * wide]
        cond = [x if index and frame_of(i, shape[1:]) in index else 0.0 for i, x in enumerate(given)]
        if index and drop in ("cond", "null"):
            y = null
        if index and drop in ("text", "null"):
            cond = [0.0] * size
        trained = put["in.v13.frame_mask"].values[s * frames:(s + 1) * frames] if "mask" in uses else [1] * frames
        # frames with 0 have no noise
        x_t = [f32((1 - t / 1000) * a + t / 1000 * b) if trained[frame_of(i, shape[1:])] else a
               for i, (a, b) in enumerate(zip(clean, noise))]
        inside = index or []
        rest = (frames - len(inside) * weight) / (frames - len(inside))
        total, count = 0.0, 0
        for i in range(size):
            f = frame_of(i, shape[1:])
            if not trained[f]:
                continue
            seen = 0.3 * math.sin(x_t[i]) + 0.1 * t / 1000 + 0.2 * cond[i] + 0.05 * (f in inside) + 0.02 * sum(y) / len(y)
            total += (wanted[i] - noise[i] - seen) ** 2 * (1 if not inside else weight if f in inside else rest)
            count += 1
        found["cond"] += cond
        found["y"] += y
        found["x_t"] += x_t
        found["loss"].append(total / count)
    shapes = {"cond": shape, "x_t": shape, "y": put["in.v13.y"].shape, "loss": [samples]}
    for what, values in found.items():
        case.expected[f"out.v13.{name}.{what}"] = Tensor(shapes[what], values)
    case.expected[f"out.v13.{name}.mean"] = Tensor([], [sum(found["loss"]) / samples])
    return {"mask_index": index, "x_cond_weight": weight, "drop_u": u, "drop": drop, "uses": uses}


def loss(draw: random.Random) -> Case:
    shape = [draw.choice([1, 2, 3]), draw.choice([1, 3]), draw.choice([3, 4, 5]), 2 * draw.choice([1, 2]), 2 * draw.choice([1, 3])]
    kinds = draw.sample(["cond", "text", "null", "keep"], draw.randint(1, 4))
    case = Case("opensora_loss", {"_class_name": "opensora_loss", "sigma_min": LEAST, "latent": shape,
                                  "v2_alpha": draw.uniform(0.3, 6), "v13_runs": {},
                                  "v13_drop_condition": {kind: draw.choice([0.05, 0.3, 1]) for kind in kinds},
                                  "v13_noise_disable_threshold": draw.choice([200.0, 500.0, 800.0])},
                tolerance={"out": {"rtol_of_max": 1e-5, "atol": 1e-6}, "grad": {"rtol_of_max": 1e-4, "atol": 1e-8}})
    loss_of_second(draw, case, shape)
    put, samples, frames = case.inputs, shape[0], shape[2]
    for name in ("noise", "x", "x_gt", "x_noisy_ref"):
        put["in.v13." + name] = Tensor(shape, gauss(draw, math.prod(shape)))
    put["in.v13.t"] = numbers([f32(draw.uniform(1, 1000)) for _ in range(samples)], "F32")
    put["in.v13.y"] = Tensor([samples, 1, 4, 6], gauss(draw, samples * 24))
    put["in.v13.y_embedding"] = Tensor([4, 6], gauss(draw, 24))
    rows = [[draw.randint(0, 1) for _ in range(frames)] for _ in range(samples)]
    for row in rows:
        row[draw.randrange(frames)] = 1
    put["in.v13.frame_mask"] = Tensor([samples, frames], [x for row in rows for x in row], "I64")
    for name in draw.sample(["one", "two", "three"], 3):
        case.config["v13_runs"][name] = third_run(draw, case, name, shape)
    return case


KINDS = {"opensora_timesteps": timesteps, "opensora_condition": condition, "opensora_masks": masks, "opensora_loss": loss}
