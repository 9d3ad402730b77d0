#!/usr/bin/env python3
"""docs/benchmarks.md from bench/results.json.

    python3 bench/render.py
"""
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMES = {"peer none": "FSDP2", "peer recompute": "FSDP2, recompute", "ours free": "Tessera, planner free",
         "ours recompute": "Tessera, recompute", "deepspeed default": "DeepSpeed ZeRO-3, offload",
         "deepspeed auto": "DeepSpeed ZeRO-3, offload, small buckets", "ours offload": "Tessera, states on the host", "floor": "floor: plain copies"}


def table(head, rows):
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows]) + "\n"


def mib(count):
    return f"{count / 2**20:.1f}"


def judged(bar):
    if not bar["allowed"]:
        return ["", ""]
    return [f"{bar['allowed']:.2f}", "yes" if bar["ratio"] <= bar["allowed"] else "**no**"]


def tables(report):
    rows = [[str(r["tokens"]), NAMES[r["setting"]], f"{r['seconds']:.3f}", f"{r['fastest']:.3f}-{r['slowest']:.3f}",
             mib(r["peak_bytes"]), mib(r["persistent_bytes"]), mib(r["transient_bytes"])] for r in report["rows"]]
    bars = [[str(b["tokens"]), b["name"], f"{b['ratio']:.3f}", *judged(b)] for b in report["bars"]]
    text = table(["tokens", "setting", "s/step", "range", "peak MiB", "persistent MiB", "transient MiB"], rows)
    if bars:
        text += "\n" + table(["tokens", "ratio", "measured", "at most", "met"], bars)
    return text


def out_of_reach(report):
    """A line for each size at which half of DeepSpeed's time is below the floor."""
    text = ""
    for tokens in sorted({r["tokens"] for r in report["rows"]}):
        seconds = {r["setting"]: r["seconds"] for r in report["rows"] if r["tokens"] == tokens}
        wanted, floor = 0.5 * seconds["deepspeed default"], seconds["floor"]
        if wanted < floor:
            text += (f"- With {tokens:,} tokens (c) asks for half of DeepSpeed's time, {wanted:.2f} s. That is less than the {floor:.2f} s of the\n"
                     "  floor, which exchanges and offloads nothing.\n")
    return text


def page(report):
    m = report["model"]
    return f"""# Benchmarks

This page compares step time and memory of Tessera with FSDP2 and DeepSpeed ZeRO-3 on two CPU ranks. `make bench` makes it: it
runs all programs in turn on one machine. bench/results.json has the numbers.

{report['date']}, {report['machine']}, {report['ranks']} ranks of one thread each (Tessera sends through shared memory, its peers
through Gloo), fp32, PyTorch {report['torch']}, diffusers {report['diffusers']}. The model is a Wan 2.1 of 36M parameters: dim {m['dim']},
{m['num_heads']} heads, {m['num_layers']} blocks, ffn {m['ffn_dim']}, {m['text_len']} text tokens of width {m['text_dim']}; one sample a rank. A step is
forward, loss, backward and AdamW.

- *FSDP2* is the diffusers class with `fully_shard` of every block and of the root, and fused AdamW. Its recompute is
  `torch.utils.checkpoint`, non-reentrant, on every block.
- *DeepSpeed* {report['deepspeed']} is ZeRO-3 with `offload_optimizer` to the CPU and its own CPU AdamW, once with its default buckets
  (5e8 elements) and once with those that transformers fills in for "auto".
- *Time* is the median over all steps; settings alternate within a round. The range is the fastest to the slowest step.
- *Memory*: an allocator in front of LibTorch's counts the bytes of all programs by the same rule, from the end of step 1 on.
  Persistent are the rank's shards of parameters, gradients and both moments. Transient is the peak less persistent.
- *The floor* is two processes that compute at the same time and exchange nothing: forward and backward of the diffusers model,
  and fused AdamW on the half of the parameters that a rank would own. Both hold whole parameters.
- *States on the host*: on a CPU, device and host are the same memory, so both are added up for all programs.
- *Planner free*: the planner may choose anything that stays under the peak of FSDP2 without recompute.
{out_of_reach(report)}
{tables(report)}"""


if __name__ == "__main__":
    (ROOT / "docs/benchmarks.md").write_text(page(json.loads((ROOT / "bench/results.json").read_text())))
