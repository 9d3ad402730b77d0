"""Denoisers of Sana, Sana-Sprint and SANA-Video in plain code, with sizes and options that are drawn."""
import math
import random

from golden_files import Case, Tensor, f32, numbers
from golden_networks import OF_DIFFUSERS, finish, modulate, thirds, rope3, grid, from_patches, patches, positions2
from plain import (Array, Weights, attention, cat, chunks, conv, gelu_tanh, heads, layer_norm, linear, mean, narrow,
                   noise, products, relu, reshape, rms_norm, rotate, silu, sinusoid, square, stack, sums, swap,
                   unheads)


def sana_config(draw: random.Random, video: bool) -> dict:
    head = draw.choice([6, 8, 14]) if video else draw.choice([3, 4, 8])
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


def sana(draw: random.Random, video: bool = False) -> Case:
    c = sana_config(draw, video)
    w = Weights(draw)
    count, length = draw.choice([1, 2]), draw.choice([4, 7])
    patch = c["patch_size"][1:] if video else [c["patch_size"]] * 2
    sides = [p * draw.choice([1, 2, 3, 5]) for p in patch]
    frames = draw.choice([1, 2, 3]) if video else 1
    shape = [count, 3, frames, *sides] if video else [count, 3, *sides]
    x, target = noise(draw, shape), noise(draw, shape)
    text, own = noise(draw, [count, length, c["caption_channels"]]), [draw.randrange(1, length + 1) for _ in range(count)]
    by_frame = video and draw.random() < 0.5
    guidance = [f32(draw.uniform(0.1, 1)) for _ in range(count)] if c["guidance_embeds"] else None
    top = 1.0 if guidance else 1000.0
    times = [[f32(draw.uniform(0, top)) for _ in range(frames if by_frame else 1)] for _ in range(count)]
    outputs = []
    for i in range(count):
        latent = reshape(narrow(x, 0, i, 1), 3, frames, *sides)
        words = narrow(reshape(narrow(text, 0, i, 1), length, -1), 0, 0, own[i])
        y = sana_forward(w, c, latent, times[i], words, guidance[i] if guidance else None)
        outputs.append(reshape(y, *shape[1:]))
    case = Case("sana_video" if video else "sana_transformer", c, tolerance=OF_DIFFUSERS)
    case.inputs = {"in.hidden_states": x.tensor(), "in.target": target.tensor(), "in.encoder_hidden_states": text.tensor(),
                   "in.encoder_attention_mask": Tensor([count, length], [int(j < n) for n in own for j in range(length)], "I64"),
                   "in.timestep": numbers([row[0] for row in times], "F32")}
    if by_frame:
        case.inputs["in.timestep_frames"] = Tensor([count, frames], [t for row in times for t in row])
    if guidance:
        case.inputs["in.guidance"] = numbers(guidance, "F32")
    out = stack(outputs)
    case.expected["out.sample"] = out.tensor()
    case.about["grads_that_are_zero_in_exact_arithmetic"] = [name for name in w.all if name.endswith("attn2.to_k.bias")]
    return finish(case, w, mean(square(out - target)), {"hidden_states": x, "encoder_hidden_states": text})


KINDS = {"sana": sana, "sana_video": lambda draw: sana(draw, True)}
