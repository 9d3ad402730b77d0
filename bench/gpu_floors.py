#!/usr/bin/env python3
"""What a GPU does with LibTorch alone: the ceilings that our own times are held against (scripts/gpu).

    bench/gpu_floors.py machine    versions and the machine: driver, cuDNN, NCCL, locked memory, NUMA nodes
    bench/gpu_floors.py floors     copies, products of Wan's blocks, attention: a JSON object a line

Everything is measured hot and on normal data, because products of zeros are faster: half of the runs warm up, the other half
counts. Without a GPU the same code runs on the CPU with small sizes, which tells that it works and nothing else.
"""
import json
import os
import resource
import sys
import time
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
SECONDS = 0.6 if GPU else 0.05  # of a measurement
MIB = 2**20
WIDTHS = {"14b": (5120, 13824, 40), "1.3b": (1536, 8960, 12)} if GPU else {"tiny": (64, 128, 2)}  # width, feed-forward, heads
TOKENS = (32760, 75600, 4096) if GPU else (96,)
COPIED = 2048 * MIB if GPU else MIB


def synchronise():
    if GPU:
        torch.cuda.synchronize()


def seconds_of(work):
    """A run's mean time over the second half of the runs; at least four runs."""
    begun = time.perf_counter()
    work()
    synchronise()
    once = time.perf_counter() - begun
    runs = max(2, int(SECONDS / 2 / max(once, 1e-6)))
    for half in range(2):
        begun = time.perf_counter()
        for _ in range(runs):
            work()
        synchronise()
    return (time.perf_counter() - begun) / runs


def tell(name, value, digits=1):
    print(json.dumps({name: round(value, digits)}), flush=True)


def normal(*shape, **options):
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16, **options)


def copies():
    source, target = (torch.empty(COPIED, dtype=torch.uint8, device=DEVICE) for _ in range(2))
    tell("copy_gb_s", 2 * COPIED / seconds_of(lambda: target.copy_(source)) / 1e9)
    if not GPU:
        return
    up, down = (torch.empty(COPIED, dtype=torch.uint8, pin_memory=True) for _ in range(2))
    there, back = torch.cuda.Stream(), torch.cuda.Stream()

    def both():
        with torch.cuda.stream(there):
            target.copy_(up, non_blocking=True)
        with torch.cuda.stream(back):
            down.copy_(source, non_blocking=True)

    tell("host_to_device_gb_s", COPIED / seconds_of(lambda: target.copy_(up, non_blocking=True)) / 1e9)
    tell("device_to_host_gb_s", COPIED / seconds_of(lambda: down.copy_(source, non_blocking=True)) / 1e9)
    tell("both_ways_gb_s", 2 * COPIED / seconds_of(both) / 1e9)


def products():
    tokens = 32760 if GPU else 96
    for name, (width, inner, _) in WIDTHS.items():
        for rows, cols in ((width, width), (inner, width), (width, inner)):
            x, weight, gradient = normal(tokens, cols), normal(rows, cols), normal(tokens, rows)
            flop = 2 * tokens * rows * cols
            for kind, work in (("forward", lambda: x @ weight.T), ("input_gradient", lambda: gradient @ weight),
                               ("weight_gradient", lambda: gradient.T @ x)):
                tell(f"product_{name}_{cols}_to_{rows}_{kind}_tflop_s", flop / seconds_of(work) / 1e12)


def attention():
    backends = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION} if GPU else {"math": SDPBackend.MATH}
    for name, (width, _, heads) in WIDTHS.items():
        for tokens in TOKENS:
            q, k, v = (normal(1, heads, tokens, width // heads, requires_grad=True) for _ in range(3))
            up = normal(1, heads, tokens, width // heads)
            for backend, kind in backends.items():
                try:
                    with sdpa_kernel(kind):
                        forward = seconds_of(lambda: scaled_dot_product_attention(q, k, v))
                        both = seconds_of(lambda: torch.autograd.grad(scaled_dot_product_attention(q, k, v), (q, k, v), up))
                except RuntimeError as error:
                    print(f"attention {backend} {name} {tokens}: {str(error).splitlines()[0]}", flush=True)
                    continue
                flop = 4 * tokens * tokens * width
                tell(f"attention_{backend}_{name}_{tokens}_forward_tflop_s", flop / forward / 1e12)
                tell(f"attention_{backend}_{name}_{tokens}_backward_tflop_s", 2.5 * flop / (both - forward) / 1e12)


def machine():
    nodes = list(Path("/sys/devices/system/node").glob("node[0-9]*"))
    facts = {"torch": torch.__version__, "python": sys.version.split()[0], "cores": os.cpu_count(), "numa_nodes": len(nodes),
             "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
             "memlock_bytes": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]}
    if GPU:
        properties = torch.cuda.get_device_properties(0)
        facts |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(), "nccl": list(torch.cuda.nccl.version()),
                  "chip": f"sm_{properties.major}{properties.minor}", "multiprocessors": properties.multi_processor_count,
                  "device_gib": round(properties.total_memory / 2**30, 1)}
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["machine"]:
        machine()
    elif sys.argv[1:] == ["floors"]:
        for measure in (copies, products, attention):
            measure()
    else:
        sys.exit(__doc__)
