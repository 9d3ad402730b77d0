"""Autoencoders of pictures and videos in plain code, with widths, levels and sizes that are drawn: Wan's, HunyuanVideo's, DC-AE.

Maps are [C, T, H, W], or [C, H, W] of pictures. Nobody asks for gradients here.
"""
import math
import random

from golden_files import Case, Tensor, f32
from golden_networks import OF_DIFFUSERS
from plain import (Array, Weights, attention, cat, chunks, conv, heads, narrow, noise, permute, products, relu, reshape,
                   rsqrt, silu, square, stack, sums, swap, take, unheads)


def places_of(sides: list, chosen: list) -> list:
    """Of [C, *sides], the places of these indices along each side; None is a 0."""
    shape = sides[1:]
    places, step = [0], 1
    steps = []
    for n in reversed(shape):
        steps.append(step)
        step *= n
    for side, factor in zip(chosen, reversed(steps)):
        places = [None if at is None or i is None else at + i * factor for at in places for i in side]
    return [None if at is None else c * step + at for c in range(sides[0]) for at in places]


def select(x: Array, *chosen) -> Array:
    """The map at these indices along each side."""
    chosen = [list(side) for side in chosen]
    return take(x, places_of(x.shape, chosen), [x.shape[0], *map(len, chosen)])


def edges(n: int, before: int, behind: int, repeat: bool) -> list:
    return [min(max(i, 0), n - 1) if repeat or 0 <= i < n else None for i in range(-before, n + behind)]


def doubled(n: int) -> list:
    return [i // 2 for i in range(2 * n)]


def by_channel(x: Array, weight: Array) -> Array:
    return x * reshape(weight, -1, *[1] * (len(x.shape) - 1))


def channels_last(x: Array) -> Array:
    return swap(reshape(x, x.shape[0], -1))


def channels_first(rows: Array, shape: list) -> Array:
    return reshape(swap(rows), -1, *shape)


# Wan


class WanVae:
    def __init__(self, w: Weights, c: dict):
        self.w, self.c = w, c
        self.two = "dec_dim" in c

    def causal(self, name: str, x: Array, out: int, kernel: int = 3) -> Array:
        pad = kernel // 2
        return self.w.conv(name, x, out, [kernel] * 3, pad=[(2 * pad, 0), pad, pad])

    def norm(self, name: str, x: Array, ones: int = 3) -> Array:
        count = x.shape[0]
        lengths = rsqrt(permute(sums(square(channels_last(x))), 1, 0))
        y = reshape(x, count, -1) * lengths * math.sqrt(count)
        return reshape(by_channel(y, self.w(name + ".gamma", [count] + [1] * ones, 0.2, 1.0)), *x.shape)

    def residual(self, name: str, x: Array, out: int) -> Array:
        y = self.causal(name + ".residual.2", silu(self.norm(name + ".residual.0", x)), out)
        y = self.causal(name + ".residual.6", silu(self.norm(name + ".residual.3", y)), out)
        return y + (x if x.shape[0] == out else self.causal(name + ".shortcut", x, out, 1))

    def frames(self, x: Array) -> list:
        return [reshape(narrow(x, 1, t, 1), x.shape[0], *x.shape[2:]) for t in range(x.shape[1])]

    def join(self, frames: list) -> Array:
        return permute(stack(frames), 1, 0, 2, 3)

    def middle(self, name: str, x: Array) -> Array:
        d = x.shape[0]
        x = self.residual(name + ".0", x, d)
        found = []
        for frame in self.frames(x):
            y = self.w.conv(name + ".1.to_qkv", self.norm(name + ".1.norm", frame, 2), 3 * d, [1, 1])
            q, k, v = (heads(channels_last(part), 1) for part in chunks(y, 3, 0))
            y = channels_first(unheads(attention(q, k, v)), frame.shape[1:])
            found.append(frame + self.w.conv(name + ".1.proj", y, d, [1, 1]))
        return self.residual(name + ".2", self.join(found), d)

    def down(self, name: str, x: Array, in_time: bool) -> Array:
        d = x.shape[0]
        x = self.join([self.w.conv(name + ".resample.1", f, d, [3, 3], stride=2, pad=[(0, 1), (0, 1)]) for f in self.frames(x)])
        if not in_time:
            return x
        kernel = self.w(name + ".time_conv.weight", [d, d, 3, 1, 1]), self.w(name + ".time_conv.bias", [d])
        first = narrow(x, 1, 0, 1)
        return first if x.shape[1] == 1 else cat([first, conv(x, *kernel, stride=[2, 1, 1])], 1)

    def up(self, name: str, x: Array, in_time: bool) -> Array:
        d = x.shape[0]
        if in_time:
            self.w(name + ".time_conv.weight", [2 * d, d, 3, 1, 1]), self.w(name + ".time_conv.bias", [2 * d])
        if in_time and x.shape[1] > 1:  # the first frame stays one, and the others do not see it
            rest = narrow(x, 1, 1, x.shape[1] - 1)
            even, odd = (self.frames(p) for p in chunks(self.w.conv(name + ".time_conv", rest, 2 * d, [3, 1, 1], pad=[(2, 0), 0, 0]), 2, 0))
            x = self.join([*self.frames(narrow(x, 1, 0, 1)), *(f for both in zip(even, odd) for f in both)])
        out = d if self.two else d // 2
        return self.join([self.w.conv(name + ".resample.1", select(f, doubled(f.shape[1]), doubled(f.shape[2])), out, [3, 3], pad=1)
                          for f in self.frames(x)])

    def averaged(self, x: Array, out: int, in_time: bool, in_space: bool) -> Array:
        """Means over groups of the channels that pixels and pairs of frames become."""
        t, s = 1 + in_time, 1 + in_space
        if x.shape[1] % t:
            x = select(x, edges(x.shape[1], 1, 0, False), range(x.shape[2]), range(x.shape[3]))
        sides = [x.shape[1] // t, x.shape[2] // s, x.shape[3] // s]
        y = permute(reshape(x, x.shape[0], sides[0], t, sides[1], s, sides[2], s), 0, 2, 4, 6, 1, 3, 5)
        y = permute(reshape(y, out, x.shape[0] * t * s * s // out, -1), 0, 2, 1)
        return reshape(sums(y) * (1 / y.shape[-1]), out, *sides)

    def repeated(self, x: Array, out: int, in_time: bool) -> Array:
        t = 1 + in_time
        times, sides = out * t * 4 // x.shape[0], x.shape[1:]
        y = reshape(cat([reshape(x, x.shape[0], 1, -1)] * times, 1), out, t, 2, 2, *sides)
        y = reshape(permute(y, 0, 4, 1, 5, 2, 6, 3), out, sides[0] * t, 2 * sides[1], 2 * sides[2])
        return narrow(y, 1, t - 1, y.shape[1] - t + 1)

    def encode(self, video: Array) -> Array:
        """Mean and log variance, [2 z, ...]."""
        c, name = self.c, "encoder.downsamples."
        mult, in_time = c["dim_mult"], [*c["temperal_downsample"], False]
        if self.two:
            f, h, v = video.shape[1], video.shape[2] // 2, video.shape[3] // 2
            video = reshape(permute(reshape(video, 3, f, h, 2, v, 2), 0, 5, 3, 1, 2, 4), 12, f, h, v)
        x, at = self.causal("encoder.conv1", video, c["dim"]), 0
        for i, m in enumerate(mult):
            out, last, before = c["dim"] * m, i == len(mult) - 1, x
            for k in range(c["num_res_blocks"]):
                x = self.residual(f"{name}{i}.downsamples.{k}" if self.two else f"{name}{at}", x, out)
                at += 1
            if not last:
                x = self.down(f"{name}{i}.downsamples.{c['num_res_blocks']}" if self.two else f"{name}{at}", x, in_time[i])
                at += 1
            if self.two:
                x = x + self.averaged(before, out, in_time[i], not last)
        x = self.middle("encoder.middle", x)
        x = self.causal("encoder.head.2", silu(self.norm("encoder.head.0", x)), 2 * c["z_dim"])
        return self.causal("conv1", x, 2 * c["z_dim"], 1)

    def decode(self, z: Array) -> Array:
        """Of latents that are scaled."""
        c, name = self.c, "decoder.upsamples."
        mult, in_time = c["dim_mult"][::-1], [*c["temperal_downsample"][::-1], False]
        wide = c["dec_dim"] if self.two else c["dim"]
        z = by_channel(z, Array([c["z_dim"]], c["std"])) + Array([c["z_dim"], 1, 1, 1], c["mean"])
        x = self.middle("decoder.middle", self.causal("decoder.conv1", self.causal("conv2", z, c["z_dim"], 1), wide * mult[0]))
        at = 0
        for i, m in enumerate(mult):
            out, last, before = wide * m, i == len(mult) - 1, x
            for k in range(c["num_res_blocks"] + 1):
                x = self.residual(f"{name}{i}.upsamples.{k}" if self.two else f"{name}{at}", x, out)
                at += 1
            if last:
                break
            x = self.up(f"{name}{i}.upsamples.{c['num_res_blocks'] + 1}" if self.two else f"{name}{at}", x, in_time[i])
            at += 1
            if self.two:
                x = x + self.repeated(before, out, in_time[i])
        x = self.causal("decoder.head.2", silu(self.norm("decoder.head.0", x)), 12 if self.two else 3)
        if not self.two:
            return x
        f, h, v = x.shape[1:]
        return reshape(permute(reshape(x, 3, 2, 2, f, h, v), 0, 3, 4, 2, 5, 1), 3, f, 2 * h, 2 * v)


def wan_vae(draw: random.Random, two: bool) -> Case:
    levels = draw.choice([2, 3])
    mult = [1, *(draw.choice([1, 2]) for _ in range(levels - 1))]
    for i in range(1, levels):
        mult[i] = mult[i - 1] if two and i == levels - 1 else mult[i] * mult[i - 1]  # its last shortcut keeps the channels
    channels = draw.choice([2, 4, 5])
    # norms are over the channels of a place: those of two would be nearly nothing somewhere, and their rounding all there is
    c = {"_class_name": "WanVAE_", "dim": 4, "z_dim": channels, "dim_mult": mult, "num_res_blocks": draw.choice([1, 2]),
         "attn_scales": [], "temperal_downsample": [draw.random() < 0.6 for _ in range(levels - 1)], "dropout": 0.0,
         "mean": [f32(draw.gauss(0, 0.5)) for _ in range(channels)], "std": [f32(draw.uniform(0.5, 2)) for _ in range(channels)]}
    if two:
        c["dec_dim"] = draw.choice([4, 5])
    w = Weights(draw)
    vae, side = WanVae(w, c), 2 ** (levels - 1) * (2 if two else 1)
    case = Case("vae", c, tolerance={"out": 2e-4})
    case.expected = {"out.mean": Tensor([channels], c["mean"]), "out.std": Tensor([channels], c["std"])}
    for name, frames in (("video", draw.choice([5, 9])), ("image", 1)):
        video = noise(draw, [3, frames, side * draw.choice([1, 2]), side * draw.choice([1, 2, 3])], 0.5)
        mean, log_variance = chunks(vae.encode(video), 2, 0)
        latent = by_channel(mean - Array([channels, 1, 1, 1], c["mean"]), Array([channels], [1 / s for s in c["std"]]))
        case.inputs["in." + name] = video.tensor()
        for what, array in (("mu", mean), ("logvar", log_variance), ("latent", latent), ("decoded", vae.decode(latent))):
            case.expected[f"out.{name}_{what}"] = array.tensor()
    z = noise(draw, [channels, draw.choice([1, 2, 3]), draw.choice([1, 2]), draw.choice([1, 3])])
    case.inputs["in.z"], case.expected["out.z_decoded"] = z.tensor(), vae.decode(z).tensor()
    case.weights = w.tensors()
    return case


# HunyuanVideo's


class HunyuanVae:
    def __init__(self, w: Weights, c: dict):
        self.w, self.c = w, c

    def causal(self, name: str, x: Array, out: int, kernel: int = 3, stride: list = None) -> Array:
        """Frames in front and pixels around repeat the nearest."""
        k = kernel // 2
        x = select(x, edges(x.shape[1], 2 * k, 0, True), edges(x.shape[2], k, k, True), edges(x.shape[3], k, k, True))
        return self.w.conv(name + ".conv", x, out, [kernel] * 3, stride=stride or [1, 1, 1])

    def norm(self, name: str, x: Array) -> Array:
        groups, count = self.c["norm_num_groups"], x.shape[0]
        y = reshape(x, groups, -1)
        y = y - sums(y) * (1 / y.shape[1])
        y = reshape(y * rsqrt(sums(square(y)) * (1 / y.shape[1]) + 1e-6), *x.shape)
        return by_channel(y, self.w.norm(name + ".weight", count)) + reshape(self.w(name + ".bias", [count]), -1, 1, 1, 1)

    def resnet(self, name: str, x: Array, out: int) -> Array:
        y = self.causal(name + ".conv1", silu(self.norm(name + ".norm1", x)), out)
        y = self.causal(name + ".conv2", silu(self.norm(name + ".norm2", y)), out)
        return y + (x if x.shape[0] == out else self.causal(name + ".conv_shortcut", x, out, 1))

    def middle(self, name: str, x: Array) -> Array:
        d, frame = x.shape[0], x.shape[2] * x.shape[3]
        x = self.resnet(name + ".resnets.0", x, d)
        at = name + ".attentions.0."
        rows = channels_last(self.norm(at + "group_norm", x))
        q, k, v = (heads(self.w.linear(at + "to_" + p, rows, d), 1) for p in "qkv")
        n = rows.shape[0]
        later = Array([1, n, n], [0.0 if b // frame <= a // frame else -math.inf for a in range(n) for b in range(n)])
        y = self.w.linear(at + "to_out.0", unheads(attention(q, k, v, bias=later)), d)
        return self.resnet(name + ".resnets.1", x + channels_first(y, x.shape[1:]), d)

    def encode(self, x: Array) -> Array:
        c = self.c
        widths = c["block_out_channels"]
        x = self.causal("encoder.conv_in", x, widths[0])
        for i, out in enumerate(widths):
            for k in range(c["layers_per_block"]):
                x = self.resnet(f"encoder.down_blocks.{i}.resnets.{k}", x, out)
            if i < len(widths) - 1:
                x = self.causal(f"encoder.down_blocks.{i}.downsamplers.0.conv", x, out, stride=[2 if i > 0 else 1, 2, 2])
        x = self.middle("encoder.mid_block", x)
        x = self.causal("encoder.conv_out", silu(self.norm("encoder.conv_norm_out", x)), 2 * c["latent_channels"])
        return self.w.conv("quant_conv", x, 2 * c["latent_channels"], [1, 1, 1])

    def decode(self, z: Array) -> Array:
        c = self.c
        widths = c["block_out_channels"][::-1]
        x = self.causal("decoder.conv_in", self.w.conv("post_quant_conv", z, c["latent_channels"], [1, 1, 1]), widths[0])
        x = self.middle("decoder.mid_block", x)
        for i, out in enumerate(widths):
            for k in range(c["layers_per_block"] + 1):
                x = self.resnet(f"decoder.up_blocks.{i}.resnets.{k}", x, out)
            if i == len(widths) - 1:
                break
            times = [0, *(t for t in range(1, x.shape[1]) for _ in (0, 1))] if i > 0 else range(x.shape[1])
            x = select(x, times, doubled(x.shape[2]), doubled(x.shape[3]))
            x = self.causal(f"decoder.up_blocks.{i}.upsamplers.0.conv", x, out)
        return self.causal("decoder.conv_out", silu(self.norm("decoder.conv_norm_out", x)), 3)


def hunyuan_vae(draw: random.Random) -> Case:
    groups = draw.choice([1, 2])
    widths = [groups * draw.choice([2, 3]) for _ in range(4)]
    c = {"_class_name": "AutoencoderKLHunyuanVideo", "in_channels": 3, "out_channels": 3,
         "down_block_types": ["HunyuanVideoDownBlock3D"] * 4, "up_block_types": ["HunyuanVideoUpBlock3D"] * 4, "act_fn": "silu",
         "scaling_factor": draw.choice([0.476986, 1.3]), "spatial_compression_ratio": 8, "temporal_compression_ratio": 4,
         "mid_block_add_attention": True, "latent_channels": draw.choice([1, 2, 5]), "block_out_channels": widths,
         "layers_per_block": draw.choice([1, 2]), "norm_num_groups": groups}
    w = Weights(draw)
    vae = HunyuanVae(w, c)
    video = noise(draw, [3, draw.choice([1, 5]), 8, 8 * draw.choice([1, 2])], 0.5)
    z = noise(draw, [c["latent_channels"], draw.choice([1, 2]), 2, draw.choice([1, 2])])
    moments = vae.encode(video)
    case = Case("hunyuan_vae", c, {"in.video": stack([video]).tensor(), "in.z": stack([z]).tensor()}, tolerance=OF_DIFFUSERS)
    mean, log_variance = chunks(moments, 2, 0)
    deviation = Array(mean.shape, [math.exp(min(20.0, max(-30.0, v)) / 2) for v in log_variance.v])
    for name, array in (("moments", moments), ("mean", mean), ("std", deviation), ("image_moments", vae.encode(narrow(video, 1, 0, 1))),
                        ("decoded", vae.decode(z))):
        case.expected["out." + name] = stack([array]).tensor()
    case.weights = w.tensors()
    return case


# DC-AE


def unshuffled(x: Array) -> Array:
    """Blocks of 2 x 2 pixels as channels."""
    h, v = x.shape[1] // 2, x.shape[2] // 2
    return reshape(permute(reshape(x, x.shape[0], h, 2, v, 2), 0, 2, 4, 1, 3), 4 * x.shape[0], h, v)


def shuffled(x: Array) -> Array:
    out, h, v = x.shape[0] // 4, *x.shape[1:]
    return reshape(permute(reshape(x, out, 2, 2, h, v), 0, 3, 1, 4, 2), out, 2 * h, 2 * v)


def grouped(x: Array, out: int) -> Array:
    """Means of neighbouring channels."""
    y = permute(reshape(x, out, x.shape[0] // out, -1), 0, 2, 1)
    return reshape(sums(y) * (1 / y.shape[-1]), out, *x.shape[1:])


def multiplied(x: Array, out: int) -> Array:
    """Each channel several times."""
    return reshape(cat([reshape(x, x.shape[0], 1, -1)] * (out // x.shape[0]), 1), out, *x.shape[1:])


class DcAe:
    def __init__(self, w: Weights, c: dict):
        self.w, self.c = w, c

    def norm(self, name: str, x: Array) -> Array:
        count = x.shape[0]
        rows = channels_last(x)
        y = rows * rsqrt(sums(square(rows)) * (1 / count) + 1e-5)
        return channels_first(y * self.w.norm(name + ".weight", count) + self.w(name + ".bias", [count]), x.shape[1:])

    def conv(self, name: str, x: Array, out: int, **how) -> Array:
        return self.w.conv(name, x, out, [3, 3], pad=1, **how)

    def block(self, name: str, x: Array, kind: str) -> Array:
        d, w = x.shape[0], self.w
        if kind == "ResBlock":
            y = self.conv(name + ".conv2", silu(self.conv(name + ".conv1", x, d)), d, bias=False)
            return x + self.norm(name + ".norm", y)
        at, size, wide = name + ".attn.", self.c["attention_head_dim"], 4 * d
        parts = cat([channels_first(w.linear(at + "to_" + p, channels_last(x), d, bias=False), x.shape[1:]) for p in "qkv"])
        y = w.conv(at + "to_qkv_multiscale.0.proj_in", parts, 3 * d, [5, 5], bias=False, groups=3 * d, pad=2)
        y = w.conv(at + "to_qkv_multiscale.0.proj_out", y, 3 * d, [1, 1], bias=False, groups=3 * d // size)
        found = []
        for piece in chunks(cat([parts, y]), 2 * d // size, 0):
            q, k, v = (reshape(part, size, -1) for part in chunks(piece, 3, 0))
            q, k = swap(relu(q)), swap(relu(k))
            above = products(q, products(v, swap(k)))  # rows times rows
            found.append(above / (products(q, swap(sums(swap(k)))) + 1e-15))
        y = w.linear(at + "to_out", cat(found, 1), d, bias=False)
        x = x + self.norm(at + "norm_out", channels_first(y, x.shape[1:]))
        at = name + ".conv_out."
        y = silu(w.conv(at + "conv_inverted", x, 2 * wide, [1, 1]))
        value, gate = chunks(w.conv(at + "conv_depth", y, 2 * wide, [3, 3], groups=2 * wide, pad=1), 2, 0)
        return x + self.norm(at + "norm", w.conv(at + "conv_point", value * silu(gate), d, [1, 1], bias=False))

    def encode(self, image: Array) -> Array:
        c, name = self.c, "encoder."
        widths = c["encoder_block_out_channels"]
        x = self.conv(name + "conv_in", image, widths[0])
        for s, (kind, depth) in enumerate(zip(c["encoder_block_types"], c["encoder_layers_per_block"])):
            for k in range(depth):
                x = self.block(f"{name}down_blocks.{s}.{k}", x, kind)
            if s < len(widths) - 1:
                out = widths[s + 1]
                x = self.conv(f"{name}down_blocks.{s}.{depth}.conv", x, out, stride=2) + grouped(unshuffled(x), out)
        return self.conv(name + "conv_out", x, c["latent_channels"]) + grouped(x, c["latent_channels"])

    def decode(self, z: Array) -> Array:
        c, name = self.c, "decoder."
        widths = c["decoder_block_out_channels"]
        x = self.conv(name + "conv_in", z, widths[-1]) + multiplied(z, widths[-1])
        for s in reversed(range(len(widths))):
            first = s < len(widths) - 1
            if first:
                out = widths[s]
                y = self.conv(f"{name}up_blocks.{s}.0.conv", select(x, doubled(x.shape[1]), doubled(x.shape[2])), out)
                x = y + shuffled(multiplied(x, 4 * out))
            for k in range(c["decoder_layers_per_block"][s]):
                x = self.block(f"{name}up_blocks.{s}.{k + first}", x, c["decoder_block_types"][s])
        return self.conv(name + "conv_out", relu(self.norm(name + "norm_out", x)), 3)


def dc_ae(draw: random.Random) -> Case:
    levels, size = draw.choice([2, 3, 4]), draw.choice([2, 3])
    c = {"_class_name": "AutoencoderDC", "in_channels": 3, "latent_channels": draw.choice([1, size]), "attention_head_dim": size}
    for half in ("encoder", "decoder"):
        width, widths = size, []
        for _ in range(levels):
            widths.append(width)
            width *= draw.choice([1, 2])
        kinds = ["EfficientViTBlock" if s == levels - 1 or draw.random() < 0.4 else "ResBlock" for s in range(levels)]
        c.update({half + "_block_types": kinds, half + "_block_out_channels": widths,
                  half + "_layers_per_block": [draw.choice([1, 2]) for _ in kinds],
                  half + "_qkv_multiscales": [[5] if kind == "EfficientViTBlock" else [] for kind in kinds]})
    c.update({"upsample_block_type": "interpolate", "downsample_block_type": "conv", "decoder_norm_types": "rms_norm",
              "decoder_act_fns": "silu", "encoder_out_shortcut": True, "decoder_in_shortcut": True, "decoder_conv_act_fn": "relu",
              "scaling_factor": draw.choice([0.41407, 2.0])})
    w, batch, step = Weights(draw), draw.choice([1, 2]), 2 ** (levels - 1)
    vae = DcAe(w, c)
    images = [noise(draw, [3, step, 3 * step], 0.5)]
    images += [noise(draw, images[0].shape, 0.5) for _ in range(batch - 1)]
    latents = [noise(draw, [c["latent_channels"], 3, 1]) for _ in range(batch)]
    case = Case("dc_ae", c, {"in.image": stack(images).tensor(), "in.z": stack(latents).tensor()}, tolerance=OF_DIFFUSERS)
    case.expected = {"out.latent": stack([vae.encode(x) for x in images]).tensor(),
                     "out.decoded": stack([vae.decode(z) for z in latents]).tensor()}
    case.weights = w.tensors()
    return case


KINDS = {"wan21_vae": lambda draw: wan_vae(draw, False), "wan22_vae": lambda draw: wan_vae(draw, True), "hunyuan_vae": hunyuan_vae,
         "dc_ae": dc_ae}
