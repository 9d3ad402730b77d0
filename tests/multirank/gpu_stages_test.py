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
from importlib.machinery import SourceFileLoader
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
loader = SourceFileLoader("gpu", str(ROOT / "scripts/gpu"))
gpu = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu", loader))
sys.modules["gpu"] = gpu  # dataclasses look for it
loader.exec_module(gpu)
BIN = Path(sys.argv.pop())

STEPS = {"a block of the 14B, kept": "block", "eight blocks, recomputed": "recompute", "a step of the 14B": None, "eight blocks, kept": "keep",
         "eight blocks, offloaded": "offload", "eight blocks, just in time": "just-in-time", "the whole 14B": None}
PLANS = {"random plans": 1, "200 random plans": 6, "two ranks on one GPU": 6, "two GPUs by NCCL": 6}
PROBES = ("probe", "probe of all GPUs")


class DryStages(unittest.TestCase):
    def run_stages(self, folder):
        """({stage: result}, {stage: numbers}, the profile)."""
        options = gpu.arguments(["--dry", "--pack", str(folder / "none"), "--out", str(folder / "out"), "--logs", str(folder / "logs")])
        stages = [s for call in gpu.CALLS.values() for s in call if s.name in (*PROBES, *STEPS, *PLANS)]
        stages.sort(key=lambda s: PROBES.index(s.name) if s.name in PROBES else 0)  # that of all GPUs is the last
        run = gpu.Run(options)
        run.known = [folder / "out"]
        with contextlib.redirect_stdout(io.StringIO()):
            run.prepare()
            run.bin = BIN.resolve()
            run.all(stages)
            run.finish()
        print(run.table(), file=sys.stderr)
        lines = [json.loads(line) for line in run.results.lines.read_text().splitlines()]
        return {row[0]: row[1] for row in run.rows if row[0] != "machine"}, {line["stage"]: line["numbers"] for line in lines}, run

    def test_run_on_the_simulated_device(self):
        os.environ["TESSERA_GPU_SECONDS"] = "1200"
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            results, numbers, run = self.run_stages(folder)
            self.assertEqual(results, {stage: "passed" for stage in (*PROBES, *STEPS, *PLANS)})
            text = run.results.profile.read_text()
            self.assertIn('target = "sm_90"', text)
            self.assertIn("devices = 2\n", text)  # of all GPUs, which comes last
            for stage, kernels in STEPS.items():
                self.assertGreater(numbers[stage]["step_s"], 0, stage)
                self.assertGreater(numbers[stage]["predicted_s"], 0, stage)
                self.assertLessEqual(numbers[stage]["peak_gib"], numbers[stage]["planned_peak_gib"], stage)
                if stage != "a step of the 14B":
                    self.assertGreaterEqual(numbers[stage]["gap_percent"], 0, stage)
                if kernels:
                    listed = json.loads((folder / f"logs/{kernels}-kernels.json").read_text())
                    self.assertEqual(sum(kernel["count"] for kernel in listed), numbers[stage]["launches"], stage)
            for stage, count in PLANS.items():
                self.assertEqual(numbers[stage]["plans"], count, stage)  # of its last program
                self.assertTrue(0 < numbers[stage]["most_off"] < 1e-2, stage)  # of other kernels than the plain loop's
            again, _, _ = self.run_stages(folder)
            self.assertEqual(set(again.values()), {"passed before"})


if __name__ == "__main__":
    unittest.main()
