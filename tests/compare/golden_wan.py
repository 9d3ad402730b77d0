"""Wan's denoisers in plain code, with sizes and options that are drawn."""
import json
import math
import random

from golden_files import Case, Tensor, bf16, f32, numbers
from golden_networks import Adapted, BY_LARGEST, error, finish, modulate, thirds, rope3, grid, from_patches, patches
from plain import (Array, Weights, attention, cat, chunks, conv, gelu, gelu_tanh, heads, layer_norm, narrow,
                   noise, permute, relu, reshape, rms_norm, rotate, silu, sinusoid, sums, swap, take, unheads)


def wan_times(w: Weights, times: list, c: dict) -> tuple:
    d = c["dim"]
    e = w.linear("time_embedding.2", silu(w.linear("time_embedding.0", sinusoid(times, c["freq_dim"]), d)), d)
    return e, reshape(w.linear("time_projection.1", silu(e), 6 * d), -1, 6, d)


def wan_text(w: Weights, text: Array, c: dict) -> Array:
    missing = c["text_len"] - text.shape[0]
    padded = cat([text, Array([missing, c["text_dim"]], [0.0] * (missing * c["text_dim"]))]) if missing else text
    return w.linear("text_embedding.2", gelu_tanh(w.linear("text_embedding.0", padded, c["dim"])), c["dim"])


def wan_attention(w: Weights, name: str, x: Array, context: Array, c: dict, angles: list = None, image: Array = None):
    d, eps, n = c["dim"], c["eps"], c["num_heads"]
    q = heads(rms_norm(w.linear(name + ".q", x, d), w.norm(name + ".norm_q.weight", d), eps), n)

    def attended(part: str, rows_of: Array) -> Array:
        k = heads(rms_norm(w.linear(f"{name}.k{part}", rows_of, d), w.norm(f"{name}.norm_k{part}.weight", d), eps), n)
        v = heads(w.linear(f"{name}.v{part}", rows_of, d), n)
        if angles is None:
            return unheads(attention(q, k, v))
        return unheads(attention(rotate(q, angles, False), rotate(k, angles, False), v))

    y = attended("", context)
    if image is not None:
        y = y + attended("_img", image)
    return w.linear(name + ".o", y, d)


def wan_block(w: Weights, name: str, x: Array, e: Array, context: Array, image, angles: list, c: dict) -> Array:
    """e [1 or tokens, 6, d]"""
    d = c["dim"]
    m = [reshape(part, -1, d) for part in chunks(e + w(name + ".modulation", [1, 6, d], 0.3), 6, 1)]
    y = modulate(layer_norm(x, eps=c["eps"]), m[0], m[1])
    x = x + wan_attention(w, name + ".self_attn", y, y, c, angles) * m[2]
    y = layer_norm(x, w.norm(name + ".norm3.weight", d), w(name + ".norm3.bias", [d]), c["eps"])
    x = x + wan_attention(w, name + ".cross_attn", y, context, c, image=image)
    y = modulate(layer_norm(x, eps=c["eps"]), m[3], m[4])
    return x + w.linear(name + ".ffn.2", gelu_tanh(w.linear(name + ".ffn.0", y, c["ffn_dim"])), d) * m[5]


def wan_head(w: Weights, x: Array, e: Array, c: dict) -> Array:
    m = chunks(reshape(e, -1, 1, c["dim"]) + w("head.modulation", [1, 2, c["dim"]], 0.3), 2, 1)
    shift, scale = (reshape(part, -1, c["dim"]) for part in m)
    return w.linear("head.head", modulate(layer_norm(x, eps=c["eps"]), shift, scale), 4 * c["out_dim"])


def wan_image(w: Weights, features: Array, c: dict) -> Array:
    name, wide, d = "img_emb.proj.", c["image_dim"], c["dim"]
    y = layer_norm(features, w.norm(name + "0.weight", wide), w(name + "0.bias", [wide]), 1e-5)
    y = w.linear(name + "3", gelu(w.linear(name + "1", y, wide)), d)
    return layer_norm(y, w.norm(name + "4.weight", d), w(name + "4.bias", [d]), 1e-5)


def wan_forward(w: Weights, c: dict, x: Array, times: list, text: Array, y: Array = None, features: Array = None) -> Array:
    shape = x.shape[1:]
    tokens = patches(w, "patch_embedding", x if y is None else cat([x, y]), c["dim"], (1, 2, 2))
    e, e6 = wan_times(w, times, c)
    context = wan_text(w, text, c)
    image = None if features is None else wan_image(w, features, c)
    angles = rope3(grid(shape[0], shape[1] // 2, shape[2] // 2), thirds(c["dim"] // c["num_heads"]))
    for i in range(c["num_layers"]):
        tokens = wan_block(w, f"blocks.{i}", tokens, e6, context, image, angles, c)
    return from_patches(wan_head(w, tokens, e, c), c["out_dim"], shape, (1, 2, 2))


def wan_config(draw: random.Random, kind: str) -> dict:
    count = draw.choice([1, 2, 3])
    config = {"_class_name": "WanModel", "model_type": kind, "eps": 10 ** draw.uniform(-7, -3), "patch_size": [1, 2, 2],
              "window_size": [-1, -1], "qk_norm": True, "cross_attn_norm": True, "num_heads": count,
              "dim": count * draw.choice([6, 8, 10, 14]), "num_layers": draw.choice([1, 2]), "ffn_dim": draw.choice([7, 16, 23]),
              "freq_dim": draw.choice([6, 10, 32]), "text_dim": draw.choice([5, 8, 11]), "text_len": draw.choice([5, 7, 13]),
              "in_dim": 4, "out_dim": draw.choice([2, 3, 4, 5])}
    config["in_dim"] = 2 * config["out_dim"] + 4 if kind == "i2v" else config["out_dim"]
    if kind == "i2v":
        config["image_dim"] = draw.choice([3, 5])
    return config


def wan(draw: random.Random, kind: str = None, w: Weights = None) -> Case:
    kind = kind or draw.choice(["t2v", "i2v", "ti2v"])
    c = wan_config(draw, kind)
    case = Case("dit", c, tolerance=BY_LARGEST)
    w = w or Weights(draw)
    dtype, rounded = draw.choice([("F32", f32), ("BF16", bf16)])
    samples = []
    for i in range(draw.choice([1, 2])):
        shape = [draw.choice([1, 2, 3]), 2 * draw.choice([1, 2, 3]), 2 * draw.choice([1, 2, 3, 5])]
        x = noise(draw, [c["out_dim"], *shape], round_to=rounded)
        y = noise(draw, [c["in_dim"] - c["out_dim"], *shape]) if kind == "i2v" else None
        samples.append((x, noise(draw, [draw.randrange(1, c["text_len"] + 1), c["text_dim"]]), y, noise(draw, x.shape)))
    lengths = [x.shape[1] * x.shape[2] * x.shape[3] // 4 for x, *_ in samples]
    length = max(lengths) + draw.choice([0, 3])
    features = None
    if kind == "i2v":
        features = noise(draw, [len(samples), 257, c["image_dim"]])
        case.inputs["in.clip_fea"] = features.tensor()
    times = [[f32(draw.uniform(0, 1000))] for _ in samples]
    if kind == "ti2v":  # the first frame is given
        first = [n // x.shape[1] for n, (x, *_) in zip(lengths, samples)]
        times = [[0.0] * k + t * (length - k) for k, t in zip(first, times)]
    case.inputs["in.t"] = Tensor([len(samples), length] if kind == "ti2v" else [len(samples)], [t for row in times for t in row])
    case.inputs["in.seq_len"] = Tensor([], [length], "I64")
    outputs, wanted = [], {}
    for i, (x, text, y, target) in enumerate(samples):
        own = None if features is None else reshape(narrow(features, 0, i, 1), 257, -1)
        outputs.append(wan_forward(w, c, x, times[i][:lengths[i]], text, y, own))
        for name, array in (("x", x), ("context", text), ("y", y), ("target", target)):
            if array is not None:
                case.inputs[f"in.{name}.{i}"] = array.tensor()
                if name != "target":
                    wanted[f"{name}.{i}"] = array
        case.inputs[f"in.x.{i}"].dtype = dtype
        case.expected[f"out.{i}"] = outputs[-1].tensor()
    if isinstance(w, Adapted):  # a file that does not say its alpha has the scale 1
        scaled, w.alpha = w.alpha, w.rank
        for i, (x, text, y, _) in enumerate(samples):
            own = None if features is None else reshape(narrow(features, 0, i, 1), 257, -1)
            case.expected[f"out_scale1.{i}"] = wan_forward(w, c, x, times[i][:lengths[i]], text, y, own).tensor()
        w.alpha = scaled
    if features is not None:
        wanted["clip_fea"] = features
    return finish(case, w, error(outputs, [target for *_, target in samples]), wanted)


DIFFUSERS = {"self_attn": "attn1", "cross_attn": "attn2", "q": "to_q", "k": "to_k", "v": "to_v", "o": "to_out.0",
             "k_img": "add_k_proj", "v_img": "add_v_proj", "ffn": "ffn.net", "0": "0.proj", "2": "2"}


def diffusers_module(name: str) -> str:
    _, block, *rest = name.split(".")
    return ".".join(["blocks", block, *(DIFFUSERS[word] for word in rest)])


def wan_adapter(draw: random.Random) -> Case:
    """One LoRA in the namings of several programs."""
    rank, alpha, kind = draw.choice([1, 2, 3]), draw.choice([0.5, 1.0, 3.0, 8.0]), draw.choice(["t2v", "i2v"])
    targets = draw.sample(["q", "k", "v", "o", "ffn.0", "ffn.2"], draw.choice([1, 3, 6]))
    if kind == "i2v":
        targets += draw.sample(["k_img", "v_img"], draw.choice([0, 2]))
    w = Adapted(draw, rank, alpha, targets)
    w.on = True
    base = wan(draw, kind, w)
    config = {"_class_name": "LoRA", "base": "base", "base_config": base.config, "rank": rank, "alpha": alpha,
              "target_modules": targets}
    case = Case("lora", config, base.inputs, tolerance={"out": 1e-4, "loss": 1e-5, "grad": 1e-4})
    case.expected = {name: value for name, value in base.expected.items() if not name.startswith("grad")}
    case.tensors["base/model.safetensors"] = base.weights
    files = {name: {} for name in ("peft", "peft_nometa", "kohya", "diffsynth")}
    config["modules"] = []
    for name, down in w.adapter.all.items():
        if not name.endswith(".lora_A.weight"):
            continue
        module = name[len("transformer."):-len(".lora_A.weight")]
        config["modules"].append(module)
        up = w.adapter.all[f"transformer.{module}.lora_B.weight"]
        for part, array in (("A", down), ("B", up)):
            case.expected[f"grad.{module}.lora_{part}.weight"] = array.gradient()
            for file in ("peft", "peft_nometa"):
                files[file][f"transformer.{diffusers_module(module)}.lora_{part}.weight"] = array.tensor()
        short = "lora_unet_" + module.replace(".", "_")
        files["kohya"] |= {short + ".lora_down.weight": down.tensor(), short + ".lora_up.weight": up.tensor(),
                           short + ".alpha": Tensor([], [alpha])}
        files["diffsynth"] |= {module + ".lora_A.default.weight": down.tensor(),
                               module + ".lora_B.default.weight": (up * (alpha / rank)).tensor()}
    for file in draw.sample(sorted(files), draw.choice([1, 2, 4])):
        case.tensors[f"lora_{file}.safetensors"] = files[file]
    if not any(name.startswith("lora_") and "nometa" not in name for name in case.tensors):
        case.tensors["lora_kohya.safetensors"] = files["kohya"]
    about = {"transformer.r": rank, "transformer.lora_alpha": alpha}
    case.metadata["lora_peft.safetensors"] = {"format": "pt", "lora_adapter_metadata": json.dumps(about)}
    if "lora_peft_nometa.safetensors" not in case.tensors:
        case.expected = {name: value for name, value in case.expected.items() if not name.startswith("out_scale1")}
    return case


def experts(draw: random.Random) -> Case:
    """Two denoisers, of which the timestep chooses one."""
    c, folders = wan_config(draw, "t2v"), ["high_noise_model", "low_noise_model"]
    c.update({"experts": folders, "boundary": draw.choice([0.875, 0.9, 0.5]), "num_train_timesteps": draw.choice([1000, 500])})
    x = noise(draw, [c["out_dim"], draw.choice([1, 2]), 4, 2 * draw.choice([1, 2, 3])])
    text, target = noise(draw, [draw.randrange(1, c["text_len"] + 1), c["text_dim"]]), noise(draw, x.shape)
    edge = c["boundary"] * c["num_train_timesteps"]
    times = [edge, f32(edge * draw.random()), f32(edge + (1000 - edge) * draw.random()), f32(edge * draw.random())]
    both, outputs = [Weights(draw) for _ in folders], []
    for t in times:
        outputs.append(wan_forward(both[t < edge], c, x, [t], text))
    for w in both:  # both have all of their weights, whichever times are drawn
        wan_forward(w, c, x, [0.0], text)
    case = Case("dit_moe", c, {"in.x": x.tensor(), "in.context": text.tensor(), "in.target": target.tensor(),
                               "in.t": numbers(times, "F32")}, tolerance=BY_LARGEST)
    finish(case, both[0], error(outputs, [target] * len(times)), {})
    case.expected = {name: value for name, value in case.expected.items() if not name.startswith("grad")}
    case.expected.update({f"out.{i}": out.tensor() for i, out in enumerate(outputs)})
    case.expected["out.expert"] = numbers([int(t < edge) for t in times], "I64")
    case.weights = {}
    for folder, w in zip(folders, both):
        case.expected.update(w.gradients(f"grad.{folder}."))
        case.tensors[folder + "/model.safetensors"] = w.tensors()
    return case


# S2V

SOUND_LAYERS = 25        # a constant of the reference
REPEATED, MOTION = 73, 19  # rows of sound before the clip, and frames before it


def s2v_motion(w: Weights, motion: Array, c: dict) -> tuple:
    """Tokens of the frames before the clip, fine ones of the last and coarse ones of those before, and their places."""
    if motion.shape[1] < MOTION:
        missing = [motion.shape[0], MOTION - motion.shape[1], *motion.shape[2:]]
        motion = cat([Array(missing, [0.0] * math.prod(missing)), motion], 1)
    height, width = motion.shape[2] // 2, motion.shape[3] // 2
    tokens, places = [], []

    def even(first: int, last: int, count: int) -> list:
        return [int(first + (last - first) * i / (count - 1)) if count > 1 else first for i in range(count)]

    for name, begin, count, k in (("proj", 18, 1, 1), ("proj_2x", 16, 2, 2), ("proj_4x", 0, 16, 4)):
        part = narrow(motion, 1, begin + motion.shape[1] - MOTION, count)
        tokens.append(patches(w, "frame_packer." + name, part, c["dim"], (k, 2 * k, 2 * k)))
        start = MOTION - begin
        times = [-t for t in even(start, start - count + 1, count // k)]
        places += [(t, y, x) for t in times for y in even(0, height - 1, height // k) for x in even(0, width - 1, width // k)]
    return cat(tokens), places


def s2v_causal(w: Weights, name: str, x: Array, out: int, stride: int) -> Array:
    """Of [channels, rows], whose first row is repeated in front."""
    padded = cat([narrow(x, 1, 0, 1), narrow(x, 1, 0, 1), x], 1)
    y = swap(w.conv(f"casual_audio_encoder.encoder.{name}.conv", padded, out, [3], stride=[stride]))
    return swap(silu(layer_norm(y)))


def s2v_sound(w: Weights, audio: Array, c: dict) -> tuple:
    """[layers, width, rows] to tokens [frames][num_audio_token + 1, d] and one vector a frame."""
    d, encoder = c["dim"], "casual_audio_encoder."
    weights = silu(w(encoder + "weights", [1, SOUND_LAYERS, 1, 1], 0.5, 0.5))
    share = reshape(weights, SOUND_LAYERS, 1, 1) / reshape(sums(reshape(weights, -1)), 1, 1, 1)
    mixed = reshape(sums(swap(reshape(audio * share, SOUND_LAYERS, -1))), *audio.shape[1:])
    sound = cat([narrow(mixed, 1, 0, 1)] * REPEATED + [mixed], 1)

    def later(x: Array) -> Array:
        return s2v_causal(w, "conv3", s2v_causal(w, "conv2", x, d // 2, 2), d, 2)

    def first(name: str, parts: int) -> list:
        padded = cat([narrow(sound, 1, 0, 1), narrow(sound, 1, 0, 1), sound], 1)
        y = w.conv(f"{encoder}encoder.{name}.conv", padded, parts * (d // 4), [3])
        return [later(swap(silu(layer_norm(swap(part))))) for part in chunks(y, parts, 0)]

    count = c["num_audio_token"]
    local, one = first("conv1_local", count), first("conv1_global", 1)[0]
    vectors = w.linear(encoder + "encoder.final_linear", swap(one), d)
    learned = reshape(w(encoder + "encoder.padding_tokens", [1, 1, 1, d], 0.5), 1, d)
    frames = range(MOTION, one.shape[1])
    return ([cat([*(reshape(narrow(head, 1, f, 1), 1, d) for head in local), learned]) for f in frames],
            [narrow(vectors, 0, f, 1) for f in frames])


def s2v_forward(w: Weights, c: dict, given: dict, t: float) -> Array:
    d, shape = c["dim"], given["x"].shape[1:]
    height, width = shape[1] // 2, shape[2] // 2
    pose = patches(w, "cond_encoder", given["cond_states"], d, (1, 2, 2))
    noisy = patches(w, "patch_embedding", given["x"], d, (1, 2, 2)) + pose
    still = patches(w, "patch_embedding", given["ref_latents"], d, (1, 2, 2))
    mask = w("trainable_cond_mask.weight", [3, d], 0.5)
    parts, places = [noisy, still], grid(*shape[:1], height, width) + [(30, y, x) for _, y, x in grid(1, height, width)]
    if given.get("motion_latents"):
        tokens, of_motion = s2v_motion(w, given["motion_latents"], c)
        parts.append(tokens)
        places += of_motion
    x = cat([part + narrow(mask, 0, i, 1) for i, part in enumerate(parts)])
    e, e6 = wan_times(w, [t, 0.0], c)
    count = noisy.shape[0]
    by_token = take(e6, [(0 if i < count else 1) * 6 * d + k for i in range(x.shape[0]) for k in range(6 * d)], [x.shape[0], 6, d])
    context, angles = wan_text(w, given["context"], c), rope3(places, thirds(d // c["num_heads"]))
    sound, vectors = s2v_sound(w, given["audio"], c)
    for i in range(c["num_layers"]):
        x = wan_block(w, f"blocks.{i}", x, by_token, context, None, angles, c)
        if i not in c["audio_inject_layers"]:
            continue
        at, frame, heard = c["audio_inject_layers"].index(i), height * width, []
        for f in range(shape[0]):
            m = w.linear(f"audio_injector.injector_adain_layers.{at}.linear", silu(vectors[f]), 2 * d)
            y = modulate(layer_norm(narrow(x, 0, f * frame, frame), eps=1e-5), *chunks(m, 2))
            heard.append(wan_attention(w, f"audio_injector.injector.{at}", y, sound[f], c))
        x = cat([narrow(x, 0, 0, count) + cat(heard), narrow(x, 0, count, x.shape[0] - count)])
    y = wan_head(w, narrow(x, 0, 0, count), narrow(e, 0, 0, 1), c)
    return from_patches(y, c["out_dim"], tuple(shape), (1, 2, 2))


def s2v(draw: random.Random) -> Case:
    c = wan_config(draw, "t2v")
    layers = draw.choice([2, 3])
    c.update({"_class_name": "WanModel_S2V", "model_type": "s2v", "cond_dim": draw.choice([2, 3]), "enable_adain": True,
              "adain_mode": "attn_norm", "zero_init": True, "zero_timestep": True, "enable_motioner": False,
              "add_last_motion": True, "enable_tsm": False, "enable_framepack": True, "framepack_drop_mode": "padd",
              "trainable_token_pos_emb": False, "motion_token_num": 1024, "num_heads": 2, "dim": draw.choice([12, 20]),
              "num_layers": layers, "audio_dim": draw.choice([3, 5]), "num_audio_token": draw.choice([1, 2, 4]),
              "audio_inject_layers": sorted(draw.sample(range(layers), draw.choice([1, layers])))})
    w, drops, shape = Weights(draw), draw.random() < 0.3, [draw.choice([1, 2, 3]), 8, draw.choice([8, 16])]
    channels, count = c["out_dim"], draw.choice([1, 2])
    case = Case("dit_s2v", c, tolerance=BY_LARGEST)
    audio = noise(draw, [count, SOUND_LAYERS, c["audio_dim"], 4 * shape[0]])
    times = [f32(draw.uniform(0, 1000)) for _ in range(count)]
    case.inputs = {"in.audio_input": audio.tensor(), "in.t": numbers(times, "F32"),
                   "in.motion_frames": numbers([REPEATED, MOTION], "I64")}
    frames, outputs, targets, wanted = draw.choice([5, MOTION, 21]), [], [], {"audio_input": audio}
    for i in range(count):
        given = {"x": noise(draw, [channels, *shape]), "ref_latents": noise(draw, [channels, 1, *shape[1:]]),
                 "cond_states": noise(draw, [c["cond_dim"], *shape]), "motion_latents": noise(draw, [channels, frames, *shape[1:]]),
                 "context": noise(draw, [draw.randrange(1, c["text_len"] + 1), c["text_dim"]])}
        case.inputs.update({f"in.{name}.{i}": array.tensor() for name, array in given.items()})
        if drops:
            s2v_motion(w, given.pop("motion_latents"), c)  # its weights are in the file all the same
        wanted.update({f"{name}.{i}": array for name, array in given.items()})
        own = reshape(narrow(audio, 0, i, 1), *audio.shape[1:])
        outputs.append(s2v_forward(w, c, {**given, "audio": own}, times[i]))
        targets.append(noise(draw, outputs[-1].shape))
        case.inputs[f"in.target.{i}"], case.expected[f"out.{i}"] = targets[-1].tensor(), outputs[-1].tensor()
    if drops:
        case.about["files"] = {"case.safetensors": "drop_motion_frames=True"}
    return finish(case, w, error(outputs, targets), wanted)


def vace_forward(w: Weights, c: dict, x: Array, seen: Array, times: list, text: Array, scale: float) -> Array:
    d, shape = c["dim"], x.shape[1:]
    tokens = patches(w, "patch_embedding", x, d, (1, 2, 2))
    e, e6 = wan_times(w, times, c)
    context = wan_text(w, text, c)
    angles = rope3(grid(shape[0], shape[1] // 2, shape[2] // 2), thirds(d // c["num_heads"]))
    beside = w.linear("vace_blocks.0.before_proj", patches(w, "vace_patch_embedding", seen, d, (1, 2, 2)), d) + tokens
    hints = {}
    for j, layer in enumerate(c["vace_layers"]):
        beside = wan_block(w, f"vace_blocks.{j}", beside, e6, context, None, angles, c)
        hints[layer] = w.linear(f"vace_blocks.{j}.after_proj", beside, d)
    for i in range(c["num_layers"]):
        tokens = wan_block(w, f"blocks.{i}", tokens, e6, context, None, angles, c)
        if i in hints:
            tokens = tokens + hints[i] * scale
    return from_patches(wan_head(w, tokens, e, c), c["out_dim"], shape, (1, 2, 2))


def vace(draw: random.Random) -> Case:
    c = wan_config(draw, "t2v")
    layers = draw.choice([1, 2, 3])
    c.update({"_class_name": "VaceWanModel", "model_type": draw.choice(["vace", "t2v"]), "num_layers": layers,
              "vace_in_dim": draw.choice([2, 5, 9]), "vace_layers": [0] + sorted(draw.sample(range(1, layers), draw.randrange(layers)))})
    case, w, scale = Case("dit_vace", c, tolerance={**BY_LARGEST, "prep_out": 1e-4}), Weights(draw), f32(draw.choice([1, draw.uniform(0.2, 2)]))
    count, outputs, targets, wanted = draw.choice([1, 2]), [], [], {}
    times = [f32(draw.uniform(0, 1000)) for _ in range(count)]
    for i in range(count):
        shape = [draw.choice([1, 2, 3]), 2 * draw.choice([1, 2, 3]), 2 * draw.choice([1, 2, 4])]
        given = {"x": noise(draw, [c["out_dim"], *shape]), "vace_context": noise(draw, [c["vace_in_dim"], *shape]),
                 "context": noise(draw, [draw.randrange(1, c["text_len"] + 1), c["text_dim"]])}
        case.inputs.update({f"in.{name}.{i}": array.tensor() for name, array in given.items()})
        wanted.update({f"{name}.{i}": array for name, array in given.items()})
        outputs.append(vace_forward(w, c, given["x"], given["vace_context"], [times[i]], given["context"], scale))
        targets.append(noise(draw, outputs[-1].shape))
        case.inputs[f"in.target.{i}"], case.expected[f"out.{i}"] = targets[-1].tensor(), outputs[-1].tensor()
    tokens = [target.shape[1] * target.shape[2] * target.shape[3] // 4 for target in targets]
    case.inputs.update({"in.t": numbers(times, "F32"), "in.vace_context_scale": Tensor([], [scale]),
                        "in.seq_len": Tensor([], [max(tokens) + draw.choice([0, 3])], "I64")})
    return finish(case, w, error(outputs, targets), wanted)


def camera_tokens(w: Weights, rays: Array, scale: int, d: int) -> Array:
    """Of [C, F, scale * H, scale * W]: cells become channels, then two convolutions beside what they are added to."""
    channels, frames, height, width = rays.shape[0], rays.shape[1], rays.shape[2] // scale, rays.shape[3] // scale
    cells = permute(reshape(rays, channels, frames, height, scale, width, scale), 0, 3, 5, 1, 2, 4)
    rows = patches(w, "control_adapter.conv", reshape(cells, channels * scale * scale, frames, height, width), d, (2, 2))
    x = permute(reshape(rows, frames, height // 2, width // 2, d), 3, 0, 1, 2)

    def convolved(y: Array, name: str) -> Array:
        weight = reshape(w(f"control_adapter.residual_blocks.0.{name}.weight", [d, d, 3, 3]), d, d, 1, 3, 3)
        return conv(y, weight, w(f"control_adapter.residual_blocks.0.{name}.bias", [d]), pad=[0, 1, 1])

    x = x + convolved(relu(convolved(x, "conv1")), "conv2")
    return reshape(permute(x, 1, 2, 3, 0), -1, d)


def fun_forward(w: Weights, c: dict, given: dict, times: list, reference: Array, features: Array) -> Array:
    d, x = c["dim"], given["x"]
    frames, height, width = x.shape[1], x.shape[2] // 2, x.shape[3] // 2
    tokens = patches(w, "patch_embedding", cat([x, given["y"]]), d, (1, 2, 2))
    if "y_camera" in given:
        tokens = tokens + camera_tokens(w, given["y_camera"], c["downscale_factor_control_adapter"], d)
    first = 0
    if reference is not None:
        first = height * width
        tokens = cat([patches(w, "ref_conv", reshape(reference, reference.shape[0], 1, *reference.shape[1:]), d, (2, 2)), tokens])
        times = times[-1:] * first + times if len(times) > 1 else times
        frames += 1
    e, e6 = wan_times(w, times, c)
    context, image = wan_text(w, given["context"], c), None if features is None else wan_image(w, features, c)
    angles = rope3(grid(frames, height, width), thirds(d // c["num_heads"]))
    for i in range(c["num_layers"]):
        tokens = wan_block(w, f"blocks.{i}", tokens, e6, context, image, angles, c)
    y = narrow(wan_head(w, tokens, e, c), 0, first, tokens.shape[0] - first)
    return from_patches(y, c["out_dim"], x.shape[1:], (1, 2, 2))


def fun(draw: random.Random) -> Case:
    """VideoX-Fun's: what its conditions are, and whether they come with CLIP's features, is drawn as its releases have them."""
    c = wan_config(draw, "t2v")
    out = draw.choice([2, 3, 5])
    kind = draw.choice(["inp", "control", "control_reference", "camera", "masked_control", "masked_camera"])
    second, five = kind.startswith("masked") or (kind == "inp" and draw.random() < 0.5), False
    if second and draw.random() < 0.4:
        five = True
    wide = {"inp": 4 + out, "control": 2 * out, "control_reference": 2 * out, "camera": out, "masked_control": 4 + 2 * out,
            "masked_camera": 4 + out}[kind]
    c.update({"_class_name": "Wan2_2Transformer3DModel" if second else "WanTransformer3DModel", "model_type": "ti2v" if five else "i2v",
              "out_dim": out, "in_dim": out + wide})
    if not second:
        c["image_dim"] = draw.choice([3, 5])
    if kind in ("control_reference", "masked_control"):
        c.update({"add_ref_conv": True, "in_dim_ref_conv": out})
    if kind.endswith("camera"):
        c.update({"add_control_adapter": True, "in_dim_control_adapter": draw.choice([3, 24]),
                  "downscale_factor_control_adapter": draw.choice([2, 4])})
    case, w = Case("dit_fun", c, tolerance={**BY_LARGEST, "prep_out": 1e-4, "plucker": 1e-5}), Weights(draw)
    count, shape = draw.choice([1, 2]), [draw.choice([1, 2, 3]), 2 * draw.choice([1, 2]), 2 * draw.choice([1, 2, 3])]
    tokens = shape[0] * shape[1] * shape[2] // 4
    times = [[f32(draw.uniform(0, 1000))] for _ in range(count)]
    if five:  # the first frame is given
        times = [[0.0] * (tokens // shape[0]) + t * (tokens - tokens // shape[0]) for t in times]
    case.inputs["in.t"] = Tensor([count, tokens] if five else [count], [t for row in times for t in row])
    case.inputs["in.seq_len"] = Tensor([], [tokens], "I64")
    wanted, outputs, targets, without = {}, [], [], {}
    features = None if second else noise(draw, [count, 257, c["image_dim"]])
    reference = noise(draw, [count, out, *shape[1:]]) if "add_ref_conv" in c else None
    for name, shared in (("clip_fea", features), ("full_ref", reference)):
        if shared is not None:
            case.inputs["in." + name], wanted[name] = shared.tensor(), shared
    for i in range(count):
        given = {"x": noise(draw, [out, *shape]), "y": noise(draw, [wide, *shape]),
                 "context": noise(draw, [draw.randrange(1, c["text_len"] + 1), c["text_dim"]])}
        if kind.endswith("camera"):
            scale = c["downscale_factor_control_adapter"]
            given["y_camera"] = noise(draw, [c["in_dim_control_adapter"], shape[0], scale * shape[1], scale * shape[2]])
        case.inputs.update({f"in.{name}.{i}": array.tensor() for name, array in given.items()})
        wanted.update({f"{name}.{i}": array for name, array in given.items()})
        own = [None if all is None else reshape(narrow(all, 0, i, 1), *all.shape[1:]) for all in (reference, features)]
        outputs.append(fun_forward(w, c, given, times[i], *own))
        if reference is not None and not five:
            without[f"out_no_ref.{i}"] = fun_forward(w, c, given, times[i], None, own[1]).tensor()
        targets.append(noise(draw, outputs[-1].shape))
        case.inputs[f"in.target.{i}"], case.expected[f"out.{i}"] = targets[-1].tensor(), outputs[-1].tensor()
    case.expected.update(without)
    return finish(case, w, error(outputs, targets), wanted)


KINDS = {"wan_vace": vace, "wan_fun": fun, "wan_lora": wan_adapter, "wan_t2v": lambda draw: wan(draw, "t2v"), "wan_i2v": lambda draw: wan(draw, "i2v"),
         "wan_ti2v": lambda draw: wan(draw, "ti2v"), "wan_s2v": s2v, "wan_experts": experts}
