"""Denoisers of Sana, Sana-Sprint and SANA-Video in plain code, with sizes and options that are drawn."""
import json
import math
import random

from golden_files import Case, Tensor, f32, numbers
from golden_networks import Adapted, OF_DIFFUSERS, finish, modulate, thirds, rope3, grid, from_patches, patches, positions2
from plain import (Array, IllConditioned, attention, backward, cat, chunks, forget, gelu_tanh, heads, layer_norm, linear, mean,
                   narrow, noise, products, relu, reshape, rms_norm, rotate, silu, sinusoid, square, stack, sums, swap,
                   unheads, Weights)


def sana_config(draw: random.Random, video: bool) -> dict:
    # with few channels a head may have one that is not 0, of which its attention does not depend: gradients are rounding
    head = draw.choice([8, 10, 14]) if video else draw.choice([7, 8, 11])
    count = draw.choice([2, 4]) if not video else 2
    d = head * count
    patch = draw.choice([1, 2])
    config = {"out_channels": 3, "dropout": 0.0, "attention_bias": False, "norm_elementwise_affine": False,
              "norm_eps": 10 ** draw.uniform(-7, -3), "guidance_embeds": not video and draw.random() < 0.5,
              "guidance_embeds_scale": draw.choice([0.1, 0.25]), "qk_norm": draw.choice([None, "rms_norm_across_heads"]),
              "interpolation_scale": None, "in_channels": 3, "num_attention_heads": count, "attention_head_dim": head,
              "num_layers": draw.choice([1, 2]), "num_cross_attention_heads": 2, "cross_attention_head_dim": d // 2,
              "cross_attention_dim": d, "caption_channels": draw.choice([5, 8]), "mlp_ratio": draw.choice([1.3, 2.0, 2.5]),
              "sample_size": draw.choice([4, 8]), "_class_name": "SanaTransformer2DModel"}
    if video:
        config.update({"patch_size": [1, patch, draw.choice([1, 2])], "rope_max_seq_len": 64,
                       "_class_name": "SanaVideoTransformer3DModel"})
    else:
        config.update({"patch_size": patch, "timestep_scale": draw.choice([1.0, 0.5])})
        if d % 4 == 0:
            config["interpolation_scale"] = draw.choice([None, 0.5, 2.0])
    return config


def sana_times(w: Weights, times: list, guidance: float, d: int) -> tuple:
    inner = "time_embed." if guidance is not None else "time_embed.emb."

    def embedded(name: str, values: list) -> Array:
        return w.linear(name + ".linear_2", silu(w.linear(name + ".linear_1", sinusoid(values, 256), d)), d)

    e = embedded(inner + "timestep_embedder", times)
    if guidance is not None:
        e = e + embedded("time_embed.guidance_embedder", [guidance])
    return e, reshape(w.linear("time_embed.linear", silu(e), 6 * d), -1, 6, d)


def sana_attention(w: Weights, name: str, x: Array, c: dict, angles: list) -> Array:
    d, n = x.shape[-1], c["num_attention_heads"]

    def projected(part: str) -> Array:
        y = w.linear(f"{name}.to_{part}", x, d, bias=False)
        return relu(rms_norm(y, w.norm(f"{name}.norm_{part}.weight", d), 1e-5) if c["qk_norm"] else y)

    q, k = heads(projected("q"), n), heads(projected("k"), n)
    v = heads(w.linear(name + ".to_v", x, d, bias=False), n)
    turned_q, turned_k = (rotate(a, angles, False) for a in (q, k)) if angles else (q, k)
    above = products(turned_q, products(swap(v), swap(turned_k)))  # [heads, n, d]
    below = products(q, reshape(sums(swap(k)), n, 1, -1)) + 1e-15
    if min(below.v) < 1e-4:  # no feature of the query is one of the keys': what is turned is divided by 1e-15
        raise IllConditioned
    return w.linear(name + ".to_out.0", unheads(above / below), d)


def sana_cross(w: Weights, name: str, x: Array, context: Array, c: dict) -> Array:
    d, n = x.shape[-1], c["num_cross_attention_heads"]
    q, k, v = w.linear(name + ".to_q", x, d), w.linear(name + ".to_k", context, d), w.linear(name + ".to_v", context, d)
    if c["qk_norm"]:
        q, k = (rms_norm(a, w.norm(f"{name}.norm_{part}.weight", d), 1e-5) for part, a in (("q", q), ("k", k)))
    return w.linear(name + ".to_out.0", unheads(attention(heads(q, n), heads(k, n), heads(v, n))), d)


def sana_mix(w: Weights, name: str, x: Array, c: dict, size: tuple) -> Array:
    d, hidden, frame = x.shape[-1], int(c["mlp_ratio"] * x.shape[-1]), size[1] * size[2]
    frames = []
    for f in range(size[0]):
        y = reshape(swap(narrow(x, 0, f * frame, frame)), d, size[1], size[2])
        y = silu(w.conv(name + ".conv_inverted", y, 2 * hidden, [1, 1]))
        value, gate = chunks(w.conv(name + ".conv_depth", y, 2 * hidden, [3, 3], groups=2 * hidden, pad=1), 2, 0)
        y = w.conv(name + ".conv_point", value * silu(gate), d, [1, 1], bias=False)
        frames.append(swap(reshape(y, d, -1)))
    y = cat(frames)
    if c["_class_name"] == "SanaTransformer2DModel":
        return y
    in_time = reshape(swap(y), d, size[0], frame)
    in_time = w.conv(name + ".conv_temp", in_time, d, [3, 1], bias=False, pad=[1, 0])
    return y + swap(reshape(in_time, d, -1))


def sana_forward(w: Weights, c: dict, x: Array, times: list, text: Array, guidance: float) -> Array:
    """x [C, F, H, W]; a timestep, or one for each frame."""
    d, video = c["cross_attention_dim"], c["_class_name"] != "SanaTransformer2DModel"
    patch = tuple(c["patch_size"]) if video else (1, c["patch_size"], c["patch_size"])
    size = tuple(n // p for n, p in zip(x.shape[1:], patch))
    tokens = patches(w, "patch_embedding", x, d, patch) if video else patches(w, "patch_embed.proj", x, d, patch[1:])
    if c["interpolation_scale"]:
        base = c["sample_size"] // c["patch_size"]
        tokens = tokens + positions2(size[1], size[2], d, *(lambda i, n=n: i / (n / base) / c["interpolation_scale"]
                                                            for n in size[1:]))
    if len(times) > 1:
        times = [t for t in times for _ in range(size[1] * size[2])]
    e, e6 = sana_times(w, times, guidance, d)
    words = w.linear("caption_projection.linear_1", text, d)
    context = rms_norm(w.linear("caption_projection.linear_2", gelu_tanh(words), d), w.norm("caption_norm.weight", d), 1e-5)
    angles = rope3(grid(*size), thirds(c["attention_head_dim"])) if video else None
    for i in range(c["num_layers"]):
        name = f"transformer_blocks.{i}"
        m = [reshape(part, -1, d) for part in chunks(e6 + w(name + ".scale_shift_table", [6, d], 0.3), 6, 1)]
        y = modulate(layer_norm(tokens, eps=c["norm_eps"]), m[0], m[1])
        tokens = tokens + sana_attention(w, name + ".attn1", y, c, angles) * m[2]
        tokens = tokens + sana_cross(w, name + ".attn2", tokens, context, c)
        y = modulate(layer_norm(tokens, eps=c["norm_eps"]), m[3], m[4])
        tokens = tokens + sana_mix(w, name + ".ff", y, c, size) * m[5]
    shift, scale = chunks(w("scale_shift_table", [2, d], 0.3), 2, 0)
    y = modulate(layer_norm(tokens, eps=1e-6), e + shift, e + scale)
    y = w.linear("proj_out", y, math.prod(patch) * c["out_channels"])
    return from_patches(y, c["out_channels"], tuple(x.shape[1:]), patch)


def sana_adapter(draw: random.Random) -> Case:
    rank, alpha = draw.choice([1, 2, 3]), draw.choice([1, 3, 8])
    targets = draw.sample(["to_q", "to_k", "to_v", "to_out.0"], draw.choice([1, 2, 4]))
    w = Adapted(draw, rank, alpha, targets)
    case = sana(draw, w=w)
    case.kind = "lora_sana"
    case.config["_lora"] = {"r": rank, "lora_alpha": alpha, "target_modules": targets}
    file = "pytorch_lora_weights.safetensors"
    case.tensors[file] = w.adapter.tensors()
    about = {"transformer.r": rank, "transformer.lora_alpha": alpha, "transformer.target_modules": targets}
    case.metadata[file] = {"format": "pt", "lora_adapter_metadata": json.dumps(about)}
    case.expected = {name: value for name, value in case.expected.items() if not name.startswith("grad")}
    case.expected.update(w.adapter.gradients())
    module = draw.choice([name[len("transformer."):-len(".lora_A.weight")] for name in w.adapter.all if ".lora_A" in name])
    down, up = (w.adapter.all[f"transformer.{module}.lora_{part}.weight"] for part in "AB")
    merged = w.all[module + ".weight"] + products(up, swap(down)) * (alpha / rank)
    forget()
    case.expected[f"out.merged.{module}.weight"] = merged.tensor()
    case.about = {}
    return case


def sana(draw: random.Random, video: bool = False, w: Weights = None) -> Case:
    c = sana_config(draw, video)
    w = w or Weights(draw)
    count, length = draw.choice([1, 2]), draw.choice([4, 7])
    patch = c["patch_size"][1:] if video else [c["patch_size"]] * 2
    sides = [p * draw.choice([1, 2, 3, 5]) for p in patch]
    if sides == list(patch):  # of a single token the gradient of linear attention's keys is nothing but rounding
        sides[draw.randrange(2)] *= draw.choice([2, 3, 5])
    frames = draw.choice([1, 2, 3]) if video else 1
    shape = [count, 3, frames, *sides] if video else [count, 3, *sides]
    x, target = noise(draw, shape), noise(draw, shape)
    text, own = noise(draw, [count, length, c["caption_channels"]]), [draw.randrange(1, length + 1) for _ in range(count)]
    by_frame = video and draw.random() < 0.5
    guidance = [f32(draw.uniform(0.1, 1)) for _ in range(count)] if c["guidance_embeds"] else None
    top = 1.0 if guidance else 1000.0
    times = [[f32(draw.uniform(0, top)) for _ in range(frames if by_frame else 1)] for _ in range(count)]

    def run() -> Array:
        outputs = []
        for i in range(count):
            latent = reshape(narrow(x, 0, i, 1), 3, frames, *sides)
            words = narrow(reshape(narrow(text, 0, i, 1), length, -1), 0, 0, own[i])
            y = sana_forward(w, c, latent, times[i], words, guidance[i] if guidance else None)
            outputs.append(reshape(y, *shape[1:]))
        return stack(outputs)

    case = Case("sana_video" if video else "sana_transformer", c, tolerance=OF_DIFFUSERS)
    case.inputs = {"in.hidden_states": x.tensor(), "in.target": target.tensor(), "in.encoder_hidden_states": text.tensor(),
                   "in.encoder_attention_mask": Tensor([count, length], [int(j < n) for n in own for j in range(length)], "I64"),
                   "in.timestep": numbers([row[0] for row in times], "F32")}
    if by_frame:
        case.inputs["in.timestep_frames"] = Tensor([count, frames], [t for row in times for t in row])
    if guidance:
        case.inputs["in.guidance"] = numbers(guidance, "F32")
    if isinstance(w, Adapted):
        case.expected["out.sample_base"] = run().tensor()
        forget()
        w.on = True
    out = run()
    case.expected["out.sample"] = out.tensor()
    case.about["grads_that_are_zero_in_exact_arithmetic"] = [name for name in w.all if name.endswith("attn2.to_k.bias")]
    return finish(case, w, mean(square(out - target)), {"hidden_states": x, "encoder_hidden_states": text})


OFFICIAL = [("time_embed.emb.timestep_embedder.linear_1", "t_embedder.mlp.0"),
            ("time_embed.emb.timestep_embedder.linear_2", "t_embedder.mlp.2"), ("time_embed.linear", "t_block.1"),
            *((f"time_embed.{theirs}_embedder.linear_{k}", f"{ours}_embedder.mlp.{2 * k - 2}")
              for theirs, ours in (("timestep", "t"), ("guidance", "cfg")) for k in (1, 2)),
            ("patch_embed.proj", "x_embedder.proj"), ("patch_embedding", "x_embedder.proj"),
            ("caption_projection.linear_1", "y_embedder.y_proj.fc1"), ("caption_projection.linear_2", "y_embedder.y_proj.fc2"),
            ("caption_norm", "attention_y_norm"), ("proj_out", "final_layer.linear"), ("transformer_blocks.", "blocks."),
            (".attn1.", ".attn."), (".attn2.", ".cross_attn."), (".to_out.0", ".proj"), (".cross_attn.to_q", ".cross_attn.q_linear"),
            (".norm_q", ".q_norm"), (".norm_k", ".k_norm"), (".ff.conv_inverted", ".mlp.inverted_conv.conv"),
            (".ff.conv_depth", ".mlp.depth_conv.conv"), (".ff.conv_point", ".mlp.point_conv.conv"),
            (".ff.conv_temp", ".mlp.t_conv")]


def official(tensors: dict) -> dict:
    """Shapes under NVlabs' names: q, k and v of self-attention are one tensor, k and v of cross-attention another."""
    found = {}
    for name, shape in tensors.items():
        if name == "scale_shift_table":
            name = "final_layer.scale_shift_table"
        for ours, theirs in OFFICIAL:
            name = name.replace(ours, theirs)
        for part, whole in ((".attn.to_q.", ".attn.qkv."), (".attn.to_k.", ".attn.qkv."), (".attn.to_v.", ".attn.qkv."),
                            (".cross_attn.to_k.", ".cross_attn.kv_linear."), (".cross_attn.to_v.", ".cross_attn.kv_linear.")):
            name = name.replace(part, whole)
        found[name] = [found[name][0] + shape[0], *shape[1:]] if name in found else list(shape)
    return found


def published(draw: random.Random) -> Case:
    """Names and shapes alone."""
    video = draw.random() < 0.5
    model = sana(draw, video)
    forget()
    tensors = {name: tensor.shape for name, tensor in model.weights.items()}
    case = Case("published_shapes", {}, tolerance={"rule": "exact"})
    config = {key: value for key, value in model.config.items() if key != "_class_name"}
    parameters = sum(math.prod(shape) for shape in tensors.values())
    case.files["drawn.json"] = {"_class_name": model.config["_class_name"], "config": config, "parameters": parameters,
                                "count": len(tensors), "tensors": tensors}
    if draw.random() < 0.7:
        case.files["drawn.json"]["original"] = official(tensors) | {"y_embedder.y_embedding": [3, config["caption_channels"]]}
    case.about["models"] = {"drawn": {"parameters": parameters, "tensors": len(tensors)}}
    case.settings = "drawn.json"

    def alter(files: dict, draw: random.Random) -> None:
        table = files["drawn.json"][draw.choice([key for key in ("tensors", "original") if key in files["drawn.json"]])]
        table[draw.choice([name for name in table if name != "y_embedder.y_embedding"])][0] += 1

    case.alter = alter
    return case


def matching(draw: random.Random) -> Case:
    """The step of a generator that is matched with a frozen score, and that of the score which follows it."""
    c = sana_config(draw, video=True)
    fake, real = Weights(draw), Weights(draw)
    rule = {"guidance_scale": draw.choice([0.0, 1.0, 3.0]), "timestep_shift": draw.choice([1.0, 3.0, 5.0]),
            "model_timestep_shift": draw.choice([1.0, 5.0, 7.0]), "num_train_timestep": 1000, "min_score_timestep": 0}
    c["_dmd"] = rule
    length, frames = draw.choice([4, 7]), draw.choice([1, 2, 3])
    shape = [3, frames, *(p * draw.choice([2, 3]) for p in c["patch_size"][1:])]
    case = Case("longsana_dmd", c, tolerance={**OF_DIFFUSERS, "grad_in": {"rtol_of_max": 5e-4, "atol": 1e-9}})

    def as_one(array: Array) -> Tensor:
        return reshape(array, 1, *array.shape).tensor()

    words = {}
    for name in ("text", "negative"):
        rows, own = noise(draw, [length, c["caption_channels"]]), draw.randrange(1, length + 1)
        words[name] = narrow(rows, 0, 0, own)
        case.inputs["in." + name] = as_one(rows)
        case.inputs[f"in.{name}_mask"] = Tensor([1, length], [int(j < own) for j in range(length)], "I64")
    x = noise(draw, shape)
    counted = [draw.randrange(2) for _ in range(frames)]
    counted[draw.randrange(frames)] = 1
    case.inputs |= {"in.x": as_one(x), "in.mask": Tensor([frames], counted, "I64")}
    shift = rule["model_timestep_shift"]
    table = [shift * k / 1000 / (1 + (shift - 1) * k / 1000) for k in range(1000, 0, -1)]

    def drawn(run: str, most: int) -> tuple:
        n, own, by = draw.randrange(most), noise(draw, shape), rule["timestep_shift"]
        t = min(max(1000 * by * (n / 1000) / (1 + (by - 1) * (n / 1000)) if by > 1 else n, 20), 980)
        sigma = min(table, key=lambda s: abs(1000 * s - t))
        case.inputs |= {f"in.{run}.n": Tensor([], [n], "I64"), f"in.{run}.noise": as_one(own)}
        case.expected |= {f"out.{run}.t": Tensor([], [t]), f"out.{run}.sigma": Tensor([], [sigma])}
        noisy = x * (1 - sigma) + own * sigma
        return noisy, sigma, math.trunc(t), own

    for run, most in (("dmd", 1000), ("low", 60), ("masked", 1000)):
        noisy, sigma, t, _ = drawn(run, most)
        said = [noisy - sana_forward(w, c, noisy, [t], words[text], None) * sigma
                for w, text in ((fake, "text"), (real, "text"), (real, "negative"))]
        guided = said[1] + (said[1] - said[2]) * rule["guidance_scale"]
        forget()
        scale = sum(abs(a - b) for a, b in zip(x.v, guided.v)) / len(x.v)
        d = [(a - b) / scale for a, b in zip(said[0].v, guided.v)]
        frame = shape[2] * shape[3]
        mask = [counted[i // frame % frames] if run == "masked" else 1 for i in range(len(d))]
        count = sum(mask)
        case.expected |= {f"out.{run}.x0_fake": as_one(said[0]), f"out.{run}.x0_real": as_one(guided),
                          f"out.{run}.d": as_one(Array(shape, d)),
                          f"out.{run}.loss": Tensor([], [sum(0.5 * a * a * m for a, m in zip(d, mask)) / count]),
                          f"grad_in.{run}.x": as_one(Array(shape, [a * m / count for a, m in zip(d, mask)]))}
        forget()
    noisy, sigma, t, own = drawn("critic", 1000)
    velocity = sana_forward(fake, c, noisy, [t], words["text"], None)
    loss = mean(square(velocity - (own - x)))
    case.expected["out.critic.loss"] = Tensor([], list(loss.v))
    backward(loss)
    case.expected |= fake.gradients("grad.critic.")
    case.expected["out.critic.x0_fake"] = as_one(noisy - velocity * sigma)
    case.tensors = {"fake.safetensors": fake.tensors(), "real.safetensors": real.tensors()}
    case.loose = "attn2.to_k.bias"  # whose gradient is zero in exact arithmetic
    return case


KINDS = {"longsana_dmd": matching, "published_shapes": published, "sana": sana,
         "sana_adapter": sana_adapter, "sana_video": lambda draw: sana(draw, True)}
