#!/usr/bin/env python3
"""How near predicted step times are on this machine: probe, then plans drawn at random, into docs/simulator.md.

    python3 bench/accuracy.py                  # after `make build`, about four minutes; nothing else should run
    python3 bench/accuracy.py --keep DIR       # leaves profile, plans and measurements in DIR
    python3 bench/accuracy.py --again DIR      # predicts the plans of DIR anew and measures nothing
    python3 bench/accuracy.py --draws 60 --rounds 3 --page  # a quarter of an hour: the table of the page

Each round probes the machine and runs all plans once; a plan counts with the medians of its rounds. How far the rounds of one
plan are apart is what no prediction can be better than.

Two ranks of one thread run Wan and Sana models of random width, depth and sample under random meshes, policies and tiers. A
time is the median of the measured steps, each the slower rank's. The five plans that are furthest off run once more with a
trace, and the kind of instruction whose seconds differ most is named.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/simulator.md"
BEGIN, END = "<!-- bench/accuracy.py begins -->", "<!-- bench/accuracy.py ends -->"
TESSERA = ROOT / "build/bin/tessera"
LAUNCH = [TESSERA, "launch", "-n", "2"]
SEED = 20261124
FAMILIES = ("wan", "wan", "wan", "sana")  # by turns
WORST = 5
AXES = ("dp_shard", "dp_shard", "dp_replicate", "sp", "tp", "cp", "pp")
ALL = ("parameters", "gradients", "states")


def draw(number, seed):
    """One case: a model, a sample, and a plan as the text of its file. Layouts take turns; all else is random."""
    rng = random.Random(f"{seed} {number}")
    axis = AXES[number % len(AXES)]
    dim = rng.choice([128, 192, 256, 384, 512, 768])
    layers = rng.randint(3, 8 if dim < 512 else 5)
    model = dict(dim=dim, num_heads=dim // 64 if dim % 128 == 0 else dim // 32, num_layers=layers,
                 ffn_dim=rng.choice([2, 4]) * dim + rng.choice([0, 64]), in_dim=16, out_dim=16, freq_dim=256,
                 text_dim=rng.choice([128, 512]), text_len=rng.choice([16, 64]))
    frames, height, width = rng.choice([(1, 4, 6), (2, 4, 6), (3, 4, 8), (2, 8, 10), (4, 8, 8), (5, 8, 10), (6, 10, 10)])
    latent = (16, frames, 2 * height, 2 * width)
    family = "wan"
    if number % len(FAMILIES) == len(FAMILIES) - 1 and axis in ("dp_shard", "dp_replicate", "pp"):
        family, latent = "sana", (16, 1, 2 * height, 2 * width * frames)  # pictures, with as many tokens
        heads = max(2, dim // 64)
        model = dict(_class_name="SanaTransformer2DModel", num_layers=layers, num_attention_heads=heads, attention_head_dim=dim // heads,
                     num_cross_attention_heads=heads, cross_attention_head_dim=dim // heads, cross_attention_dim=dim,
                     caption_channels=model["text_dim"], in_channels=16, out_channels=16, patch_size=2, mlp_ratio=2.5, sample_size=32)
    samples, micro = rng.choice([(2, 1), (4, 1), (4, 2)])
    if axis in ("sp", "tp", "cp"):
        samples, micro = rng.choice([(1, 1), (2, 1), (2, 2)])
    if axis == "pp":
        samples, micro = 4, 1
    policy = rng.choice(["keep", "keep", "recompute", "recompute", "rebuild", "offload"])
    changed = rng.choice([layers, max(1, layers // 2)])
    strategy = "no_shard" if axis == "dp_replicate" else rng.choice(["full_shard", "full_shard", "shard_grad_op"])
    tier = rng.choice(["", "", "states = \"host\"", "all"])
    update = rng.choice(["end", "end", "just_in_time"])
    text = [f"global_batch = {samples}", f"micro_batch = {micro}", f"prefetch = {rng.choice([0, 1, 1, 2])}",
            f"update = \"{update}\"", "[mesh]", f"{axis} = 2"]
    if axis == "pp":
        text += ["[pipeline]", f"schedule = \"{rng.choice(['gpipe', '1f1b', 'zero_bubble'])}\""]
    text += ["[[units]]", "name = \"*\"", f"strategy = \"{strategy}\""]
    text += [f"{part} = \"host\"" for part in ALL] if tier == "all" else [tier]
    text += ["[[units]]", f"name = \"blocks.0-{changed - 1}\"", f"activations = \"{policy}\""]
    said = [family] if family != "wan" else []
    said += [policy if changed == layers or policy == "keep" else f"{policy} {changed} of {layers} blocks"]
    said += [f"{strategy}"] if axis == "dp_shard" else []
    said += ["all on the host"] if tier == "all" else ["states on the host"] if tier else []
    said += ["updates just in time"] if update == "just_in_time" else []
    return dict(number=number, model=model, shape=f"{dim} x {layers}, ffn {model.get('ffn_dim', int(2.5 * dim))}", latent=latent, plan="\n".join(text) + "\n", axis=axis, batch=f"{samples}/{micro}",
                tokens=frames * height * width, words=", ".join(said))


def run(command):
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True, capture_output=True)
    if done.returncode:
        sys.exit(f"{done.stdout[-2000:]}{done.stderr[-2000:]}\naccuracy: exit code {done.returncode} from: {' '.join(map(str, command))}")
    return done.stdout


def bench(case, folder, launch, *flags):
    plan = folder / f"{case['number']}.toml"
    plan.write_text(case["plan"])
    line = run([*launch, "bench", "--config", json.dumps(case["model"]), "--latent", ",".join(map(str, case["latent"])),
                "--profile", folder / "machine.toml", "--plan", plan, "--nvme", folder, *flags])
    return json.loads(next(text for text in line.splitlines() if text.startswith("{")))


def measure(folder, seed, draws, rounds, seconds, trace):
    """Cases with the seconds of each round, measured and predicted by that round's probe."""
    cases = [{**draw(number, seed), "measured_rounds": [], "predicted_rounds": []} for number in range(draws)]
    for around in range(rounds):
        run([*LAUNCH, "probe", "--device", "cpu", "--out", folder / "machine.toml"])
        for case in cases:
            flags = ["--trace", folder / f"{case['number']}.jsonl"] if trace else []
            found = bench(case, folder, LAUNCH, "--warmup", "3", "--steps", "9", "--seconds", str(seconds), *flags)
            case["measured_rounds"].append(statistics.median(found["seconds"]))
            case["predicted_rounds"].append(found["predicted_seconds"])
            for name in ("measured", "predicted"):
                case[name] = statistics.median(case[f"{name}_rounds"])
            if around == rounds - 1:
                print(row(case), flush=True)
        (folder / "cases.json").write_text(json.dumps(cases, indent=1))
    return cases


def seconds_by_kind(file):
    """Seconds of rank 0's instructions in one step, by operation and part; of several steps the fastest of each."""
    steps = {}
    for line in file.read_text().splitlines():
        one = json.loads(line)
        kind = one["op"] + (f" of {one['part']}" if one.get("part") else "")
        of_step = steps.setdefault(one.get("step", 0), {})
        of_step[kind] = of_step.get(kind, 0) + one["t1"] - one["t0"]
    kinds = {kind for of_step in steps.values() for kind in of_step}
    return {kind: min(of_step[kind] for of_step in steps.values() if kind in of_step) for kind in kinds}


def name_worst(folder, cases):
    """A line for each of the plans that are furthest off: the kind of instruction whose seconds are off most."""
    lines = []
    for case in sorted(cases, key=lambda case: -abs(error(case)))[:WORST]:
        trace = folder / f"worst-{case['number']}.jsonl"
        bench(case, folder, LAUNCH, "--warmup", "3", "--steps", "3", "--trace", trace)
        measured, predicted = seconds_by_kind(trace), seconds_by_kind(Path(f"{trace}.planned"))
        kind = max(measured | predicted, key=lambda kind: abs(measured.get(kind, 0) - predicted.get(kind, 0)))
        lines.append(f"- {case['shape']}, {case['tokens']} tokens, `{case['axis']}`, {case['words']}: {100 * error(case):+.0f} %; "
                     f"`{kind}` takes {1000 * measured.get(kind, 0):.1f} ms of a step where {1000 * predicted.get(kind, 0):.1f} were predicted")
    return "The furthest off, with the kind of instruction (rank 0's, waits included) that is off most:\n\n" + "\n".join(lines)


def row(case):
    return (f"| {case['shape']} | {case['tokens']} | {case['axis']} | {case['batch']} | "
            f"{case['words']} | {1000 * case['measured']:.1f} | {1000 * case['predicted']:.1f} | {100 * error(case):+.0f} % |")


def error(case):
    return case["predicted"] / case["measured"] - 1


def summary(cases):
    errors = [error(case) for case in cases]
    sizes = sorted(map(abs, errors))
    lines = [f"{len(cases)} plans. Median of the errors' sizes {100 * statistics.median(sizes):.1f} %, nine of ten within "
             f"{100 * sizes[int(0.9 * (len(sizes) - 1))]:.1f} %, largest {100 * sizes[-1]:.1f} %; {sum(e <= 0.05 for e in sizes)} are within 5 %, {sum(e <= 0.1 for e in sizes)} within 10 %. "
             f"Bias {100 * statistics.mean(errors):+.1f} %, spread (standard deviation) {100 * statistics.pstdev(errors):.1f} %.", ""]
    for axis in dict.fromkeys(AXES):
        own = [error(case) for case in cases if case["axis"] == axis]
        if own:
            lines.append(f"- `{axis}`: {len(own)} plans, bias {100 * statistics.mean(own):+.1f} %, largest {100 * max(map(abs, own)):.1f} %")
    apart = sorted(max(case["measured_rounds"]) / min(case["measured_rounds"]) - 1 for case in cases)
    if len(cases[0]["measured_rounds"]) > 1:
        lines += ["", f"The slowest round of a plan took {100 * statistics.median(apart):.0f} % longer than its fastest (median; nine of ten "
                  f"at most {100 * apart[int(0.9 * (len(apart) - 1))]:.0f} %)."]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=36)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.6, help="of measured steps for each plan, about")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--again", type=Path)
    parser.add_argument("--trace", action="store_true", help="keep what each instruction took")
    parser.add_argument("--page", action="store_true", help=f"write the table into docs/{PAGE.name}")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        if options.again:
            cases = json.loads((options.again / "cases.json").read_text())
            for case in cases:
                flags = ["--trace", options.again / f"{case['number']}.jsonl"] if options.trace else []
                case["predicted"] = bench(case, options.again, [TESSERA], "--steps", "0", *flags)["predicted_seconds"]
                print(row(case), flush=True)
        else:
            folder = options.keep or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            cases = measure(folder, options.seed, options.draws, options.rounds, options.seconds, options.trace)
        found = summary(cases)
        if not options.again:
            found += "\n\n" + name_worst(folder, cases)
    print(found)
    if not options.page:
        return
    if options.again:
        sys.exit("accuracy: --page needs a run that measures, to name what is off in its worst plans")
    head, mark, rest = PAGE.read_text().partition(BEGIN)
    if not mark or END not in rest:
        sys.exit(f"accuracy: {PAGE.name} has lost its marks {BEGIN} and {END}")
    table = "\n".join(["| width x blocks | tokens | mesh of 2 | batch/micro | plan | measured ms | predicted ms | off by |",
                       "|---|---|---|---|---|---|---|---|", *map(row, cases)])
    PAGE.write_text(f"{head}{BEGIN}\n{table}\n\n{found}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
