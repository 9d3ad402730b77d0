#!/usr/bin/env python3
"""How near predicted step times are on this machine: probe, then ten plans, into docs/simulator.md.

    python3 bench/accuracy.py            # after `make build`, about six minutes; nothing else should run

The model is that of `make bench` (bench/shapes.py) on two ranks of one thread; a time is the median of the measured steps.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import shapes

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/simulator.md"
BEGIN, END = "<!-- bench/accuracy.py begins -->", "<!-- bench/accuracy.py ends -->"
LAUNCH = [ROOT / "build/bin/tessera", "launch", "-n", str(shapes.RANKS)]
BLOCKS = shapes.MODEL["num_layers"]

# what the page says, flags of `tessera bench`
PLANS = [("nothing recomputed", ["--recompute", "0"]),
         ("half of the blocks recomputed", ["--recompute", str(BLOCKS // 2)]),
         ("all blocks recomputed", ["--recompute", str(BLOCKS)]),
         ("states on the host", ["--recompute", "0", "--offload-states"]),
         ("all blocks recomputed, states on the host", ["--recompute", str(BLOCKS), "--offload-states"])]


def run(command):
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True, capture_output=True)
    if done.returncode:
        sys.exit(f"{done.stdout[-2000:]}{done.stderr[-2000:]}\naccuracy: exit code {done.returncode} from: {' '.join(map(str, command))}")
    return done.stdout


def main():
    head, found, rest = PAGE.read_text().partition(BEGIN)
    if not found or END not in rest:
        sys.exit(f"accuracy: {PAGE.name} has lost its marks {BEGIN} and {END}")
    rows, errors = [], []
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "machine.toml"
        run([*LAUNCH, "probe", "--out", profile])
        for tokens, latent in sorted(shapes.LATENTS.items()):
            for name, flags in PLANS:
                line = run([*LAUNCH, "bench", "--config", json.dumps(shapes.MODEL), "--latent", ",".join(map(str, latent)),
                            "--profile", profile, "--steps", "7", "--warmup", "2", *flags])
                ours = json.loads(next(text for text in line.splitlines() if text.startswith("{")))
                measured, predicted = statistics.median(ours["seconds"]), ours["predicted_seconds"]
                errors.append(abs(predicted / measured - 1))
                rows.append(f"| {tokens} | {name} | {measured:.3f} | {predicted:.3f} | {100 * (predicted / measured - 1):+.0f} % |")
                print(rows[-1], flush=True)
    summary = f"Median of the errors: {100 * statistics.median(errors):.0f} %, largest {100 * max(errors):.0f} %."
    print(summary)
    table = "\n".join(["| tokens | plan | measured s | predicted s | off by |", "|---|---|---|---|---|", *rows])
    PAGE.write_text(f"{head}{BEGIN}\n{table}\n\n{summary}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
