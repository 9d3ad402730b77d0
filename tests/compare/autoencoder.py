"""Wan's autoencoders at the smallest size, with random weights: a folder that `data.vae` takes.

    make(folder / "wan21", patch=1)      # Wan 2.1's, 16 channels, blocks of 8 x 8 pixels
    make(folder / "wan22", patch=2)      # Wan 2.2's, 48 channels, blocks of 16 x 16
"""
import array
import json
import math
import random
import struct
from pathlib import Path

DIM, MULTIPLES, IN_TIME, BLOCKS = 4, [1, 2, 4, 4], [False, True, True], 2
CHANNELS = {1: 16, 2: 48}


class Weights:
    """Shapes by name, of the layers in the official files."""

    def __init__(self):
        self.shapes = {}

    def layer(self, name: str, outputs: int, inputs: int, *kernel: int) -> None:
        self.shapes[name + ".weight"] = [outputs, inputs, *kernel]
        self.shapes[name + ".bias"] = [outputs]

    def norm(self, name: str, channels: int, ones: int = 3) -> None:
        self.shapes[name + ".gamma"] = [channels] + [1] * ones

    def residual(self, name: str, inputs: int, outputs: int) -> None:
        self.norm(name + ".residual.0", inputs)
        self.layer(name + ".residual.2", outputs, inputs, 3, 3, 3)
        self.norm(name + ".residual.3", outputs)
        self.layer(name + ".residual.6", outputs, outputs, 3, 3, 3)
        if inputs != outputs:
            self.layer(name + ".shortcut", outputs, inputs, 1, 1, 1)

    def middle(self, side: str, channels: int) -> None:
        self.residual(side + ".middle.0", channels, channels)
        self.norm(side + ".middle.1.norm", channels, 2)
        self.layer(side + ".middle.1.to_qkv", 3 * channels, channels, 1, 1)
        self.layer(side + ".middle.1.proj", channels, channels, 1, 1)
        self.residual(side + ".middle.2", channels, channels)

    def head(self, side: str, channels: int, outputs: int) -> None:
        self.norm(side + ".head.0", channels)
        self.layer(side + ".head.2", outputs, channels, 3, 3, 3)

    def write(self, path: Path, seed: int) -> None:
        rng, header, data, at = random.Random(seed), {}, [], 0
        for name, shape in self.shapes.items():
            count = math.prod(shape)
            spread = 1.0 / math.sqrt(math.prod(shape[1:]) or 1) if name.endswith("weight") else 0.02
            middle = 1.0 if name.endswith("gamma") else 0.0
            values = array.array("f", (middle + spread * rng.uniform(-1.7, 1.7) for _ in range(count)))
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * count]}
            data.append(values.tobytes())
            at += 4 * count
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))


def make(folder: Path, patch: int) -> None:
    weights, nested, latent = Weights(), patch == 2, CHANNELS[patch]
    colours, levels = 3 * patch * patch, len(MULTIPLES)
    decoder = DIM * patch
    weights.layer("encoder.conv1", DIM, colours, 3, 3, 3)
    channels, index = DIM, 0

    def name(side: str, level: int) -> str:
        nonlocal index
        index += 1
        return f"{side}.{level}.{side.split('.')[1]}.{index - 1}" if nested else f"{side}.{index - 1}"

    for level, multiple in enumerate(MULTIPLES):
        width, index = DIM * multiple, 0 if nested else index
        for _ in range(BLOCKS):
            weights.residual(name("encoder.downsamples", level), channels, width)
            channels = width
        if level + 1 < levels:
            here = name("encoder.downsamples", level)
            weights.layer(here + ".resample.1", width, width, 3, 3)
            if IN_TIME[level]:
                weights.layer(here + ".time_conv", width, width, 3, 1, 1)
    weights.middle("encoder", channels)
    weights.head("encoder", channels, 2 * latent)
    weights.layer("conv1", 2 * latent, 2 * latent, 1, 1, 1)
    weights.layer("conv2", latent, latent, 1, 1, 1)

    channels, index = decoder * MULTIPLES[-1], 0
    weights.layer("decoder.conv1", channels, latent, 3, 3, 3)
    weights.middle("decoder", channels)
    for step, multiple in enumerate(reversed(MULTIPLES)):
        level, width, index = levels - 1 - step, decoder * multiple, 0 if nested else index
        for _ in range(BLOCKS + 1):
            weights.residual(name("decoder.upsamples", step), channels, width)
            channels = width
        if level == 0:
            break
        here, channels = name("decoder.upsamples", step), width if nested else width // 2
        weights.layer(here + ".resample.1", channels, width, 3, 3)
        if IN_TIME[level - 1]:
            weights.layer(here + ".time_conv", 2 * width, width, 3, 1, 1)
    weights.head("decoder", channels, colours)

    folder.mkdir(parents=True)
    weights.write(folder / "model.safetensors", seed=patch)
    sizes = {"_class_name": "WanVAE_", "dim": DIM, "z_dim": latent, "dim_mult": MULTIPLES, "num_res_blocks": BLOCKS,
             "attn_scales": [], "temperal_downsample": IN_TIME}
    (folder / "config.json").write_text(json.dumps(sizes | ({"dec_dim": decoder} if nested else {})))
