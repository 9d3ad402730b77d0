#!/usr/bin/env python3
"""scripts/gpu with stages of the test's own: what it writes, skips, cuts off and goes on after."""
import contextlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from argparse import Namespace
from importlib.machinery import SourceFileLoader
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def script(name, folder="scripts"):
    loader = SourceFileLoader(name.replace("-", "_").removesuffix(".py"), str(ROOT / folder / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.modules[loader.name] = module  # dataclasses look for it
    loader.exec_module(module)
    return module


gpu, demo, steps = script("gpu"), script("gpu-demo"), script("gpu_steps.py", "bench")


def stage(name, command, limit=20):
    return gpu.Stage(name, limit, "", command)


class Stages(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        os.environ["TESSERA_GPU_SECONDS"] = "540"

    def run_stages(self, *stages, left=None, **options):
        """({name: result}, the lines written by all calls so far); `left`: seconds that the stages have."""
        run = gpu.Run(Namespace(**{"dry": True, "pack": str(self.folder / "none"), "out": str(self.folder), "only": None,
                                   "again": False, **options}), list(stages))
        if left is not None:
            run.end = time.monotonic() + left
        self.table = io.StringIO()
        with contextlib.redirect_stdout(self.table):
            run.all()
            run.table()
        lines = [json.loads(line) for file in self.folder.glob("*.jsonl") for line in file.read_text().splitlines()]
        return {row[0]: row[1] for row in run.rows}, lines

    def test_a_failure_is_followed_by_the_next_stage(self):
        results, lines = self.run_stages(stage("first", "echo out; echo why >&2; exit 3"), stage("second", "true"))
        self.assertEqual(results, {"first": "failed", "second": "passed"})
        self.assertEqual(lines[0]["end"], ["out", "why"])
        for line in lines:
            for key in ("stage", "result", "seconds", "commit", "sources", "device", "time", "numbers"):
                self.assertIn(key, line)
        self.assertIn("why", self.table.getvalue())

    def test_what_passed_for_the_same_sources_is_not_run_again(self):
        count = f"echo x >> {self.folder}/count"
        self.run_stages(stage("counts", count), stage("fails", count + "; false"))
        results, _ = self.run_stages(stage("counts", count), stage("fails", count + "; false"))
        self.assertEqual(results, {"counts": "passed before", "fails": "failed"})
        self.assertEqual((self.folder / "count").read_text().count("x"), 3)
        results, _ = self.run_stages(stage("counts", count), again=True)
        self.assertEqual(results, {"counts": "passed"})
        file = next(self.folder.glob("*.jsonl"))
        file.write_text(file.read_text().replace(gpu.hash_of_sources(), "0" * 16))
        results, _ = self.run_stages(stage("counts", count))
        self.assertEqual(results, {"counts": "passed"}, "other sources")

    def test_a_stage_over_its_limit_ends_with_all_that_it_started(self):
        begun = time.monotonic()
        results, lines = self.run_stages(stage("hangs", 'echo \'{"reached": 7}\'; sleep 1234.5 & sleep 1234.5', limit=1),
                                         stage("next", "true"))
        self.assertLess(time.monotonic() - begun, 60)
        self.assertEqual(results, {"hangs": "cut off", "next": "passed"})
        self.assertEqual(lines[0]["numbers"], {"reached": 7}, "what it told before stays")
        time.sleep(0.1)
        left = subprocess.run(["pgrep", "-f", "sleep 1234.5"], capture_output=True, text=True).stdout.split()
        self.assertEqual(left, [])

    def test_stages_end_forty_seconds_before_the_given_time(self):
        os.environ["TESSERA_GPU_SECONDS"] = "100"
        begun = time.monotonic()
        run = gpu.Run(Namespace(dry=True, pack=str(self.folder / "none"), out=str(self.folder), only=None, again=False), [])
        self.assertAlmostEqual(run.end, begun + 60, delta=1)

    def test_without_time_a_stage_is_cut_off_and_the_next_does_not_begin(self):
        results, _ = self.run_stages(stage("long", "sleep 60", limit=60), stage("late", "true"), left=gpu.LEAST + 2)
        self.assertEqual(results, {"long": "cut off", "late": "no time left"})

    def test_numbers_come_from_json_lines_and_from_googletest(self):
        text = '{"copy_gb_s": 4200.5}\\n{no json}\\n[  PASSED  ] 12 tests.\\n[  SKIPPED ] 3 tests, listed below:\\n'
        _, lines = self.run_stages(stage("tells", f"printf '{text}'"))
        self.assertEqual(lines[0]["numbers"], {"copy_gb_s": 4200.5, "tests_passed": 12, "tests_skipped": 3})

    def test_tests_that_were_all_skipped_have_not_passed(self):
        text = "a.cpp:3: Skipped\\nno CUDA device\\n[  PASSED  ] 0 tests.\\n[  SKIPPED ] 3 tests, listed below:\\n"
        results, _ = self.run_stages(stage("skips", f"printf '{text}'"))
        self.assertEqual(results, {"skips": "skipped"})
        self.assertIn("no CUDA device", self.table.getvalue())

    def test_a_stage_whose_tool_the_machine_does_not_take_is_skipped_with_the_reason(self):
        checks = gpu.Stage("check", 20, "", "echo '========= Error: Device not supported.'; exit 1", lacks=gpu.NO_SANITIZER)
        results, _ = self.run_stages(checks, stage("fails", "echo Device not supported; exit 1"))
        self.assertEqual(results, {"check": "skipped", "fails": "failed"})
        self.assertIn("Error: Device not supported.", self.table.getvalue())
        absent = gpu.Stage("absent", 20, "", "PATH=/nowhere compute-sanitizer --version", lacks=gpu.NO_SANITIZER)
        self.assertEqual(self.run_stages(absent)[0], {"absent": "skipped"})

    def test_every_stage_of_the_script_has_a_command_and_a_limit(self):
        names = [s.name for s in gpu.STAGES]
        self.assertEqual(len(set(names)), len(names))
        for s in gpu.STAGES:
            self.assertTrue(s.command, s.name)
            self.assertLess(s.limit, 300, s.name)
        for call in (gpu.FIRST, gpu.SECOND, gpu.THIRD):
            self.assertLessEqual(sum(s.limit for s in call), 540 - gpu.SPARE)

    def test_steps_are_predicted_by_the_profile_that_the_machine_made(self):
        tells = stage("tells", "echo '{\"profile\": \"'{profile}'\"}'")
        _, lines = self.run_stages(tells)
        self.assertEqual(lines[-1]["numbers"]["profile"], gpu.UNKNOWN_MACHINE)
        _, lines = self.run_stages(stage("profile", "echo made > {probed}"), tells, again=True)
        profile = Path(lines[-1]["numbers"]["profile"])
        self.assertEqual((profile.parent, profile.suffix, profile.read_text()), (self.folder, ".toml", "made\n"))


class Steps(unittest.TestCase):
    def test_gaps_are_those_of_the_compute_lane_in_the_last_step(self):
        lines = [{"step": 1, "lane": "compute", "op": "forward", "unit": "head", "t0": 0, "t1": 100},
                 {"step": 2, "lane": "compute", "op": "forward", "unit": "stem", "t0": 0, "t1": 4},
                 {"step": 2, "lane": "h2d", "op": "fetch", "unit": "head", "t0": 0, "t1": 6},
                 {"step": 2, "lane": "compute", "op": "loss", "t0": 9, "t1": 10},
                 {"step": 2, "lane": "compute", "op": "forward", "unit": "head", "t0": 6, "t1": 8}]
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.jsonl"
            trace.write_text("\n".join(map(json.dumps, lines)))
            self.assertEqual(steps.gaps(trace), {"gap_percent": 30.0, "longest_gap_ms": 2000.0, "longest_gap_before": "forward head"})

    def test_a_step_is_told_beside_its_prediction(self):
        line = {"seconds": [2.0, 1.0, 1.1], "predicted_seconds": 1.21, "peak_bytes": 2**30, "predicted_peak_bytes": 2**31, "host_bytes": 0}
        numbers = steps.numbers_of(line)
        self.assertEqual((numbers["step_s"], numbers["predicted_off_percent"], numbers["planned_peak_gib"]), (1.1, 10.0, 2.0))


class Demo(unittest.TestCase):
    def test_a_curve_that_is_short_or_not_a_number_or_elsewhere_is_seen(self):
        curve = {step: (1.0 / step, 0.5) for step in range(1, demo.STEPS + 1)}
        self.assertEqual(demo.largest_difference(curve, curve, 1), 0)
        off = {**curve, 15: (1.002 / 15, 0.5)}
        self.assertAlmostEqual(demo.largest_difference(off, curve, 1), 2e-3)
        self.assertAlmostEqual(demo.largest_difference(off, curve, 15), 2e-3)
        self.assertEqual(demo.largest_difference(off, curve, 16), 0)
        short = {step: curve[step] for step in range(1, demo.STEPS)}
        self.assertEqual(demo.largest_difference(short, curve, 1), float("inf"))
        self.assertEqual(demo.largest_difference({**curve, 3: (float("nan"), 0.5)}, curve, 1), float("inf"))


if __name__ == "__main__":
    unittest.main()
