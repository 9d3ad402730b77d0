"""Open-Sora's denoisers, the MMDiT and STDiT3, in plain code, with sizes and options that are drawn."""
import math
import random

from golden_files import Case, Tensor, f32, numbers
from golden_networks import OF_DIFFUSERS, finish, modulate, rope3, grid, from_patches, patches, positions2
from plain import (Array, Weights, attention, cat, chunks, gelu_tanh, heads, layer_norm, mean, narrow, noise,
                   reshape, rms_norm, rotate, silu, sinusoid, square, stack, take, unheads, forget)


def mmdit_embedded(w: Weights, name: str, x: Array, d: int) -> Array:
    return w.linear(name + ".out_layer", silu(w.linear(name + ".in_layer", x, d)), d)


def sinusoid32(t: float) -> Array:
    """In fp32 as in the reference: of a guidance of 8 the angle is 8,000, which has steps of 5e-4."""
    rates = [f32(math.exp(f32(f32(i * f32(-math.log(10000.0))) / 128))) for i in range(128)]
    return Array([1, 256], [f(f32(f32(t) * r)) for f in (math.cos, math.sin) for r in rates])


def mmdit_heads(w: Weights, name: str, q: Array, k: Array, v: Array, count: int) -> list:
    def normed(x: Array, part: str) -> Array:
        y = heads(x, count)
        return rms_norm(y, w.norm(f"{name}.{part}_norm.scale", y.shape[-1]), 1e-6)

    return [normed(q, "query"), normed(k, "key"), heads(v, count)]


def mmdit_double(w: Weights, name: str, streams: dict, vec: Array, angles: list, c: dict) -> dict:
    d, n = c["hidden_size"], c["num_heads"]
    mods, qkv = {}, {}
    for part in ("txt", "img"):
        mods[part] = chunks(w.linear(f"{name}.{part}_mod.lin", silu(vec), 6 * d), 6)
        y = modulate(layer_norm(streams[part]), *mods[part][:2])
        at = f"{name}.{part}_attn"
        if c["fused_qkv"]:
            q, k, v = chunks(w.linear(at + ".qkv", y, 3 * d), 3)
        else:
            q, k, v = (w.linear(f"{at}.{p}_proj", y, d) for p in "qkv")
        qkv[part] = mmdit_heads(w, at + ".norm", q, k, v, n)
    q, k, v = (cat([qkv["txt"][i], qkv["img"][i]], 1) for i in range(3))
    y = unheads(attention(*(rotate(a, angles, c["use_liger_rope"]) for a in (q, k)), v))
    count = streams["txt"].shape[0]
    attended = {"txt": narrow(y, 0, 0, count), "img": narrow(y, 0, count, y.shape[0] - count)}
    found = {}
    for part, x in streams.items():
        m = mods[part]
        x = x + w.linear(f"{name}.{part}_attn.proj", attended[part], d) * m[2]
        y = modulate(layer_norm(x), m[3], m[4])
        y = w.linear(f"{name}.{part}_mlp.2", gelu_tanh(w.linear(f"{name}.{part}_mlp.0", y, c["mlp"])), d)
        found[part] = x + y * m[5]
    return found


def mmdit_single(w: Weights, name: str, x: Array, vec: Array, angles: list, c: dict) -> Array:
    d, wide = c["hidden_size"], c["mlp"]
    shift, scale, gate = chunks(w.linear(name + ".modulation.lin", silu(vec), 3 * d), 3)
    y = modulate(layer_norm(x), shift, scale)
    if c["fused_qkv"]:
        both = w.linear(name + ".linear1", y, 3 * d + wide)
        q, k, v = (narrow(both, 1, i * d, d) for i in range(3))
        inner = narrow(both, 1, 3 * d, wide)
    else:
        q, k = (w.linear(f"{name}.{p}_proj", y, d) for p in "qk")
        both = w.linear(name + ".v_mlp", y, d + wide)
        v, inner = narrow(both, 1, 0, d), narrow(both, 1, d, wide)
    q, k, v = mmdit_heads(w, name + ".norm", q, k, v, c["num_heads"])
    y = unheads(attention(*(rotate(a, angles, c["use_liger_rope"]) for a in (q, k)), v))
    return x + w.linear(name + ".linear2", cat([y, gelu_tanh(inner)], 1), d) * gate


def mmdit(draw: random.Random, flux: bool = False) -> Case:
    axes = draw.choice([[2, 2, 4], [4, 2, 2], [2, 4, 4], [6, 2, 6]])
    count = draw.choice([1, 2, 3])
    d, channels, released = sum(axes) * count, draw.choice([1, 2, 3]), draw.random() < 0.5
    c = {"_class_name": "MMDiTModel", "_registry_type": "flux", "theta": 10000, "mlp_ratio": draw.choice([1.0, 2.0, 3.0]),
         "qkv_bias": True, "patch_size": 2, "in_channels": 4 * channels, "vec_in_dim": draw.choice([3, 5]),
         "context_in_dim": draw.choice([5, 7]), "hidden_size": d, "num_heads": count, "depth": draw.choice([1, 2]),
         "depth_single_blocks": draw.choice([1, 2]), "axes_dim": axes, "guidance_embed": draw.random() < 0.5,
         "cond_embed": draw.random() < 0.5, "fused_qkv": not released, "use_liger_rope": released}
    if flux:  # of pictures, with all of its constants
        c.update(mlp_ratio=4.0, cond_embed=False, fused_qkv=True, use_liger_rope=False)
    frames = 1 if flux else draw.choice([1, 2, 3])
    w, size = Weights(draw), (frames, draw.choice([1, 2, 3]), draw.choice([1, 2, 5]))
    batch, tokens, length = draw.choice([1, 2]), math.prod(size), draw.choice([3, 5])
    img, target = (noise(draw, [batch, tokens, 4 * channels]) for _ in range(2))
    txt, y_vec = noise(draw, [batch, length, c["context_in_dim"]]), noise(draw, [batch, c["vec_in_dim"]])
    cond = noise(draw, [batch, tokens, 4 * (channels + 1)]) if c["cond_embed"] else None
    times = [f32(draw.random()) for _ in range(batch)]
    guidance = [f32(draw.uniform(1, 5)) for _ in range(batch)]
    ids = grid(*size)
    angles = rope3([(0, 0, 0)] * length + ids, tuple(a // 2 for a in axes))
    inner, outputs = {**c, "mlp": int(d * c["mlp_ratio"])}, []
    for i in range(batch):
        def own(a: Array) -> Array:
            return reshape(narrow(a, 0, i, 1), *(a.shape[1:] if len(a.shape) > 2 else [1, a.shape[1]]))

        vec = mmdit_embedded(w, "time_in", sinusoid32(1000 * times[i]), d)
        if c["guidance_embed"]:
            vec = vec + mmdit_embedded(w, "guidance_in", sinusoid32(1000 * guidance[i]), d)
        vec = vec + mmdit_embedded(w, "vector_in", own(y_vec), d)
        x = w.linear("img_in", own(img), d)
        if cond is not None:
            x = x + w.linear("cond_in", own(cond), d)
        streams = {"txt": w.linear("txt_in", own(txt), d), "img": x}
        for k in range(c["depth"]):
            streams = mmdit_double(w, f"double_blocks.{k}", streams, vec, angles, inner)
        x = cat([streams["txt"], streams["img"]])
        for k in range(c["depth_single_blocks"]):
            x = mmdit_single(w, f"single_blocks.{k}", x, vec, angles, inner)
        shift, scale = chunks(w.linear("final_layer.adaLN_modulation.1", silu(vec), 2 * d), 2)
        y = modulate(layer_norm(narrow(x, 0, length, tokens)), shift, scale)
        outputs.append(w.linear("final_layer.linear", y, 4 * channels))
    case = Case("opensora2_mmdit", c, tolerance=OF_DIFFUSERS)
    case.inputs = {"in.img": img.tensor(), "in.txt": txt.tensor(), "in.y_vec": y_vec.tensor(), "in.target": target.tensor(),
                   "in.timesteps": numbers(times, "F32"),
                   "in.img_ids": Tensor([batch, tokens, 3], [float(a) for _ in range(batch) for place in ids for a in place]),
                   "in.txt_ids": Tensor([batch, length, 3], [0.0] * (3 * batch * length))}
    wanted = {"img": img, "txt": txt, "y_vec": y_vec}
    if c["guidance_embed"]:
        case.inputs["in.guidance"] = numbers(guidance, "F32")
    if cond is not None:
        case.inputs["in.cond"] = cond.tensor()
        wanted["cond"] = cond
    out = stack(outputs)
    case.expected["out.pred"] = out.tensor()
    return finish(case, w, mean(square(out - target)), wanted)

# Flux, the same function under other names

FLUX = [("img_in", "x_embedder"), ("txt_in", "context_embedder"), ("final_layer.linear", "proj_out"),
        ("final_layer.adaLN_modulation.1", "norm_out.linear"), ("single_blocks.", "single_transformer_blocks."),
        ("double_blocks.", "transformer_blocks."), ("img_mod.lin", "norm1.linear"), ("txt_mod.lin", "norm1_context.linear"),
        ("img_attn.proj", "attn.to_out.0"), ("txt_attn.proj", "attn.to_add_out"), ("modulation.lin", "norm.linear"),
        ("img_attn.norm.query_norm.scale", "attn.norm_q.weight"), ("img_attn.norm.key_norm.scale", "attn.norm_k.weight"),
        ("txt_attn.norm.query_norm.scale", "attn.norm_added_q.weight"),
        ("txt_attn.norm.key_norm.scale", "attn.norm_added_k.weight"), (".norm.query_norm.scale", ".attn.norm_q.weight"),
        (".norm.key_norm.scale", ".attn.norm_k.weight"), ("img_mlp.0", "ff.net.0.proj"), ("img_mlp.2", "ff.net.2"),
        ("txt_mlp.0", "ff_context.net.0.proj"), ("txt_mlp.2", "ff_context.net.2"), ("linear2", "proj_out"),
        *((f"{part}_in.{place}_layer", f"time_text_embed.{theirs}_embedder.linear_{k}")
          for part, theirs in (("time", "timestep"), ("guidance", "guidance"), ("vector", "text"))
          for place, k in (("in", 1), ("out", 2)))]
FUSED = {"img_attn.qkv": ["attn.to_q", "attn.to_k", "attn.to_v"],
         "txt_attn.qkv": ["attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"],
         "linear1": ["attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"]}


def under_flux(tensors: dict, width: int) -> dict:
    """Under diffusers' names, whose queries, keys and values are apart, and whose last scale stands before the shift."""
    found = {}

    def rows(tensor: Tensor, begin: int, count: int) -> Tensor:
        inner = math.prod(tensor.shape[1:])
        return Tensor([count, *tensor.shape[1:]], tensor.values[begin * inner:(begin + count) * inner])

    for name, tensor in tensors.items():
        fused = next((whole for whole in FUSED if f".{whole}." in name), None)
        if "final_layer.adaLN" in name:
            tensor = Tensor(tensor.shape, rows(tensor, width, width).values + rows(tensor, 0, width).values)
        parts = {}
        if fused:
            for i, part in enumerate(FUSED[fused]):
                parts[name.replace(fused, part)] = rows(tensor, i * width, width if i < 3 else tensor.shape[0] - 3 * width)
        for part, values in (parts or {name: tensor}).items():
            for ours, theirs in FLUX:
                part = part.replace(ours, theirs)
            found[part] = values
    return found


def in_halves(tensors: dict, heads_of: int) -> dict:
    """As Open-Sora 2.0 was released: q, k and v apart, and of each head of q and k the even rows before the odd ones."""
    found = {}
    for name, tensor in tensors.items():
        inner = math.prod(tensor.shape[1:])
        line = [tensor.values[i * inner:(i + 1) * inner] for i in range(tensor.shape[0])]

        def halved(part: list) -> list:
            size = len(part) // heads_of if len(part) % heads_of == 0 and "norm" not in name else len(part)
            order = [h + i for h in range(0, len(part), size) for i in [*range(0, size, 2), *range(1, size, 2)]]
            return [part[i] for i in order]

        def put(key: str, part: list) -> None:
            found[key] = Tensor([len(part), *tensor.shape[1:]], [x for row in part for x in row])

        if "query_norm" in name or "key_norm" in name:
            put(name, halved(line))
        elif "attn.qkv" in name or ".linear1." in name:
            width = len(line) // 3 if "qkv" in name else None
            whole, last = ("qkv", "v_proj") if width else ("linear1", "v_mlp")
            width = width or tensors[name.replace("linear1", "linear2").replace(".weight", ".bias")].shape[0]
            put(name.replace(whole, "q_proj"), halved(line[:width]))
            put(name.replace(whole, "k_proj"), halved(line[width:2 * width]))
            put(name.replace(whole, last), line[2 * width:])
        else:
            found[name] = tensor
    return found


def flux(draw: random.Random) -> Case:
    case = mmdit(draw, flux=True)
    c, names = case.config, {"img": "hidden_states", "txt": "encoder_hidden_states", "y_vec": "pooled_projections",
                             "timesteps": "timestep"}
    case.kind = "opensora2_flux"
    case.config = {"_class_name": "FluxTransformer2DModel", "patch_size": 1, "out_channels": None,
                   "in_channels": c["in_channels"], "num_layers": c["depth"], "num_single_layers": c["depth_single_blocks"],
                   "attention_head_dim": sum(c["axes_dim"]), "num_attention_heads": c["num_heads"],
                   "joint_attention_dim": c["context_in_dim"], "pooled_projection_dim": c["vec_in_dim"],
                   "guidance_embeds": c["guidance_embed"], "axes_dims_rope": c["axes_dim"]}
    case.inputs = {"in." + names.get(name[3:], name[3:]): tensor for name, tensor in case.inputs.items()}
    for ids in ("in.img_ids", "in.txt_ids"):  # those of a sample
        tensor = case.inputs[ids]
        case.inputs[ids] = Tensor(tensor.shape[1:], tensor.values[:math.prod(tensor.shape[1:])])
    gradients = {name[5:]: tensor for name, tensor in case.expected.items() if name.startswith("grad.")}
    expected = {"out.sample": case.expected["out.pred"], "out.loss": case.expected["out.loss"]}
    expected |= {"grad." + name: tensor for name, tensor in under_flux(gradients, c["hidden_size"]).items()}
    expected |= {"grad_in." + names[name[8:]]: tensor for name, tensor in case.expected.items() if name.startswith("grad_in.")}
    case.expected, original = expected, case.weights
    case.weights = under_flux(original, c["hidden_size"])
    case.tensors = {"original.safetensors": original, "released.safetensors": in_halves(original, c["num_heads"])}
    return case

# Open-Sora 1.2 and 1.3


def stdit_parts(c: dict, size: tuple, scale: float, spatial: bool) -> list:
    """Groups of tokens that attend to each other, with the angles of their positions (None: no rotation)."""
    frames, height, width = size
    d = c["hidden_size"] // c["num_heads"]

    def token(t, y, x):
        return (t * height + y) * width + x

    def turned(places: list) -> list:
        return rope3([(t, y / scale, x / scale) for t, y, x in places], (d // 6,) * 3)

    if spatial:
        places = [(0, y, x) for _, y, x in grid(1, height, width)]
        angles = turned(places) if c.get("use_spatial_rope") else None
        return [([token(t, y, x) for _, y, x in places], angles) for t in range(frames)]
    if "kernel_size" not in c:
        rates = [10000.0 ** (-2 * i / d) for i in range(d // 2)]
        angles = [[t * r for r in rates] for t in range(frames)]
        return [([token(t, y, x) for t in range(frames)], angles) for _, y, x in grid(1, height, width)]
    window = [n if k == -1 else k for k, n in zip(c["kernel_size"], (height, width, frames))]
    groups = []
    for t0 in range(0, frames, window[2]):
        for y0 in range(0, height, window[0]):
            for x0 in range(0, width, window[1]):
                places = [(t, y, x) for t, y, x in grid(window[2], window[0], window[1])
                          if t0 + t < frames and y0 + y < height and x0 + x < width]
                groups.append(([token(t0 + t, y0 + y, x0 + x) for t, y, x in places], turned(places)))
    return groups


def rows_at(x: Array, places: list) -> Array:
    width = x.shape[1]
    return take(x, [i * width + k for i in places for k in range(width)], [len(places), width])


def stdit_attention(w: Weights, name: str, x: Array, groups: list, c: dict) -> Array:
    d, n = c["hidden_size"], c["num_heads"]
    q, k, v = chunks(w.linear(name + ".qkv", x, 3 * d), 3)
    results, order = [], []
    for tokens, angles in groups:
        parts = [heads(rows_at(a, tokens), n) for a in (q, k, v)]
        for i, part in enumerate("qk"):
            parts[i] = rms_norm(parts[i], w.norm(f"{name}.{part}_norm.weight", d // n), 1e-6)
            parts[i] = parts[i] if angles is None else rotate(parts[i], angles, False)
        results.append(unheads(attention(*parts)))
        order += tokens
    back = {token: i for i, token in enumerate(order)}
    return w.linear(name + ".proj", rows_at(cat(results), [back[i] for i in range(len(order))]), d)


def stdit_cross(w: Weights, name: str, x: Array, context: Array, c: dict) -> Array:
    d, n = c["hidden_size"], c["num_heads"]
    k, v = chunks(w.linear(name + ".kv_linear", context, 2 * d), 2)
    q = w.linear(name + ".q_linear", x, d)
    return w.linear(name + ".proj", unheads(attention(*(heads(a, n) for a in (q, k, v)))), d)


def stdit_positions(c: dict, size: tuple, scale: float) -> Array:
    base = round(math.sqrt(size[1] * size[2]))
    return positions2(size[1], size[2], c["hidden_size"], *(lambda i, n=n: i / scale * base / n for n in size[1:]))


def stdit_forward(w: Weights, c: dict, x: Array, t: float, fps: float, scale: float, text: Array, given: dict = None,
                  kept: list = None) -> Array:
    """given: cond, cond_mask, index, text; kept: whether a frame is noisy."""
    d, p, channels = c["hidden_size"], c["patch_size"][1], c["in_channels"]
    shape = x.shape[1:]
    padded = [shape[0], *(-(-n // p) * p for n in shape[1:])]
    size = (shape[0], padded[1] // p, padded[2] // p)

    def whole(a: Array) -> Array:
        steps = [(t * shape[1] + y) * shape[2] + z if y < shape[1] and z < shape[2] else None for t, y, z in grid(*padded)]
        per = math.prod(shape)
        return take(a, [None if i is None else ch * per + i for ch in range(channels) for i in steps], [channels, *padded])

    def embed(name: str, value: float) -> Array:
        return w.linear(name + ".mlp.2", silu(w.linear(name + ".mlp.0", sinusoid([value], 256), d)), d)

    def words(a: Array) -> Array:
        return w.linear("y_embedder.y_proj.fc2", gelu_tanh(w.linear("y_embedder.y_proj.fc1", a, d)), d)

    def patch(name: str, a: Array) -> Array:
        return patches(w, name + ".proj", whole(a), d, (1, p, p))

    frame, frames = size[1] * size[2], size[0]
    tokens = reshape(reshape(patch("x_embedder", x), frames, frame, d) + stdit_positions(c, size, scale), -1, d)
    if given:
        tokens = tokens + patch("x_embedder_cond", given["cond"]) + patch("x_embedder_cond_mask", given["cond_mask"])
    rate = embed("fps_embedder", fps)
    e = [embed("t_embedder", value) + rate for value in (t, 0.0)]  # of noisy frames, and of given ones
    e6 = [reshape(w.linear("t_block.1", silu(a), 6 * d), 6, d) for a in e]
    chosen = [0 if kept is None or kept[f] else 1 for f in range(frames) for _ in range(frame)]

    def by_token(two: list) -> Array:
        return rows_at(cat(two), chosen)

    context = words(text)
    null = words(given["text"]) if given else None
    for i in range(c["depth"]):
        for kind in ("spatial", "temporal"):
            name = f"{kind}_blocks.{i}"
            table = w(name + ".scale_shift_table", [6, d], 0.3)
            m = [by_token([narrow(table + a, 0, k, 1) for a in e6]) for k in range(6)]
            y = modulate(layer_norm(tokens), m[0], m[1])
            groups = stdit_parts(c, size, scale, kind == "spatial")
            tokens = tokens + stdit_attention(w, name + ".attn", y, groups, c) * m[2]
            heard = stdit_cross(w, name + ".cross_attn", tokens, context, c)
            if given:
                other = stdit_cross(w, name + ".cross_attn", tokens, null, c)
                parts = [narrow(other if f in given["index"] else heard, 0, f * frame, frame) for f in range(frames)]
                heard = cat(parts)
            tokens = tokens + heard
            y = modulate(layer_norm(tokens), m[3], m[4])
            y = w.linear(name + ".mlp.fc2", gelu_tanh(w.linear(name + ".mlp.fc1", y, int(d * c["mlp_ratio"]))), d)
            tokens = tokens + y * m[5]
    table = w("final_layer.scale_shift_table", [2, d], 0.3)
    noisy, still = ([narrow(table, 0, k, 1) + a for k in range(2)] for a in e)
    y = modulate(layer_norm(tokens), *noisy)
    if kept is not None:  # the reference modulates what is modulated already
        again = modulate(layer_norm(y), *still)
        y = cat([narrow(y if kept[f] else again, 0, f * frame, frame) for f in range(frames)])
    out = (2 if c["pred_sigma"] else 1) * channels
    y = from_patches(w.linear("final_layer.linear", y, p * p * out), out, tuple(padded), (1, p, p))
    return narrow(narrow(y, 2, 0, shape[1]), 3, 0, shape[2])


def stdit(draw: random.Random, version: str) -> Case:
    count = draw.choice([1, 2])
    d = count * (12 if version == "v13" else draw.choice([4, 8, 12]))
    p, channels = draw.choice([1, 2, 3]), draw.choice([2, 3])
    c = {"_class_name": "STDiT3", "input_size": [None, None, None], "input_sq_size": draw.choice([64, 300, 512]),
         "mlp_ratio": draw.choice([1.5, 2.0]), "class_dropout_prob": 0.1, "pred_sigma": draw.random() < 0.7, "drop_path": 0.0,
         "model_max_length": draw.choice([4, 5]), "qk_norm": True, "enable_flash_attn": False, "enable_layernorm_kernel": False,
         "enable_sequence_parallelism": False, "only_train_temporal": False, "freeze_y_embedder": False,
         "skip_y_embedder": False, "in_channels": channels, "patch_size": [1, p, p], "hidden_size": d, "depth": draw.choice([1, 2]),
         "num_heads": count, "caption_channels": draw.choice([3, 5])}
    if version == "v13":
        c.update({"kernel_size": draw.choice([[2, 2, -1], [3, 2, -1], [2, 3, 2], [-1, 2, -1]]), "skip_temporal": False,
                  "use_spatial_rope": draw.random() < 0.7})
    w, batch, length = Weights(draw), draw.choice([1, 2]), c["model_max_length"]
    shape = [draw.choice([1, 2, 3]), draw.randrange(1, 7), draw.randrange(1, 8)]
    latents = [batch, channels, *shape]
    outs = [batch, (2 if c["pred_sigma"] else 1) * channels, *shape]
    x, target, y = noise(draw, latents), noise(draw, outs), noise(draw, [batch, 1, length, c["caption_channels"]])
    own = [draw.randrange(1, length + 1) for _ in range(batch)]
    size = [draw.choice([100.0, 144.0, 333.0]), draw.choice([96.0, 256.0])]
    times, rates = [f32(draw.uniform(0, 1000)) for _ in own], [draw.choice([8.0, 24.0, 29.97]) for _ in own]
    rates = [f32(r) for r in rates]
    kept = [[int(draw.random() < 0.6) for _ in range(shape[0])] for _ in own]
    case = Case("stdit3_" + version, c, tolerance=OF_DIFFUSERS)
    case.inputs = {"in.x": x.tensor(), "in.target": target.tensor(), "in.y": y.tensor(), "in.timestep": numbers(times, "F32"),
                   "in.fps": numbers(rates, "F32"), "in.mask": Tensor([batch, length], [int(j < n) for n in own for j in range(length)], "I64"),
                   "in.x_mask": Tensor([batch, shape[0]], [k for row in kept for k in row], "I64"),
                   "in.height": numbers([size[0]] * batch, "F32"), "in.width": numbers([size[1]] * batch, "F32")}
    scale = math.sqrt(size[0] * size[1]) / c["input_sq_size"]
    beside = version == "v13"
    cond, cond_mask = noise(draw, latents), noise(draw, latents)
    null = noise(draw, y.shape)
    index = sorted(draw.sample(range(shape[0]), draw.choice([1, shape[0]])))
    if beside:
        case.inputs.update({"in.cond": cond.tensor(), "in.cond_mask": cond_mask.tensor(), "in.y_null": null.tensor(),
                            "in.mask_index": numbers(index, "I64")})

    def part(a: Array, i: int) -> Array:
        return reshape(narrow(a, 0, i, 1), *(a.shape[1:] if a is not y and a is not null else a.shape[2:]))

    def run(i: int, with_given: bool, with_kept: bool, all_words: bool = False) -> Array:
        n = length if all_words else own[i]
        given = {"cond": part(cond, i), "cond_mask": part(cond_mask, i), "index": index,
                 "text": narrow(part(null, i), 0, 0, n)} if with_given else None
        return stdit_forward(w, c, part(x, i), times[i], rates[i], scale, narrow(part(y, i), 0, 0, n), given,
                             kept[i] if with_kept else None)

    out = stack([run(i, beside, False) for i in range(batch)])
    case.expected["out.sample"] = out.tensor()
    p_size = (shape[0], -(-shape[1] // p), -(-shape[2] // p))
    positions = stdit_positions(c, p_size, scale)
    case.expected["out.pos_emb"] = Tensor([1, *positions.shape], positions.v)
    finish(case, w, mean(square(out - target)), {"x": x, "y": y})
    other = ("out.sample_t2v", {"with_given": False, "with_kept": False}) if beside else (
        "out.sample_nomask", {"with_given": False, "with_kept": False, "all_words": True})
    for name, how in (("out.sample_xmask", {"with_given": False, "with_kept": True}), other):
        case.expected[name] = stack([run(i, **how) for i in range(batch)]).tensor()
    forget()
    turned = d // count // (3 if beside else 1)
    case.weights["rope.freqs"] = Tensor([turned // 2], [f32(10000.0 ** (-2 * i / turned)) for i in range(turned // 2)])
    case.weights["y_embedder.y_embedding"] = noise(draw, [length, c["caption_channels"]]).tensor()
    return case


KINDS = {"mmdit": mmdit, "flux": flux, "stdit_12": lambda draw: stdit(draw, "v12"), "stdit_13": lambda draw: stdit(draw, "v13")}
