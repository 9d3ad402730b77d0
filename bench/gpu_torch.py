#!/usr/bin/env python3
"""What `tessera probe` does not tell of a GPU machine (scripts/gpu).

    bench/gpu_torch.py machine      versions and the machine: driver, cuDNN, NCCL, locked memory, NUMA nodes
    bench/gpu_torch.py attention    of cuDNN beside the flash kernel that trains, by PyTorch: a JSON object a line

Attention is measured hot and on normal data, because products of zeros are faster: half of the runs warm up, the other half
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
WIDTHS = {"14b": (5120, 40), "1.3b": (1536, 12)} if GPU else {"tiny": (64, 2)}  # width, heads
TOKENS = (32760, 75600, 4096) if GPU else (96,)


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


def attention():
    backends = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION} if GPU else {"math": SDPBackend.MATH}
    for name, (width, heads) in WIDTHS.items():
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
    elif sys.argv[1:] == ["attention"]:
        attention()
    else:
        sys.exit(__doc__)
