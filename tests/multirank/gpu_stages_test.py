#!/usr/bin/env python3
"""The later stages of scripts/gpu, dry: what a GPU will run is run on the simulated device, with small sizes.

    gpu_stages_test.py FOLDER     of the programs
"""
import contextlib
import importlib.util
import io
import json
import os
import sys
import tempfile
import unittest
from argparse import Namespace
from importlib.machinery import SourceFileLoader
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
loader = SourceFileLoader("gpu", str(ROOT / "scripts/gpu"))
gpu = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu", loader))
sys.modules["gpu"] = gpu  # dataclasses look for it
loader.exec_module(gpu)
BIN = Path(sys.argv.pop())

STEPS = ("eight blocks, kept", "eight blocks, recomputed", "eight blocks, offloaded", "eight blocks, just in time", "the whole 14B")
PLANS = ("200 random plans", "two ranks on one GPU", "two GPUs by NCCL")


class DryStages(unittest.TestCase):
    def run_stages(self, folder):
        """({stage: result}, {stage: numbers}, the profile)."""
        stages = [s for s in gpu.STAGES if s.name in ("profile", *STEPS, *PLANS, "profile of all GPUs")]
        run = gpu.Run(Namespace(dry=True, pack=str(folder / "none"), out=str(folder), only=None, again=False), stages)
        run.bin = BIN.resolve()
        table = io.StringIO()
        with contextlib.redirect_stdout(table):
            run.all()
            run.table()
        print(table.getvalue(), file=sys.stderr)
        lines = [json.loads(line) for line in run.file.read_text().splitlines()]
        return {row[0]: row[1] for row in run.rows}, {line["stage"]: line["numbers"] for line in lines}, run.probed

    def test_run_on_the_simulated_device(self):
        os.environ["TESSERA_GPU_SECONDS"] = "1200"
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            results, numbers, profile = self.run_stages(folder)
            self.assertEqual(results, {stage: "passed" for stage in ("profile", *STEPS, *PLANS, "profile of all GPUs")})
            text = profile.read_text()
            self.assertIn('target = "sm_90"', text)
            self.assertIn("devices = 2\n", text)  # of all GPUs, which comes last
            for stage in STEPS:
                self.assertGreater(numbers[stage]["step_s"], 0, stage)
                self.assertGreater(numbers[stage]["predicted_s"], 0, stage)
                self.assertLessEqual(numbers[stage]["peak_gib"], numbers[stage]["planned_peak_gib"], stage)
                self.assertGreaterEqual(numbers[stage]["gap_percent"], 0, stage)
            for stage in PLANS:
                self.assertEqual(numbers[stage]["plans"], 6, stage)
                self.assertTrue(0 < numbers[stage]["most_off"] < 1e-2, stage)  # of other kernels than the plain loop's
            again, _, _ = self.run_stages(folder)
            self.assertEqual(set(again.values()), {"passed before"})


if __name__ == "__main__":
    unittest.main()
