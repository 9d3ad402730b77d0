"""What the networks of golden_wan.py and its like have in common: patches, rotations, and what a case expects of gradients.

A sample is computed alone, as programs do that pack their samples; the reference pads them and masks what is padded.
"""
import math
import random

from golden_files import Case, Tensor
from plain import Array, Weights, backward, cat, linear, mean, permute, reshape, square

BY_LARGEST = {"out": 1e-4, "loss": 1e-5, "grad": 1e-4, "grad_in": 1e-4}
OF_DIFFUSERS = {"out": {"rtol_of_max": 1e-4, "atol": 1e-6}, "grad": {"rtol_of_max": 5e-4, "atol": 1.5e-6}}


def error(outputs: list, targets: list) -> Array:
    """Mean over samples of the mean square."""
    losses = [reshape(mean(square(out - target)), 1) for out, target in zip(outputs, targets)]
    return mean(cat(losses))


def finish(case: Case, w: Weights, loss: Array, grad_in: dict) -> Case:
    """What the case expects of gradients. grad_in: name -> Array."""
    case.expected["out.loss"] = Tensor([], list(loss.v))
    backward(loss)
    case.weights = w.tensors()
    case.expected.update(w.gradients())
    case.expected.update({"grad_in." + name: array.gradient() for name, array in grad_in.items()})
    return case


class Adapted(Weights):
    """With a LoRA beside the linear layers whose names end with a target; `on`: whether it takes part."""

    def __init__(self, draw: random.Random, rank: int, alpha: float, targets: list):
        super().__init__(draw)
        self.rank, self.alpha, self.targets, self.on, self.adapter = rank, alpha, targets, False, Weights(draw)

    def linear(self, name: str, x: Array, out: int, bias: bool = True, kernel: list = ()) -> Array:
        y = super().linear(name, x, out, bias, kernel)
        if not self.on or not any(name.endswith("." + target) for target in self.targets):
            return y
        down = self.adapter(f"transformer.{name}.lora_A.weight", [self.rank, x.shape[-1]])
        up = self.adapter(f"transformer.{name}.lora_B.weight", [out, self.rank], 0.3)
        return y + linear(linear(x, down), up) * (self.alpha / self.rank)


def modulate(x: Array, shift: Array, scale: Array) -> Array:
    return x * (scale + 1) + shift


def thirds(d: int) -> tuple:
    """How Wan splits the pairs of a head over frames, rows and columns."""
    c = d // 2
    return c - 2 * (c // 3), c // 3, c // 3


def rope3(places: list, parts: tuple) -> list:
    """Angles of [(t, h, w)], each axis with rates of its own number of pairs."""
    return [[at * 10000.0 ** (-i / n) for at, n in zip(place, parts) for i in range(n)] for place in places]


def grid(frames: int, height: int, width: int) -> list:
    return [(t, y, x) for t in range(frames) for y in range(height) for x in range(width)]


def from_patches(y: Array, channels: int, shape: tuple, patch: tuple, channels_first: bool = False) -> Array:
    """[tokens, places of a patch * channels] to [C, F, H, W]; features in the order places, channels or the other one."""
    frames, height, width = (n // p for n, p in zip(shape, patch))
    sides = [frames, height, width, channels, *patch] if channels_first else [frames, height, width, *patch, channels]
    order = (3, 0, 4, 1, 5, 2, 6) if channels_first else (6, 0, 3, 1, 4, 2, 5)
    return reshape(permute(reshape(y, *sides), *order), channels, *shape)


def to_patches(x: Array, patch: tuple) -> Array:
    """[C, F, H, W] to [tokens, C * places]"""
    channels, (frames, height, width) = x.shape[0], (n // p for n, p in zip(x.shape[1:], patch))
    y = reshape(x, channels, frames, patch[0], height, patch[1], width, patch[2])
    return reshape(permute(y, 1, 3, 5, 0, 2, 4, 6), frames * height * width, -1)


def patches(w: Weights, name: str, x: Array, out: int, patch: tuple) -> Array:
    """A convolution whose kernel is its stride."""
    kernel = list(patch) if len(patch) == 3 else list(patch)
    weight = w(name + ".weight", [out, x.shape[0], *kernel])
    flat = to_patches(x, patch if len(patch) == 3 else (1, *patch))
    return linear(flat, weight, w(name + ".bias", [out]))


def sincos(values: list, width: int) -> list:
    rates = [10000.0 ** (-i / (width // 2)) for i in range(width // 2)]
    return [[f(v * r) for f in (math.sin, math.cos) for r in rates] for v in values]


def positions2(height: int, width: int, d: int, of_row, of_column) -> Array:
    """Of the columns, then of the rows."""
    across, down = (sincos([of(i) for i in range(n)], d // 2) for of, n in ((of_column, width), (of_row, height)))
    return Array([height * width, d], [x for y in range(height) for c in range(width) for x in across[c] + down[y]])
