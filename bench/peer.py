"""What the peers share: the 36M Wan of diffusers, the counting allocator, and two ranks that print one JSON line."""
import ctypes
import json
import multiprocessing
import os
import socket
import sys
import time
from pathlib import Path

import shapes

LEARNING_RATE = 1e-4


def load_shim():
    """The counting allocator; must come before the first tensor."""
    import torch  # noqa: F401  (its libc10 is what the shim resolves against)

    shim = ctypes.CDLL(Path(sys.prefix) / "alloc_shim.so")
    for name in ("shim_live", "shim_peak"):
        getattr(shim, name).restype = ctypes.c_size_t
    shim.shim_install()
    return shim


def build_model():
    from diffusers import WanTransformer3DModel

    m = shapes.MODEL
    return WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=m["num_heads"], attention_head_dim=m["dim"] // m["num_heads"],
        in_channels=m["in_dim"], out_channels=m["out_dim"], text_dim=m["text_dim"], freq_dim=m["freq_dim"],
        ffn_dim=m["ffn_dim"], num_layers=m["num_layers"], cross_attn_norm=True, qk_norm="rms_norm_across_heads")


def inputs(rank, tokens):
    """Latent, target, text and timestep of the rank's one sample."""
    import torch

    torch.manual_seed(rank)
    latent = torch.randn(1, *shapes.LATENTS[tokens])
    return latent, torch.randn_like(latent), torch.randn(1, shapes.MODEL["text_len"], shapes.MODEL["text_dim"]), torch.tensor([500.0])


def timed(args, shim, one_step):
    """Runs one_step(step) on all ranks together, warm-up first; seconds of each measured step. Peaks count from the end of the first."""
    import torch.distributed as dist

    seconds = []
    for step in range(args.warmup + args.steps):
        dist.barrier()
        start = time.perf_counter()
        one_step(step)
        if step >= args.warmup:
            seconds.append(time.perf_counter() - start)
        if step == 0:
            shim.shim_reset_peak()
    return seconds


def on_ranks(run_rank, args):
    """Runs run_rank(rank, args) -> dict on every rank, started afresh with the variables of a launcher; prints the largest of each number."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    ranks = [context.Process(target=one_rank, args=(run_rank, r, port, args, results)) for r in range(shapes.RANKS)]
    for p in ranks:
        p.start()
    for p in ranks:
        p.join()
    if any(p.exitcode for p in ranks):
        sys.exit("bench: a rank of the peer failed; its error is above")
    all_ranks = [results.get() for _ in ranks]
    line = {key: max(r[key] for r in all_ranks) for key in all_ranks[0] if key != "seconds"}
    print(json.dumps({"seconds": [max(step) for step in zip(*(r["seconds"] for r in all_ranks))], **line}))


def one_rank(run_rank, rank, port, args, results):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(shapes.RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    results.put(run_rank(rank, args))
