"""Compares this program with the field's own: python run.py --binary build/bin/tessera [--family NAME] [--only WORDS] [--record]

Every row is an agreement that was measured, or a refusal that was seen. --record writes them to docs/clients.md with the versions
and the commit; scripts/test-clients makes the environment.
"""
import argparse
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is fetched
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

import torch

import adapters
import models
import outputs
import training
import variants
from client import Suite

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ["torch", "diffusers", "transformers", "peft", "diffsynth", "lycoris-lora", "accelerate", "safetensors", "datasets",
            "webdataset", "tensorboard"]
# What one family shows for all of its kind runs there alone.
SUBJECTS = [(outputs.encoders, None), (outputs.samples, {"wan-t2v", "sana", "sana-video"}), (training.full, None),
            (training.adapters, {"wan-t2v", "wan-a14b", "sana", "sana-video"}),
            (adapters.every_form, {"wan-t2v", "sana", "sana-video"}), (adapters.input_axis, {"wan-t2v"}),
            (adapters.names, {"sana", "sana-video"}), (adapters.patterns_as_start, {"wan-t2v", "sana"}),
            (outputs.exports, None), (outputs.data_sets, {"wan-t2v"}), (outputs.launchers, {"wan-t2v"}), (variants.predictions, {"wan-t2v"})]


def commit():
    def git(*words):
        return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True).stdout.strip()

    dirty = git("status", "--porcelain", "--untracked-files=no", "--", "src", "apps")
    return git("rev-parse", "HEAD") + (" and changes" if dirty else "")


def record(rows, seconds):
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    lines = ["# The field's own software", "",
             "`make test-clients` wrote this page: it makes small random pipelines by diffusers itself, trains and samples them here",
             "and there, and loads every file in the program that it is for. Errors are the largest difference as a share of the",
             "largest value, of merged weights of the largest change, of pixels of white.", "",
             f"Commit {commit()}, {len(rows)} rows in {seconds / 60:.0f} minutes, with {versions}.", "",
             "| family | what | against | error | at most |", "|---|---|---|---|---|"]
    for family, what, against, error, bound, passed in rows:
        lines.append(f"| {family} | {what} | {against} | {'' if passed else '**failed** '}{error.splitlines()[0][:90] if error else 'done'} | "
                     f"{bound} |".replace("  ", " "))
    (ROOT / "docs/clients.md").write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=ROOT / "build/bin/tessera")
    parser.add_argument("--family", action="append", default=[])
    parser.add_argument("--only", default="", help="rows that have these words")
    parser.add_argument("--keep", help="work here, and leave it")
    parser.add_argument("--record", action="store_true", help="write docs/clients.md")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    work = Path(chosen.keep or tempfile.mkdtemp(prefix="tessera-clients-")).resolve()
    work.mkdir(parents=True, exist_ok=True)
    suite, start = Suite(chosen.binary, work, chosen.only), time.monotonic()
    try:
        for family, folder in models.families(work / "models", chosen.family):
            suite.family = family.name
            for subject, where in SUBJECTS:
                if where is None or family.name in where:
                    suite.guarded(subject, family, folder)
    finally:
        if not chosen.keep:
            shutil.rmtree(work, ignore_errors=True)
    failed = sum(not row[-1] for row in suite.rows)
    if chosen.record:
        record(suite.rows, time.monotonic() - start)
    print(f"{len(suite.rows) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
