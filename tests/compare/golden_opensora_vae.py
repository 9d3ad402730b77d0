"""Open-Sora's autoencoders in plain code, with widths, pieces and sizes that are drawn: 1.2's of two stages, 1.3's, and 2.0's
video DC-AE. Maps are [C, T, H, W], or [C, H, W] of pictures."""
import math
import random

from golden_autoencoders import (by_channel, channels_first, channels_last, doubled, edges, grouped, multiplied, select)
from golden_files import Case, Tensor, f32
from golden_networks import OF_DIFFUSERS
from plain import (Array, Weights, attention, cat, chunks, heads, narrow, noise, permute, products, relu, reshape, rsqrt, silu,
                   square, stack, sums, swap, unheads)


def group_norm(w: Weights, name: str, x: Array, groups: int, eps: float) -> Array:
    y = reshape(x, groups, -1)
    y = y - sums(y) * (1 / y.shape[1])
    y = reshape(y * rsqrt(sums(square(y)) * (1 / y.shape[1]) + eps), *x.shape)
    bias = reshape(w(name + ".bias", [x.shape[0]]), -1, *[1] * (len(x.shape) - 1))
    return by_channel(y, w.norm(name + ".weight", x.shape[0])) + bias


def each_frame(x: Array, work) -> Array:
    frames = [work(reshape(narrow(x, 1, t, 1), x.shape[0], *x.shape[2:])) for t in range(x.shape[1])]
    return permute(stack(frames), 1, 0, 2, 3)


def halved(w: Weights, name: str, frame: Array, out: int) -> Array:
    return w.conv(name, frame, out, [3, 3], stride=2, pad=[(0, 1), (0, 1)])


def larger(frame: Array) -> Array:
    return select(frame, doubled(frame.shape[1]), doubled(frame.shape[2]))


def deviation(log_variance: Array) -> Array:
    return Array(log_variance.shape, [math.exp(min(20.0, max(-30.0, v)) / 2) for v in log_variance.v])


# 1.3


class Vae13:
    def __init__(self, w: Weights, c: dict):
        self.w, self.c, self.groups = w, c, c["_norm_num_groups"]

    def causal(self, name: str, x: Array, out: int, kernel: int = 3, stride: int = 1) -> Array:
        pad = kernel // 2
        return self.w.conv(name, x, out, [kernel] * 3, stride=stride, pad=[(2 * pad, 0), pad, pad])

    def norm(self, name: str, x: Array, eps: float = 1e-6) -> Array:
        return group_norm(self.w, name, x, self.groups, eps)

    def block(self, name: str, x: Array, out: int) -> Array:
        y = self.causal(name + ".conv1.conv", silu(self.norm(name + ".norm1", x)), out)
        y = self.causal(name + ".conv2.conv", silu(self.norm(name + ".norm2", y)), out)
        return y + (x if x.shape[0] == out else self.causal(name + ".nin_shortcut.conv", x, out, 1))

    def middle(self, name: str, x: Array) -> Array:
        d = x.shape[0]
        x = self.block(name + ".block_1", x, d)
        y = self.norm(name + ".attn_1.norm", x)
        q, k, v = (heads(channels_last(self.causal(f"{name}.attn_1.{p}.conv", y, d, 1)), 1) for p in "qkv")
        n = q.shape[1]
        later = Array([1, n, n], [0.0 if b <= a else -math.inf for a in range(n) for b in range(n)])
        y = channels_first(unheads(attention(q, k, v, bias=later)), x.shape[1:])
        return self.block(name + ".block_2", x + self.causal(name + ".attn_1.proj_out.conv", y, d, 1), d)

    def encode_piece(self, x: Array) -> Array:
        c, channels = self.c["encoder"], self.c["encoder"]["z_channels"]
        x = self.causal("encoder.conv_in.conv", x, c["ch"])
        for i, m in enumerate(c["ch_mult"]):
            for k in range(c["num_res_blocks"]):
                x = self.block(f"encoder.down.{i}.block.{k}", x, c["ch"] * m)
            name, d = f"encoder.down.{i}.downsample.conv", c["ch"] * m
            if i in (1, 2):
                x = self.causal(name + ".conv", x, d, stride=2)
            elif i == 0:
                x = each_frame(x, lambda frame: halved(self.w, name, frame, d))
        x = self.middle("encoder.mid", x)
        return self.causal("encoder.conv_out.conv", silu(self.norm("encoder.norm_out", x)), 2 * channels)

    def decode_piece(self, z: Array) -> Array:
        c = self.c["decoder"]
        x = self.middle("decoder.mid", self.causal("decoder.conv_in.conv", z, c["ch"] * c["ch_mult"][-1]))
        for i in (3, 2, 1, 0):
            d = c["ch"] * c["ch_mult"][i]
            for k in range(c["num_res_blocks"] + 1):
                x = self.block(f"decoder.up.{i}.block.{k}", x, d)
            name = f"decoder.up.{i}.upsample.conv"
            if i in (2, 3):
                x = select(x, doubled(x.shape[1]), doubled(x.shape[2]), doubled(x.shape[3]))
                y = silu(self.norm(name + "3d.norm1", self.causal(name + "3d.conv1.conv", x, d), 1e-5))
                y = self.norm(name + "3d.norm2", self.causal(name + "3d.conv2.conv", y, d), 1e-5)
                x = x + silu(y + x)
            elif i == 1:
                x = each_frame(x, lambda frame: self.w.conv(name, larger(frame), d, [3, 3], pad=1))
        x = self.causal("decoder.conv_out", silu(self.norm("decoder.norm_out", x)), 3)
        return narrow(x, 1, 3, x.shape[1] - 3)

    def encode(self, x: Array, how: dict) -> Array:
        n, frames = how["micro_frame_size"], x.shape[1]
        if frames == 1 or how["micro_batch_size"] is None or n is None:
            return self.encode_piece(x)
        starts = range(0, frames - 1, n - 1) if how["temporal_overlap"] else range(0, frames, n)
        return cat([self.encode_piece(narrow(x, 1, i, min(n, frames - i))) for i in starts], 1)

    def decode(self, z: Array, how: dict) -> Array:
        n, frames = how["micro_frame_size"], z.shape[1]
        if frames == 1 or how["micro_batch_size"] is None or n is None:
            return self.decode_piece(z)
        of_piece, found = (n - 1) // 4 + 1, None
        for i in range(0, frames, of_piece):
            piece = self.decode_piece(narrow(z, 1, i, min(of_piece, frames - i)))
            if found is None:
                found = piece
            elif how["temporal_overlap"]:
                last = found.shape[1] - 1
                both = (narrow(found, 1, last, 1) + narrow(piece, 1, 0, 1)) * 0.5
                parts = [narrow(found, 1, 0, last)] * (last > 0) + [both] + [narrow(piece, 1, 1, piece.shape[1] - 1)] * (piece.shape[1] > 1)
                found = cat(parts, 1)
            else:
                found = cat([found, piece], 1)
        return found


def vae13(draw: random.Random) -> Case:
    groups, channels = draw.choice([1, 2]), draw.choice([2, 4, 5])
    c = {"_class_name": "OpenSoraVAE_V1_3", "_norm_num_groups": groups}
    for half, time in (("encoder", {"down_sampling_layer": [1, 2], "double_z": True}), ("decoder", {"temporal_up_layers": [2, 3]})):
        # a group of few values may have a spread of next to nothing, by which a norm divides
        c[half] = {"z_channels": channels, "in_channels": 3, "out_ch": 3, "ch": groups * draw.choice([2, 3]),
                   "ch_mult": [draw.choice([1, 2]) for _ in range(4)], "num_res_blocks": 1, **time}
    c["decoder"]["ch_mult"][0] = 1  # its own ch says the rest
    shared = {"micro_batch_size": 1, "micro_batch_size_2d": 4, "micro_frame_size": 9, "temporal_overlap": True, "normalization": None}
    c.update({**shared, "cases": {}})
    w = Weights(draw)
    vae, case = Vae13(w, c), Case("opensora_vae13", c, tolerance=OF_DIFFUSERS)
    for name in ("first", "second"):
        n, overlap = draw.choice([5, 9]), draw.random() < 0.5
        how = {**shared, "micro_frame_size": n, "temporal_overlap": overlap, "micro_batch_size": draw.choice([None, 1, 1])}
        frames = draw.choice([1, n, 2 * n - 1 if overlap else 2 * n])
        if how["micro_batch_size"] is None:
            frames = draw.choice([1, 5])
        c["cases"][name] = how
        video = noise(draw, [3, frames, 8, 8 * draw.choice([1, 2])], 0.5)
        latent = noise(draw, [channels, 1 if frames == 1 else draw.choice([2, 3, 4]), draw.choice([1, 2]), 2])
        moments = vae.encode(video, how)
        case.inputs.update({f"in.{name}.video": stack([video]).tensor(), f"in.{name}.latent": stack([latent]).tensor()})
        case.expected.update({f"out.{name}.moments": stack([moments]).tensor(),
                              f"out.{name}.z": stack([chunks(moments, 2, 0)[0]]).tensor(),
                              f"out.{name}.decoded": stack([vae.decode(latent, how)]).tensor()})
    case.weights = w.tensors()
    return case


# 1.2


class Pictures12:
    """diffusers' autoencoder of pictures."""

    def __init__(self, w: Weights, c: dict):
        self.w, self.c, self.root = w, c, "spatial_vae.module."

    def conv(self, name: str, x: Array, out: int, kernel: int = 3) -> Array:
        return self.w.conv(self.root + name, x, out, [kernel] * 2, pad=kernel // 2)

    def norm(self, name: str, x: Array) -> Array:
        return group_norm(self.w, self.root + name, x, self.c["norm_num_groups"], 1e-6)

    def resnet(self, name: str, x: Array, out: int) -> Array:
        y = self.conv(name + ".conv1", silu(self.norm(name + ".norm1", x)), out)
        y = self.conv(name + ".conv2", silu(self.norm(name + ".norm2", y)), out)
        return y + (x if x.shape[0] == out else self.conv(name + ".conv_shortcut", x, out, 1))

    def middle(self, name: str, x: Array) -> Array:
        d, at = x.shape[0], f"{self.root}{name}.attentions.0."
        x = self.resnet(name + ".resnets.0", x, d)
        rows = channels_last(self.norm(name + ".attentions.0.group_norm", x))
        q, k, v = (heads(self.w.linear(at + "to_" + p, rows, d), 1) for p in "qkv")
        y = self.w.linear(at + "to_out.0", unheads(attention(q, k, v)), d)
        return self.resnet(name + ".resnets.1", x + channels_first(y, x.shape[1:]), d)

    def encode(self, x: Array) -> Array:
        widths, layers = self.c["block_out_channels"], self.c["layers_per_block"]
        x = self.conv("encoder.conv_in", x, widths[0])
        for i, out in enumerate(widths):
            for k in range(layers):
                x = self.resnet(f"encoder.down_blocks.{i}.resnets.{k}", x, out)
            if i < len(widths) - 1:
                x = halved(self.w, f"{self.root}encoder.down_blocks.{i}.downsamplers.0.conv", x, out)
        x = self.middle("encoder.mid_block", x)
        x = self.conv("encoder.conv_out", silu(self.norm("encoder.conv_norm_out", x)), 2 * self.c["latent_channels"])
        return self.conv("quant_conv", x, 2 * self.c["latent_channels"], 1)

    def decode(self, z: Array) -> Array:
        widths, layers = self.c["block_out_channels"][::-1], self.c["layers_per_block"]
        x = self.conv("decoder.conv_in", self.conv("post_quant_conv", z, self.c["latent_channels"], 1), widths[0])
        x = self.middle("decoder.mid_block", x)
        for i, out in enumerate(widths):
            for k in range(layers + 1):
                x = self.resnet(f"decoder.up_blocks.{i}.resnets.{k}", x, out)
            if i < len(widths) - 1:
                x = self.conv(f"decoder.up_blocks.{i}.upsamplers.0.conv", larger(x), out)
        return self.conv("decoder.conv_out", silu(self.norm("decoder.conv_norm_out", x)), 3)


class Time12:
    def __init__(self, w: Weights, c: dict):
        self.w, self.c, self.root = w, c, "temporal_vae."
        self.widths = [c["filters"] * m for m in c["channel_multipliers"]]
        self.stride = 2 ** sum(c["temporal_downsample"])

    def conv(self, name: str, x: Array, out: int, kernel: int = 3, stride: int = 1, bias: bool = True) -> Array:
        pad = kernel // 2
        return self.w.conv(f"{self.root}{name}.conv", x, out, [kernel] * 3, bias=bias, stride=[stride, 1, 1],
                           pad=[(kernel - stride, 0), pad, pad])

    def norm(self, name: str, x: Array) -> Array:
        return group_norm(self.w, self.root + name, x, self.c["num_groups"], 1e-5)

    def block(self, name: str, x: Array, out: int) -> Array:
        y = self.conv(name + ".conv1", silu(self.norm(name + ".norm1", x)), out, bias=False)
        y = self.conv(name + ".conv2", silu(self.norm(name + ".norm2", y)), out, bias=False)
        return y + (x if x.shape[0] == out else self.conv(name + ".conv3", x, out, 1, bias=False))

    def encode(self, x: Array) -> Array:
        c, latent = self.c, 2 * self.c["embed_dim"]
        missing = -x.shape[1] % self.stride
        x = select(x, edges(x.shape[1], missing, 0, False), range(x.shape[2]), range(x.shape[3]))
        x = self.conv("encoder.conv_in", x, c["filters"], bias=False)
        for i, out in enumerate(self.widths):
            for k in range(c["num_res_blocks"]):
                x = self.block(f"encoder.block_res_blocks.{i}.{k}", x, out)
            if i < len(self.widths) - 1 and c["temporal_downsample"][i]:
                x = self.conv(f"encoder.conv_blocks.{i}", x, out, stride=2)
        for k in range(c["num_res_blocks"]):
            x = self.block(f"encoder.res_blocks.{k}", x, x.shape[0])
        x = self.conv("encoder.conv2", silu(self.norm("encoder.norm1", x)), latent, 1)
        return self.conv("quant_conv", x, latent, 1)

    def decode(self, z: Array, frames: int) -> Array:
        c = self.c
        x = self.conv("decoder.conv1", self.conv("post_quant_conv", z, c["embed_dim"], 1), self.widths[-1])
        for k in range(c["num_res_blocks"]):
            x = self.block(f"decoder.res_blocks.{k}", x, x.shape[0])
        for i in reversed(range(len(self.widths))):
            for k in range(c["num_res_blocks"]):
                x = self.block(f"decoder.block_res_blocks.{i}.{k}", x, self.widths[i])
            if i > 0 and c["temporal_downsample"][i - 1]:
                d, t, h, v = x.shape
                y = reshape(self.conv(f"decoder.conv_blocks.{i - 1}", x, 2 * d), d, 2, t, h, v)
                x = reshape(permute(y, 0, 2, 1, 3, 4), d, 2 * t, h, v)
        x = self.conv("decoder.conv_out", silu(self.norm("decoder.norm1", x)), c["in_out_channels"])
        return narrow(x, 1, x.shape[1] - frames, frames)


def vae12(draw: random.Random) -> Case:
    groups, channels, levels = draw.choice([1, 2]), draw.choice([1, 2, 4]), draw.choice([2, 3])
    time = {"in_out_channels": channels, "latent_embed_dim": channels, "embed_dim": channels, "filters": groups * draw.choice([1, 2]),
            "num_res_blocks": draw.choice([1, 2]), "channel_multipliers": [1, *(draw.choice([1, 2]) for _ in range(levels - 1))],
            "temporal_downsample": [draw.random() < 0.7 for _ in range(levels - 1)], "num_groups": groups, "activation_fn": "swish"}
    flat = {"in_channels": 3, "out_channels": 3, "down_block_types": ["DownEncoderBlock2D"] * 4,
            "up_block_types": ["UpDecoderBlock2D"] * 4, "block_out_channels": [groups * 2] * 3 + [groups * draw.choice([2, 4])],
            "layers_per_block": 1, "latent_channels": channels, "norm_num_groups": groups, "sample_size": 32, "force_upcast": False}
    piece = draw.choice([5, 6, 8])
    c = {"_class_name": "VideoAutoencoderPipeline", "vae_2d": flat, "vae_temporal": time, "micro_batch_size": 4, "micro_frame_size": piece,
         "shift": [f32(draw.gauss(0, 0.3)) for _ in range(channels)], "scale": [f32(draw.uniform(0.5, 3)) for _ in range(channels)],
         "scaling_2d": draw.choice([0.18215, 0.7]), "cases": {}}
    w = Weights(draw)
    pictures, in_time, case = Pictures12(w, flat), Time12(w, time), Case("opensora_vae12", c, tolerance=OF_DIFFUSERS)
    mean, scale, factor = Array([channels, 1, 1, 1], c["shift"]), Array([channels], c["scale"]), c["scaling_2d"]
    for name, frames in (("clip", draw.choice([piece - 1, piece, piece + 2])), ("image", 1)):
        c["cases"][name] = {"frames": frames}
        sides = [16, 8 * draw.choice([1, 2])]
        video = noise(draw, [3, frames, *sides], 0.5)
        moments = [pictures.encode(reshape(narrow(video, 1, t, 1), 3, *sides)) for t in range(frames)]
        sampled, found, spans = [], [], [(i, min(piece, frames - i)) for i in range(0, frames, piece)]
        of_frames = noise(draw, [frames, channels, 2, sides[1] // 8])
        for t, both in enumerate(moments):
            centre, spread = chunks(both, 2, 0)
            own = reshape(narrow(of_frames, 0, t, 1), *centre.shape)
            sampled.append((centre + own * deviation(spread)) * factor)
        joined = permute(stack(sampled), 1, 0, 2, 3)
        found = cat([in_time.encode(narrow(joined, 1, i, n)) for i, n in spans], 1)
        centre, spread = chunks(found, 2, 0)
        of_time = noise(draw, centre.shape)
        z = by_channel(centre + of_time * deviation(spread) - mean, Array([channels], [1 / s for s in c["scale"]]))
        latent = noise(draw, z.shape)
        plain, parts, at = by_channel(latent, scale) + mean, [], 0
        for _, n in spans:
            count = -(-n // in_time.stride)
            parts.append(in_time.decode(narrow(plain, 1, at, count), n))
            at += count
        back = each_frame(cat(parts, 1) * (1 / factor), pictures.decode)
        case.inputs.update({f"in.{name}.video": stack([video]).tensor(), f"in.{name}.eps2d": of_frames.tensor(),
                            f"in.{name}.epst": stack([of_time]).tensor(), f"in.{name}.latent": stack([latent]).tensor()})
        for what, array in (("moments_2d", stack(moments)), ("latent_2d", stack(sampled)), ("moments_t", stack([found])),
                            ("z", stack([z])), ("decoded", stack([back]))):
            case.expected[f"out.{name}.{what}"] = array.tensor()
    case.weights = {**w.tensors(), "scale": Tensor([1, channels, 1, 1, 1], c["scale"]), "shift": Tensor([1, channels, 1, 1, 1], c["shift"])}
    return case


# The DC-AE of videos


def blocks_of(x: Array, t: int) -> Array:
    """t frames of 2 x 2 pixels as channels."""
    f, h, v = x.shape[1] // t, x.shape[2] // 2, x.shape[3] // 2
    y = permute(reshape(x, x.shape[0], f, t, h, 2, v, 2), 0, 2, 4, 6, 1, 3, 5)
    return reshape(y, x.shape[0] * 4 * t, f, h, v)


def from_blocks(x: Array, t: int) -> Array:
    out, (f, h, v) = x.shape[0] // (4 * t), x.shape[1:]
    return reshape(permute(reshape(x, out, t, 2, 2, f, h, v), 0, 4, 1, 5, 2, 6, 3), out, f * t, 2 * h, 2 * v)


class VideoDcAe:
    def __init__(self, w: Weights, c: dict):
        self.w, self.c = w, c

    def norm(self, name: str, x: Array) -> Array:
        count, rows = x.shape[0], channels_last(x)
        y = rows * rsqrt(sums(square(rows)) * (1 / count) + 1e-5)
        return channels_first(y * self.w.norm(name + ".weight", count) + self.w(name + ".bias", [count]), x.shape[1:])

    def conv(self, name: str, x: Array, out: int, kernel: int = 3, **how) -> Array:
        return self.w.conv(name, x, out, [kernel] * 3, pad=kernel // 2, **how)

    def block(self, name: str, x: Array, kind: str) -> Array:
        d, size = x.shape[0], self.c["_attention_head_dim"]
        if kind == "ResBlock":
            y = self.conv(name + ".main.conv2.conv", silu(self.conv(name + ".main.conv1.conv", x, d)), d, bias=False)
            return x + self.norm(name + ".main.conv2.norm", y)
        at = name + ".context_module.main."
        parts = self.conv(at + "qkv.conv", x, 3 * d, 1, bias=False)
        y = self.conv(at + "aggreg.0.0", parts, 3 * d, 5, bias=False, groups=3 * d)
        y = self.conv(at + "aggreg.0.1", y, 3 * d, 1, bias=False, groups=3 * d // size)
        found = []
        for piece in chunks(cat([parts, y]), 2 * d // size, 0):
            q, k, v = (reshape(part, size, -1) for part in chunks(piece, 3, 0))
            q, k = swap(relu(q)), swap(relu(k))
            found.append(products(q, products(v, swap(k))) / (products(q, swap(sums(swap(k)))) + 1e-15))
        y = channels_first(cat(found, 1), x.shape[1:])
        x = x + self.norm(at + "proj.norm", self.conv(at + "proj.conv", y, d, 1, bias=False))
        at = name + ".local_module.main."
        y = self.conv(at + "depth_conv.conv", silu(self.conv(at + "inverted_conv.conv", x, 8 * d, 1)), 8 * d, groups=8 * d)
        value, gate = chunks(y, 2, 0)
        return x + self.norm(at + "point_conv.norm", self.conv(at + "point_conv.conv", value * silu(gate), d, 1, bias=False))

    def encode(self, x: Array) -> Array:
        c = self.c
        widths = c["width_list"]
        x = self.conv("encoder.project_in.conv", x, widths[0])
        for s, depth in enumerate(c["encoder_depth_list"]):
            for k in range(depth):
                x = self.block(f"encoder.stages.{s}.op_list.{k}", x, c["block_type"][s])
            if s < len(widths) - 1:
                t, out = 2 if c["temporal_downsample"][s] and x.shape[1] > 1 else 1, widths[s + 1]
                stride = [2 if c["temporal_downsample"][s] else 1, 2, 2]
                y = self.conv(f"encoder.stages.{s}.op_list.{depth}.main.conv", x, out, stride=stride)
                x = y + grouped(blocks_of(x, t), out)
        return self.conv("encoder.project_out.main.op_list.0.conv", x, c["latent_channels"]) + grouped(x, c["latent_channels"])

    def decode(self, z: Array) -> Array:
        c = self.c
        widths = c["width_list"]
        x = self.conv("decoder.project_in.main.conv", z, widths[-1]) + multiplied(z, widths[-1])
        for s in reversed(range(len(widths))):
            first = s < len(widths) - 1
            if first:
                t, out = 2 if c["temporal_downsample"][s] and x.shape[1] > 1 else 1, widths[s]
                times = doubled(x.shape[1]) if t == 2 else range(x.shape[1])
                y = self.conv(f"decoder.stages.{s}.op_list.0.main.conv.conv", select(x, times, doubled(x.shape[2]), doubled(x.shape[3])), out)
                x = y + from_blocks(multiplied(x, 4 * t * out), t)
            for k in range(c["decoder_depth_list"][s]):
                x = self.block(f"decoder.stages.{s}.op_list.{k + first}", x, c["block_type"][s])
        return self.conv("decoder.project_out.op_list.2.conv", relu(self.norm("decoder.project_out.op_list.0", x)), 3)


def video_dc_ae(draw: random.Random) -> Case:
    levels, size = draw.choice([2, 3]), 2
    widths = [size]
    for _ in range(levels - 1):
        widths.append(widths[-1] * draw.choice([1, 2]))
    in_time = [draw.random() < 0.6 for _ in range(levels - 1)] + [False]
    times = 2 ** sum(in_time)
    c = {"_class_name": "DCAE", "time_compression_ratio": times, "spatial_compression_ratio": 2 ** (levels - 1),
         "latent_channels": draw.choice([1, size]), "block_type": [draw.choice(["ResBlock", "EViTS5_GLU"]) for _ in widths[1:]] + ["EViTS5_GLU"],
         "_attention_head_dim": size, "width_list": widths, "encoder_depth_list": [1] * levels,
         "decoder_depth_list": [draw.choice([1, 2]) for _ in widths], "temporal_downsample": in_time,
         "scaling_factor": draw.choice([0.493, 2.0]), "spatial_tile_size": 64, "temporal_tile_size": 16, "tile_overlap_factor": 0.5, "cases": {}}
    w, step = Weights(draw), 2 ** (levels - 1)
    vae, case = VideoDcAe(w, c), Case("opensora_dc_ae", c, tolerance=OF_DIFFUSERS)
    for name, frames in (("video", times * draw.choice([1, 2])), ("image", 1), ("raw", 1)):
        given = {"video": name, "latent": "z" + name, "spatial": False, "temporal": False}
        if name == "raw":
            given["is_training"] = True
        c["cases"][name], factor = given, 1.0 if name == "raw" else c["scaling_factor"]
        video = noise(draw, [3, frames, step, step * draw.choice([1, 2])], 0.5)
        z = noise(draw, [c["latent_channels"], 1 if frames == 1 else draw.choice([1, 2]), 1, 2])
        case.inputs.update({"in." + name: stack([video]).tensor(), "in.z" + name: stack([z]).tensor()})
        case.expected.update({f"out.{name}.z": stack([vae.encode(video) * (1 / factor)]).tensor(),
                              f"out.{name}.decoded": stack([vae.decode(z * factor)]).tensor()})
    case.weights = w.tensors()
    return case


KINDS = {"opensora_vae12": vae12, "opensora_vae13": vae13, "opensora_dc_ae": video_dc_ae}
