#!/usr/bin/env python3
"""Attention by cuDNN beside the flash kernel that trains, through PyTorch (scripts/gpu): whether both are right, whether they give the
same bits twice, and how fast they are. A JSON object a line.

An error is the largest difference of output or gradients to the exact computation of one head in fp32, of the largest value there.
Lengths are those of published models, and multiples of 128 with remainders; scores around -100 show a maximum that starts at zero.
Times are taken hot and on normal data, because products of zeros are faster: half of the runs warm up, the other half counts. Without
a GPU the same code runs on the CPU with small sizes, which tells that it works and nothing else.
"""
import json
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
SECONDS = 0.3 if GPU else 0.02  # of a measurement
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION} if GPU else \
    {"math": SDPBackend.MATH, "flash": SDPBackend.FLASH_ATTENTION}
HEADS = {"14b": (40, 128), "1.3b": (12, 128)} if GPU else {"tiny": (2, 32)}  # heads, their width
REMAINDERS = (0, 8, 24, 64, 120) if GPU else (0, 24)
FEW = 4096 if GPU else 128  # tokens
# (of HEADS, tokens): what decides most comes first
TIMED = [("14b", 32760), ("1.3b", 32760), ("14b", 4096), ("1.3b", 4096), ("1.3b", 7800), ("14b", 75600)] if GPU else [("tiny", 96)]
WORST = 0.03  # error of a kernel in bf16
FAR = 100  # from zero


def synchronise():
    if GPU:
        torch.cuda.synchronize()


def seconds_of(work):
    """A run's mean time over the second half of the runs."""
    begun = time.perf_counter()
    work()
    synchronise()
    runs = max(1, int(SECONDS / 2 / max(time.perf_counter() - begun, 1e-6)))
    for half in range(2):
        begun = time.perf_counter()
        for _ in range(runs):
            work()
        synchronise()
    return (time.perf_counter() - begun) / runs


def drawn(heads, tokens, width, shift=0.0):
    """[1, H, T, d] as our linears leave it: tokens outside, heads inside."""
    values = torch.randn(1, tokens, heads, width, device=DEVICE) + shift
    return values.bfloat16().transpose(1, 2).requires_grad_()


def inputs(heads, tokens, width, far=False):
    shift = (FAR / width**0.5) ** 0.5 if far else 0.0  # of q and, negative, of k: their product is -FAR sqrt(d)
    return drawn(heads, tokens, width, shift), drawn(heads, tokens, width, -shift), drawn(heads, tokens, width), drawn(heads, tokens, width).detach()


def both(kind, q, k, v, up):
    """(output, gradients)."""
    with sdpa_kernel(kind):
        out = scaled_dot_product_attention(q, k, v)
        return [out.detach(), *torch.autograd.grad(out, (q, k, v), up)]


def exact(q, k, v, up, head):
    """The same of one head in fp32, without a matrix of all scores."""
    q, k, v, up = (t[0, head].detach().float() for t in (q, k, v, up))
    scale, outs, dqs, dk, dv = q.shape[1] ** -0.5, [], [], torch.zeros_like(k), torch.zeros_like(v)
    for first in range(0, q.shape[0], 2048):
        rows = slice(first, first + 2048)
        weights = torch.softmax(q[rows] @ k.T * scale, dim=1)
        outs.append(weights @ v)
        dv += weights.T @ up[rows]
        scores = weights * (up[rows] @ v.T - (up[rows] * outs[-1]).sum(1, keepdim=True)) * scale
        dqs.append(scores @ k)
        dk += scores.T @ q[rows]
    return [torch.cat(outs), torch.cat(dqs), dk, dv]


def error_of(found, wanted, head):
    """Infinite where something is not a number."""
    worst = max(((a[0, head].float() - b).abs().max() / b.abs().max()).item() for a, b in zip(found, wanted))
    return worst if worst == worst else float("inf")


class Told:
    def __init__(self):
        self.wrong = []

    def number(self, name, value, digits=1):
        print(json.dumps({f"attention_{name}": round(value, digits) if value != float("inf") else "inf"}), flush=True)

    def right(self, name, arguments, bits=False):
        """Errors of all backends beside each other."""
        heads = arguments[0].shape[1]
        wanted = exact(*arguments, heads - 1)
        for backend, kind in BACKENDS.items():
            try:
                found = both(kind, *arguments)
                error = error_of(found, wanted, heads - 1)
                self.number(f"{backend}_{name}_error", error, 5)
                if bits:
                    same = all(torch.equal(a, b) for a, b in zip(found, both(kind, *arguments)))
                    self.number(f"{backend}_{name}_same_bits_twice", int(same), 0)
            except RuntimeError as failure:
                print(f"attention {backend} {name}: {str(failure).splitlines()[0]}", flush=True)
                error = float("inf")
            if error > WORST:
                self.wrong.append(f"{backend} {name}")

    def fast(self, name, tokens, arguments):
        heads, width = arguments[0].shape[1], arguments[0].shape[3]
        flop = 4 * tokens * tokens * heads * width
        for backend, kind in BACKENDS.items():
            try:
                with sdpa_kernel(kind):
                    forward = seconds_of(lambda: scaled_dot_product_attention(*arguments[:3]))
                whole = seconds_of(lambda: both(kind, *arguments))
            except RuntimeError as failure:
                print(f"attention {backend} {name}: {str(failure).splitlines()[0]}", flush=True)
                continue
            self.number(f"{backend}_{name}_{tokens}_forward_tflop_s", flop / forward / 1e12)
            if whole > forward:
                self.number(f"{backend}_{name}_{tokens}_backward_tflop_s", 2.5 * flop / (whole - forward) / 1e12)


def main():
    torch.manual_seed(1)
    told = Told()
    for remainder in REMAINDERS:
        for far in (False, True):
            heads, width = 2, next(iter(HEADS.values()))[1]
            told.right(f"{FEW + remainder}{'_far' if far else ''}", inputs(heads, FEW + remainder, width, far))
    for name, tokens in TIMED:
        arguments = inputs(HEADS[name][0], tokens, HEADS[name][1])
        if name in ("14b", "tiny"):
            told.right(f"{name}_{tokens}", arguments, bits=True)
        told.fast(name, tokens, arguments)
    if told.wrong:
        sys.exit("gpu_torch: wrong attention: " + ", ".join(told.wrong))


if __name__ == "__main__":
    main()
