#!/usr/bin/env python3
"""Training steps of Wan's 14B on a GPU, held against their plans: seconds, memory, and gaps between what the GPU computes.

    bench/gpu_steps.py block PROGRAM                                  one block at 32,760 tokens, kept
    bench/gpu_steps.py keep|recompute|offload|just-in-time PROGRAM    eight blocks under one policy
    bench/gpu_steps.py real PROGRAM                                   all forty, one step: full training in gradients of bf16 and moments
                                                                      of int8 where that fits with 24 GiB of the host, else LoRA of rank 32
    bench/gpu_steps.py whole PROGRAM                                  all forty, full training, three steps
        --profile FILE    what `tessera probe` measured of this GPU: the seconds that the plan predicts
        --keep DIR        where traces and what the last step launched (WHAT-kernels.json) are left
        --small           a dry run: the same with small sizes

A JSON object of numbers. Where eight blocks do not fit, four or two are taken, and the numbers say so. The whole model takes the
formats of gradients and moments that its memory asks for: fp32, then gradients in bf16, then moments in int8.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

GIB = 2**30
NO_FIT, NO_MEMORY = 4, 8  # exit codes of the program
BLOCK = {"dim": 5120, "num_heads": 40, "ffn_dim": 13824, "in_dim": 16, "out_dim": 16}
SMALL = {"dim": 128, "num_heads": 2, "ffn_dim": 256, "in_dim": 16, "out_dim": 16, "text_dim": 64, "text_len": 16}
# Of a plan: its own keys, those of all units, and those of its blocks.
POLICIES = {
    "block": ("", "", 'activations = "keep"'),
    "keep": ("", "", 'activations = "keep"'),
    "recompute": ("", "", 'activations = "recompute"'),
    "offload": ("", "", 'activations = "offload"'),
    "just-in-time": ('update = "just_in_time"', 'states = "host"', 'activations = "recompute"'),
}
FORMATS = ([], ["--grad", "bf16"], ["--grad", "bf16", "--moments", "int8"])
RANK = 32  # of adapters
BESIDE = 24 * GIB  # of the host, where the whole model takes some 8 GiB more than a GPU of 141 GB has; more takes long to lock


def plan_of(policy):
    own, units, blocks = POLICIES[policy]
    return (f'global_batch = 1\nmicro_batch = 1\ncompute_dtype = "bf16"\n{own}\n[mesh]\ndp_shard = 1\n'
            f'[[units]]\nname = "*"\n{units}\n[[units]]\nname = "blocks.*"\n{blocks}\n')


def bench(options, layers, *flags):
    """(exit code, the numbers that it printed)."""
    config = {**(SMALL if options.small else BLOCK), "num_layers": layers}
    latent = "16,1,8,8" if options.small else "16,21,60,104"
    words = [options.program, "bench", "--device", "cuda", "--compute", "bf16", "--latent", latent, "--config", json.dumps(config),
             "--profile", options.profile, *flags]
    done = subprocess.run([str(w) for w in words], stdout=subprocess.PIPE, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return done.returncode, lines[-1] if lines else {}


def gaps(trace):
    """Of the last step: its share in which the compute lane has nothing to do, and the longest such moment."""
    if not trace.exists():
        return {}
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    step = max(line["step"] for line in lines)
    compute = sorted((line["t0"], line["t1"], f"{line['op']} {line.get('unit') or ''}".strip())
                     for line in lines if line["step"] == step and line["lane"] == "compute")
    idle = [(max(0.0, after[0] - before[1]), after[2]) for before, after in zip(compute, compute[1:])]
    longest, before = max(idle)
    span = compute[-1][1] - compute[0][0]
    return {"gap_percent": round(100 * sum(seconds for seconds, _ in idle) / span, 2), "longest_gap_ms": round(1e3 * longest, 2),
            "longest_gap_before": before}


def measured(line):
    return "seconds" in line


def numbers_of(line):
    step = statistics.median(line["seconds"])
    return {"step_s": round(step, 4), "predicted_s": round(line["predicted_seconds"], 4),
            "predicted_off_percent": round(100 * (line["predicted_seconds"] / step - 1), 1),
            "peak_gib": round(line["peak_bytes"] / GIB, 3), "planned_peak_gib": round(line["predicted_peak_bytes"] / GIB, 3),
            "host_gib": round(line["host_bytes"] / GIB, 3),
            **({"planned_nvml_gib": round(line["predicted_driver_bytes"] / GIB, 3)} if "predicted_driver_bytes" in line else {})}


def launches(file):
    """Of what a step launched: how much, how long, and what took longest."""
    if not file.exists():
        return {}
    kernels = json.loads(file.read_text())
    total = sum(kernel["us"] for kernel in kernels) or 1
    return {"launches": sum(kernel["count"] for kernel in kernels), "kernels_ms": round(total / 1e3, 2),
            "longest": [f"{100 * kernel['us'] / total:.1f} % {kernel['count']}x {kernel['kernel'][:60]}" for kernel in kernels[:8]]}


def within(line):
    """0 if the step took no more memory than its plan says."""
    if line["peak_bytes"] <= line["predicted_peak_bytes"]:
        return 0
    print("gpu_steps: a step takes more memory than its plan says")
    return 1


def blocks(options, folder):
    plan, trace, kernels = folder / "plan.toml", folder / f"{options.what}-trace.jsonl", folder / f"{options.what}-kernels.json"
    plan.write_text(plan_of(options.what))
    for layers in (1,) if options.what == "block" else (2,) if options.small else (8, 4, 2):
        code, line = bench(options, layers, "--plan", plan, "--trace", trace, "--kernels", kernels, "--steps", 3, "--warmup", 2)
        if code != NO_FIT:
            break
    if not measured(line):
        return code
    # a program that ended badly behind its line has measured all the same
    print(json.dumps({"blocks": layers, **numbers_of(line), **gaps(trace), **launches(kernels)}), flush=True)
    return code or within(line)


def real(options, folder):
    """The whole model, as the GPU trains it."""
    layers, times = 2 if options.small else 40, ["--warmup", 1, "--steps", 1]
    full, lora = [*FORMATS[-1], "--host-budget", BESIDE], ["--lora", 8 if options.small else RANK]
    fits = not options.small and bench(options, layers, *full, "--steps", 0)[0] == 0
    for name, flags in (("full", full), ("lora", lora)) if fits else (("lora", lora),):
        code, line = bench(options, layers, *flags, *times)
        if code not in (NO_FIT, NO_MEMORY):
            break
    if not measured(line):
        return code
    print(json.dumps({"trained": name, "plan": line["plan"], **numbers_of(line)}), flush=True)
    return code or within(line)


def available():
    """Nine tenths of the host memory: of what is free, or of TESSERA_GPU_HOST, as scripts/gpu."""
    if given := os.environ.get("TESSERA_GPU_HOST"):
        return int(given.removesuffix("GiB")) * GIB * 9 // 10
    words = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(words["MemAvailable"].split()[0]) * 1024 * 9 // 10


def whole(options, folder):
    layers, memory = (2, 2**30) if options.small else (40, available())
    flags = ["--host-budget", memory, "--steps", 3, "--warmup", 1, "--trace", folder / "whole-trace.jsonl"]
    for formats in FORMATS:
        code, _ = bench(options, layers, *formats, "--host-budget", memory, "--steps", 0)
        if code != NO_FIT:
            break
    if code:
        return code
    code, line = bench(options, layers, *formats, *flags)
    if not measured(line):
        return code
    print(json.dumps({"formats": " ".join(formats) or "fp32", "plan": line["plan"], **numbers_of(line),
                      **gaps(folder / "whole-trace.jsonl")}), flush=True)
    return code


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*POLICIES, "real", "whole"])
    parser.add_argument("program")
    parser.add_argument("--profile", required=True)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        code = {"whole": whole, "real": real}.get(options.what, blocks)(options, options.keep or Path(folder))
    if code == NO_FIT:
        print("gpu_steps: it does not fit this GPU and its host")
    sys.exit(code)


if __name__ == "__main__":
    main()
