#!/usr/bin/env python3
"""scripts/gpu with stages of the test's own: what it writes, skips, cuts off and goes on after, and every fault that a dry run plants."""
import contextlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
from importlib.machinery import SourceFileLoader
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
sys.dont_write_bytecode = True


def script(name, folder="scripts"):
    loader = SourceFileLoader("script_" + name.replace("-", "_").removesuffix(".py"), str(ROOT / folder / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.modules[loader.name] = module  # dataclasses look for it
    loader.exec_module(module)
    return module


gpu, demo, home, real, steps = script("gpu"), script("gpu-demo"), script("gpu-results"), script("gpu-libraries"), script("gpu_steps.py", "bench")
import gpu_faults  # noqa: E402
import gpu_goldens  # noqa: E402
import gpu_machine  # noqa: E402
import gpu_results  # noqa: E402
import gpu_stages  # noqa: E402
from gpu_stages import Stage  # noqa: E402


SLEEPS = f"sleep {os.getpid()}.5"  # known from those of other tests


def stage(name, command, seconds=20, **more):
    return Stage(name, seconds, "", command, **more)


class InAFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.out = self.folder / "out"
        os.environ["TESSERA_GPU_SECONDS"] = "540"

    def make_run(self, *words, dry=True):
        """Of a call with this command line, which sees no line of an earlier one but those of its own folder."""
        options = gpu.arguments([*words, *(["--dry"] if dry else []), "--pack", str(self.folder / "none"), "--out", str(self.out),
                                 "--logs", str(self.folder / "logs")])
        run = gpu.Run(options)
        run.known = [self.out]
        return run

    def go(self, run, stages, fault=None, left=None):
        """{name: result}; `left`: seconds that the stages have."""
        self.printed = io.StringIO()
        with contextlib.redirect_stdout(self.printed):
            run.stages_of = lambda call: list(stages)
            if fault:
                fault(run)
            run.prepare()
            run.end = time.monotonic() + left if left else run.end
            run.all(run.stages_of(run.call))
            run.finish()
            run.save()
        self.reasons = {row[0]: row[3] for row in run.rows}
        return {row[0]: row[1] for row in run.rows if row[0] != "machine"}

    def run_stages(self, *stages, words=(), **more):
        """({name: result}, the lines of the folder of results)."""
        results = self.go(self.make_run(*words), stages, **more)
        return results, self.lines()

    def lines(self):
        return [line for line in gpu_results.lines_of((self.out / "lines.jsonl").read_text()) if line["stage"] != "machine"]

    def archived(self, out=None):
        return gpu_results.read(out or self.out)


class Stages(InAFolder):
    def test_a_failure_is_followed_by_the_next_stage(self):
        results, lines = self.run_stages(stage("first", "echo out; echo why >&2; exit 3"), stage("second", "true"))
        self.assertEqual(results, {"first": "failed", "second": "passed"})
        self.assertEqual(lines[0]["end"], ["out", "why"])
        for line in lines:
            for key in ("stage", "result", "seconds", "commit", "sources", "device", "time", "numbers"):
                self.assertIn(key, line)
        self.assertEqual(self.reasons["first"], "why")

    def test_what_passed_for_the_same_sources_is_not_run_again(self):
        count = f"echo x >> {self.folder}/count"
        pair = (stage("counts", count), stage("fails", count + "; false"))
        self.run_stages(*pair)
        results, _ = self.run_stages(*pair)
        self.assertEqual(results, {"counts": "passed before", "fails": "failed"})
        self.assertEqual((self.folder / "count").read_text().count("x"), 3)
        self.assertEqual(self.run_stages(*pair[:1], words=["--again"])[0], {"counts": "passed"})
        lines = self.out / "lines.jsonl"
        lines.write_text(lines.read_text().replace(gpu.hash_of_sources(), "0" * 16))
        self.assertEqual(self.run_stages(*pair[:1])[0], {"counts": "passed"}, "other sources")

    def test_the_second_call_has_what_the_first_did_not_pass_and_its_own(self):
        def earlier(name, result, time):
            return {"stage": name, "result": result, "time": time, "device": "another", "sources": "others"}
        run = self.make_run("second")
        self.out.mkdir(exist_ok=True)
        first, second = gpu_stages.FIRST, gpu_stages.SECOND
        lines = [earlier(s.name, "passed", "1") for s in first] + [earlier(first[3].name, "failed", "2"), earlier(second[0].name, "cut off", "2"),
                                                                  earlier(second[1].name, "passed", "2"), earlier(first[5].name, "cut off", "0")]
        (self.out / "earlier.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        with contextlib.redirect_stdout(io.StringIO()):
            run.prepare()
            run.finish()
        self.assertEqual([s.name for s in run.stages_of("second")], ["loader", first[3].name, second[0].name, *(s.name for s in second[2:])])

    def test_a_stage_over_its_time_ends_with_all_that_it_started_and_leaves_where_it_was(self):
        begun = time.monotonic()
        results, lines = self.run_stages(stage("hangs", f'echo \'{{"reached": 7}}\'; {SLEEPS} & {SLEEPS}', seconds=1), stage("next", "true"))
        self.assertLess(time.monotonic() - begun, 60)
        self.assertEqual(results, {"hangs": "cut off", "next": "passed"})
        self.assertEqual(lines[0]["numbers"], {"reached": 7}, "what it told before stays")
        left = subprocess.run(["pgrep", "-f", SLEEPS], capture_output=True, text=True).stdout.split()
        self.assertEqual(left, [])
        log = self.archived()["logs/hangs.log"].decode()
        self.assertEqual(log.count("(sleep), state S"), 2, log)

    @unittest.skipUnless(shutil.which("gdb") or shutil.which("cuda-gdb"), "no debugger is installed")
    def test_a_program_that_hangs_leaves_its_back_traces(self):
        source = self.folder / "hangs.c"
        source.write_text("#include <unistd.h>\nvoid waits_for_ever(void) { pause(); }\nint main(void) { waits_for_ever(); }\n")
        subprocess.run(["cc", "-g", "-O0", "-o", self.folder / "hangs", source], check=True)
        self.run_stages(stage("hangs", str(self.folder / "hangs") + "; true", seconds=1))
        log = self.archived()["logs/hangs.log"].decode()
        self.assertTrue("waits_for_ever" in log or "ptrace" in log, log)

    def test_stages_end_fifteen_seconds_before_the_given_time(self):
        os.environ["TESSERA_GPU_SECONDS"] = "100"
        run = self.make_run()
        self.assertAlmostEqual(run.end, time.monotonic() + 85, delta=1)
        del os.environ["TESSERA_GPU_SECONDS"]
        for call, seconds in (("first", 480), ("second", 200)):
            run = self.make_run(call)
            self.assertAlmostEqual(run.end, time.monotonic() + seconds - 15, delta=1)

    def test_without_time_a_stage_is_cut_off_and_the_next_does_not_begin(self):
        results, _ = self.run_stages(stage("long", "sleep 60", seconds=60), stage("late", "true"), left=gpu.LEAST + 2)
        self.assertEqual(results, {"long": "cut off", "late": "no time left"})

    def test_numbers_come_from_json_lines_and_from_googletest_of_all_programs(self):
        text = '{"copy_gb_s": 4200.5}\\n{no json}\\n[  PASSED  ] 12 tests.\\n[  SKIPPED ] 3 tests, listed below:\\n'
        _, lines = self.run_stages(stage("tells", f"printf '{text}'; printf '[  PASSED  ] 1 test.\\n'"))
        self.assertEqual(lines[0]["numbers"], {"copy_gb_s": 4200.5, "tests_passed": 13, "tests_skipped": 3})

    def test_tests_that_were_all_skipped_have_not_passed(self):
        text = "a.cpp:3: Skipped\\nno CUDA device\\n[  PASSED  ] 0 tests.\\n[  SKIPPED ] 3 tests, listed below:\\n"
        results, _ = self.run_stages(stage("skips", f"printf '{text}'"))
        self.assertEqual(results, {"skips": "skipped"})
        self.assertEqual(self.reasons["skips"], "no CUDA device")

    def test_a_filter_that_matches_no_test_is_no_pass(self):
        none = "[==========] Running 0 tests from 0 test suites.\\n[  PASSED  ] 0 tests.\\n"
        some = "[==========] Running 2 tests from 1 test suite.\\n[  PASSED  ] 2 tests.\\n"
        results, _ = self.run_stages(stage("none", f"printf '{none}'"), stage("one of two", f"printf '{some}{none}'"), stage("some", f"printf '{some}'"))
        self.assertEqual(results, {"none": "failed", "one of two": "failed", "some": "passed"})
        self.assertIn("matches no test", self.reasons["none"])

    def test_a_stage_whose_tool_the_machine_does_not_take_is_skipped_with_the_reason(self):
        checks = stage("check", "echo '========= Error: Device not supported.'; exit 1", lacks=gpu_stages.NO_SANITIZER)
        results, _ = self.run_stages(checks, stage("fails", "echo Device not supported; exit 1"))
        self.assertEqual(results, {"check": "skipped", "fails": "failed"})
        self.assertIn("Error: Device not supported.", self.reasons["check"])
        absent = stage("absent", "PATH=/nowhere compute-sanitizer --version", lacks=gpu_stages.NO_SANITIZER)
        self.assertEqual(self.run_stages(absent)[0], {"absent": "skipped"})

    def test_every_stage_has_a_command_and_a_call_has_time_for_its_stages(self):
        names = [s.name for call in gpu_stages.CALLS.values() for s in call]
        self.assertEqual(len(set(names)), len(names))
        for s in [s for call in gpu_stages.CALLS.values() for s in call]:
            self.assertTrue(s.command, s.name)
            for text in (s.command, s.dry):
                for word in ("bin", "goldens", "demo", "root", "python", "keep", "probed", "profile"):
                    text = text.replace("{" + word + "}", "x")
                self.assertNotRegex(text, r"(?<!\$)\{[a-z]+\}", s.name)
        self.assertLessEqual(sum(s.seconds for s in gpu_stages.FIRST), 480 - 15)
        self.assertLessEqual(sum(s.seconds for s in gpu_stages.SECOND), 200 - 15)
        self.assertEqual(next(s for s in gpu_stages.FIRST if s.name == "loader").patience, 60)

    def test_steps_are_predicted_by_the_profile_that_the_machine_made(self):
        tells = stage("tells", "echo '{\"profile\": \"'{profile}'\"}'")
        _, lines = self.run_stages(tells)
        self.assertEqual(lines[-1]["numbers"]["profile"], gpu.UNKNOWN_MACHINE)
        _, lines = self.run_stages(stage("probe", "echo made > {probed}"), tells, words=["--again"])
        self.assertEqual(Path(lines[-1]["numbers"]["profile"]).suffix, ".toml")
        self.assertEqual((self.out / "profile.toml").read_text(), "made\n")
        _, lines = self.run_stages(tells, words=["--again"])
        self.assertEqual(Path(lines[-1]["numbers"]["profile"]).read_text(), "made\n", "of an earlier call")


class OnAGpu(InAFolder):
    """Not dry: nvidia-smi and the program that is asked whether the GPU answers are the test's own."""

    def setUp(self):
        super().setUp()
        device_of = gpu.device_of
        gpu.device_of = lambda dry: {"device": "NVIDIA Test", "capability": "9.0", "gpus": 1}
        self.addCleanup(setattr, gpu, "device_of", device_of)
        read_ahead = gpu_machine.read_ahead
        gpu_machine.read_ahead = lambda torch: None  # three GB
        self.addCleanup(setattr, gpu_machine, "read_ahead", read_ahead)

    def loader_that(self, command, patience=1):
        run = self.make_run(dry=False)
        builds = []
        run.start_build = lambda: builds.append(1) and False
        run.answers = "true"
        results = self.go(run, [Stage("loader", 1, command, "", patience=patience), Stage("next", 5, "true", "")])
        return results, len(builds)

    def test_a_loader_that_is_slow_has_not_refused_and_nothing_is_built(self):
        self.assertEqual(self.loader_that("sleep 60"), ({"loader": "cut off", "next": "passed"}, 0))
        self.assertEqual(self.loader_that("exit 127"), ({"loader": "failed", "next": "passed before"}, 1))
        self.assertEqual(self.loader_that("true"), ({"loader": "passed", "next": "passed before"}, 0), "the loader always runs")

    def test_programs_of_another_torch_are_built_at_once(self):
        run, built = self.make_run(dry=False), []
        run.start_build = lambda: built.append(1) and False
        gpu_faults.other_torch(run)
        results = self.go(run, [Stage("loader", 5, "true", "")])
        self.assertEqual((results, built), ({}, [1]))
        self.assertIn("torch 2.9.1 is here, the programs were made with 2.11.0", self.reasons["machine"])

    def answering(self, answers, *stages, loader="echo '[       OK ] a sum'"):
        run = self.make_run(dry=False)
        run.answers = answers
        run.start_build = lambda: self.fail("a build")
        return self.go(run, [Stage("loader", 5, loader, ""), *stages])

    def test_a_gpu_that_answered_and_does_not_any_more_ends_the_call(self):
        dead = self.folder / "dead"
        broken, late = Stage("breaks", 5, f"touch {dead}; exit 1", ""), Stage("late", 5, "true", "")
        results = self.answering(f"[ ! -e {dead} ]", broken, late)
        self.assertEqual(results, {"loader": "passed", "breaks": "failed", "late": "not run"})
        self.assertIn("does not answer", self.reasons["late"])

    def test_a_gpu_that_is_busy_for_ever_ends_the_call(self):
        begun = time.monotonic()
        results = self.answering("sleep 60", Stage("hangs", 1, "sleep 60", ""), Stage("late", 5, "true", ""))
        self.assertEqual(results, {"loader": "passed", "hangs": "cut off", "late": "not run"})
        self.assertIn("no sum within 5 s", self.reasons["late"])
        self.assertLess(time.monotonic() - begun, 40)

    def test_a_driver_that_shows_no_gpu_ends_the_call_without_a_build(self):
        words = "error: the NVIDIA driver waits for the NVSwitches: start nvidia-fabricmanager"
        results = self.answering("true", Stage("next", 5, "true", ""), loader=f"echo '{words}'; exit 1")
        self.assertEqual(results, {"loader": "failed", "next": "not run"})
        self.assertIn("fabricmanager", self.reasons["next"])

    def test_a_sum_that_was_wrong_from_the_start_says_nothing_of_the_gpu_and_builds_nothing(self):
        results = self.answering("false", Stage("fails", 5, "false", ""), Stage("next", 5, "true", ""), loader="echo '[  FAILED  ] a sum'")
        self.assertEqual(results, {"loader": "passed", "fails": "failed", "next": "passed"})

    def test_a_library_that_does_not_open_is_a_refusal(self):
        bin = self.folder / "none/bin"
        bin.mkdir(parents=True)
        for name in ("tessera", "test_cuda_gpu", "test_cuda_table", "test_ops_gpu"):
            (bin / name).write_text("#!/bin/sh\ncase $* in *filter*) echo \"${SUM:-[  SKIPPED ] a sum}\" ;; esac\n")
            (bin / name).chmod(0o755)
        for words, expected in (("[  SKIPPED ] a sum", "failed"), ("[  FAILED  ] a sum", "passed"), ("[       OK ] a sum", "passed")):
            run, built = self.make_run(dry=False), []
            run.environment["SUM"] = words
            run.start_build = lambda: built.append(1) and False
            self.assertEqual(self.go(run, [gpu_stages.FIRST[0]]), {"loader": expected}, words)
            self.assertEqual((bool(built), run.answered), (expected == "failed", "OK" in words))

    def test_a_test_that_was_skipped_is_no_answer(self):
        bin = self.folder / "none/bin"
        bin.mkdir(parents=True)
        for word, answers in (("  SKIPPED", False), ("       OK", True)):
            (bin / "test_cuda_table").write_text(f"#!/bin/sh\necho '[{word} ] Table.TensorsComeFromTheGivenAllocator (0 ms)'\n")
            (bin / "test_cuda_table").chmod(0o755)
            results = self.answering(gpu_stages.ANSWERS, Stage(f"fails {answers}", 5, "exit 1", ""), Stage(f"next {answers}", 5, "true", ""))
            self.assertEqual(results[f"next {answers}"], "passed" if answers else "not run")


class Faults(InAFolder):
    """Those of bench/gpu_faults.py, in small."""

    SIX = [stage(f"stage {i}", "true") for i in range(1, 7)]

    def test_a_stage_that_hangs_and_ignores_sigterm(self):
        begun = time.monotonic()
        results = self.go(self.make_run(), self.SIX[:2], lambda run: gpu_faults.hang(run, seconds=1))
        self.assertEqual(results, {"stage 1": "passed", "hangs": "cut off", "stage 2": "passed"})
        self.assertLess(time.monotonic() - begun, 30)
        self.assertEqual(subprocess.run(["pgrep", "-f", SLEEPS], capture_output=True, text=True).stdout, "")
        lines = gpu_results.lines_of(self.archived()["lines.jsonl"].decode())
        self.assertEqual([line["stage"] for line in lines], ["machine", "stage 1", "hangs", "stage 2"])
        self.assertEqual(lines[2]["numbers"], {"reached": 7})

    def test_an_import_that_takes_long_holds_up_nothing(self):
        imports, goes_on = Stage("attention", 5, "", "", programs=False), self.folder / "goes on"

        def until_the_last(run):
            gpu_faults.slow_import(run, 0)
            (Path(run.environment["PYTHONPATH"]) / "torch/__init__.py").write_text(
                f"import os, time\nwhile not os.path.exists({str(goes_on)!r}):\n    time.sleep(0.02)\n__version__ = 'slow'\ndef zeros(n):\n    pass\n")

        run = self.make_run()
        self.assertLess(time.monotonic() - run.begun, 5, "nothing is imported to find torch")
        results = self.go(run, [self.SIX[0], imports, stage("meanwhile", "true"), stage("last", f"touch '{goes_on}'")], until_the_last)
        self.assertEqual(list(results.items()), [("stage 1", "passed"), ("meanwhile", "passed"), ("last", "passed"), ("attention", "passed")])
        self.assertEqual(self.lines()[-1]["numbers"], {"imported": "slow"})
        results = self.go(self.make_run("--again"), [imports, self.SIX[0]], lambda run: gpu_faults.slow_import(run, 3600), left=gpu.LEAST + 2)
        self.assertEqual(results, {"stage 1": "passed", "attention": "skipped"})
        self.assertIn("import torch takes more than", self.reasons["attention"])

    def test_an_import_that_fails_is_said(self):
        def broken(run):
            gpu_faults.slow_import(run, 0)
            (Path(run.environment["PYTHONPATH"]) / "torch/__init__.py").write_text("raise ImportError('libcudart.so.13 is not there')")
        results = self.go(self.make_run(), [stage("first", "sleep 1"), Stage("attention", 5, "", "", programs=False)], broken)
        self.assertEqual(results, {"first": "passed", "attention": "skipped"})
        self.assertIn("import torch fails: ImportError: libcudart.so.13", self.reasons["attention"])

    def test_a_folder_of_results_that_is_full(self):
        results = self.go(self.make_run(), self.SIX, gpu_faults.full_results)
        self.assertEqual(set(results.values()), {"passed"})
        self.assertEqual(sorted(f.name for f in self.out.iterdir()), [f"other-{i}" for i in range(8)] + ["results.tgz"])
        self.assertIn("has 8 other files, and 8 come back: only results.tgz", self.printed.getvalue())
        self.assertEqual(len(gpu_results.lines_of(self.archived()["lines.jsonl"].decode())), 7)

    def test_a_folder_of_results_that_nothing_can_be_written_to(self):
        results = self.go(self.make_run(), self.SIX[:2], gpu_faults.no_results)
        self.assertEqual(set(results.values()), {"passed"})
        told = [json.loads(line.removeprefix("gpu: LINE ")) for line in self.printed.getvalue().splitlines() if line.startswith("gpu: LINE ")]
        self.assertEqual([line["stage"] for line in told], ["machine", "stage 1", "stage 2"])

    def test_a_torch_of_another_version(self):
        results = self.go(self.make_run(), self.SIX[:2], gpu_faults.other_torch)
        self.assertEqual(results, {"stage 1": "passed", "stage 2": "passed"})
        self.assertIn("torch 2.9.1 is here, the programs were made with 2.11.0", self.reasons["machine"])

    def test_a_gpu_that_fails_after_stage_four(self):
        results = self.go(self.make_run(), [stage("loader", "true"), *self.SIX], gpu_faults.gpu_lost)
        self.assertEqual(list(results.values()), ["passed"] * 4 + ["failed"] + ["not run"] * 2)
        lines = gpu_results.lines_of(self.archived()["lines.jsonl"].decode())
        self.assertEqual(lines[-1]["result"], "failed")
        self.assertIn("the GPU does not answer", self.archived()["table.txt"].decode())

    def test_a_case_of_an_unknown_kind(self):
        (self.folder / "none/goldens/sana").mkdir(parents=True)
        (self.folder / "none/goldens/sana/config.json").write_text("{}")
        (self.folder / "none/goldens/sana/case.json").write_text('{"kind": "agrees"}')
        program = self.folder / "verify"
        program.write_text(Goldens.PROGRAM.replace('does == "unknown"', 'does == "of_tomorrow"').replace("'unknown'", "'of_tomorrow'"))
        program.chmod(0o755)
        compares = stage("goldens", "python3 {root}/bench/gpu_goldens.py " + f"{program} {{goldens}} --device cpu")
        results = self.go(self.make_run(), [compares, self.SIX[0]], gpu_faults.unknown_case)
        self.assertEqual(results, {"goldens": "passed", "stage 1": "passed"})
        self.assertEqual(self.lines()[0]["numbers"], {"cases_ok": 1, "cases_unknown": ["aaa_of_tomorrow"]})

    def test_every_fault_can_be_named(self):
        for name in gpu_faults.FAULTS:
            self.assertTrue(callable(gpu_faults.FAULTS[name]), name)
        with self.assertRaises(SystemExit):
            gpu_faults.plant("none such", None)
        done = subprocess.run([sys.executable, ROOT / "scripts/gpu", "--fault", "hang"], capture_output=True, text=True)
        self.assertIn("dry runs alone", done.stderr)


class Results(InAFolder):
    def test_lines_of_an_earlier_call_stay_in_its_folder(self):
        self.run_stages(stage("first", "true"))
        self.run_stages(stage("second", "true"))
        self.assertEqual([line["stage"] for line in self.lines()], ["first", "second"])
        self.assertEqual([line["stage"] for line in gpu_results.lines_of(self.archived()["lines.jsonl"].decode())], ["machine", "first", "machine", "second"])

    def test_what_comes_back_is_few_files_that_are_not_large(self):
        noise = stage("loud", "head -c 3000000 /dev/urandom | base64; echo last words")
        many = stage("many", "for i in $(seq 18); do head -c 2000000 /dev/urandom > {keep}/trace-$i; done; echo '{\"kept\": 1}' > {keep}/a-kernels.json")
        self.run_stages(noise, many, stage("probe", "echo made > {probed}"))
        self.assertIn("no room in results.tgz", self.printed.getvalue())
        files = [f for f in self.out.rglob("*") if f.is_file()]
        self.assertLessEqual(len(files), 8)
        for file in files:
            self.assertEqual(file.parent, self.out)
            self.assertLessEqual(file.stat().st_size, 16 << 20, file.name)
            self.assertRegex(file.name, r"^[A-Za-z0-9._-]+$")
        archived = self.archived()
        self.assertTrue(archived["logs/loud.log"].endswith(b"last words\n"))
        self.assertEqual(json.loads(archived["logs/a-kernels.json"]), {"kept": 1})
        self.assertEqual(archived["profile.toml"], b"made\n")

    def test_they_are_whole_after_every_stage(self):
        keeps = f"cp {self.out}/results.tgz {self.folder}/seen.tgz"
        self.run_stages(stage("first", "echo '{\"reached\": 1}'"), stage("second", keeps))
        with tarfile.open(self.folder / "seen.tgz") as tar:
            lines = gpu_results.lines_of(tar.extractfile("lines.jsonl").read().decode())
        self.assertEqual([(line["stage"], line["result"]) for line in lines], [("machine", "passed"), ("first", "passed")])

    def test_a_call_that_is_killed_has_lost_one_stage(self):
        code = (f"import sys; sys.argv = ['gpu']; sys.path.insert(0, {str(ROOT / 'tests/cuda')!r}); import gpu_script_test as t\n"
                f"run = t.gpu.Run(t.gpu.arguments(['--dry', '--pack', 'none', '--out', {str(self.out)!r}, '--logs', {str(self.folder / 'logs')!r}]))\n"
                "run.known = []; run.prepare(); run.all([t.stage('first', 'true'), t.stage('second', 'kill -9 $PPID')])")
        subprocess.run([sys.executable, "-c", code], capture_output=True)
        self.assertEqual([line["stage"] for line in gpu_results.lines_of(self.archived()["lines.jsonl"].decode())], ["machine", "first"])

    def test_they_are_brought_home_once_and_make_a_page(self):
        shown = json.dumps({"attention_cudnn_14b_32760_forward_tflop_s": 611.5, "attention_flash_14b_32760_forward_tflop_s": 333.25,
                            "attention_cudnn_4104_far_error": 0.004, "attention_flash_4104_far_error": 0.005})
        step = json.dumps({"step_s": 0.4321, "peak_gib": 30.5, "launches": 371})
        kernels = json.dumps([{"kernel": "ampere|gemm<float>", "count": 8, "us": 4000.0}, {"kernel": "norm", "count": 3, "us": 1000.0}])
        self.run_stages(stage("attention", f"echo '{shown}'"), stage("a block of the 14B, kept", f"echo '{kernels}' > {{keep}}/block-kernels.json; echo '{step}'"),
                        stage("probe", "echo made > {probed}"), stage("fails", "echo broken; exit 1"))
        gpus, runs, page = self.folder / "gpus", self.folder / "runs", self.folder / "page.md"
        with contextlib.redirect_stdout(io.StringIO()):
            for _ in range(2):
                name = home.bring(self.out, gpus, runs)
                home.write_page(gpus, page)
        self.assertEqual(len((gpus / f"{name}.jsonl").read_text().splitlines()), 5)
        self.assertEqual((gpus / f"{name}.toml").read_text(), "made\n")
        text = page.read_text()
        for words in ("| 14b, 32760 tokens | 611.5 |", "| a block of the 14B, kept | 0.4321 |", "`ampere\\|gemm<float>` | 8 | 4.0 | 80.0", "| fails | failed |", "| broken |",
                      "| 4104, scores around -100 | 0.004 | 0.005 |"):
            self.assertIn(words, text)
        self.assertEqual(len([*runs.glob("gpu-log-*/block-kernels.json")]), 1)
        (self.folder / "empty").mkdir()
        with self.assertRaises(SystemExit):
            home.bring(self.folder / "empty", gpus, runs)

    def test_a_pack_is_unpacked_once_and_a_broken_one_is_said(self):
        source, archive, folder = self.folder / "source", self.folder / "pack.tar.xz", self.folder / "pack"
        (source / "bin").mkdir(parents=True)
        (source / "bin/tessera").write_text("program")
        with tarfile.open(archive, "w:xz") as tar:
            tar.add(source, ".")
        gpu.unpack(archive, folder)
        self.assertEqual((folder / "bin/tessera").read_text(), "program")
        (folder / "bin/tessera").write_text("touched")
        gpu.unpack(archive, folder)
        self.assertEqual((folder / "bin/tessera").read_text(), "touched")
        archive.write_bytes(archive.read_bytes()[:80])
        with self.assertRaises(SystemExit) as refused:
            gpu.unpack(archive, folder)
        self.assertIn("cannot be unpacked", str(refused.exception))


class Pack(InAFolder):
    PROGRAM = """
#include <stdio.h>
#include <string.h>
int main(int n, char** words) {
  puts(n > 1 && !strcmp(words[1], "--version") ? "tessera 9\\nLibTorch 2.11.0, AVX2" : "error: [verify] kind '?' is not known; known kinds: dit, vae");
  return 0;
}
"""

    def test_is_one_file_with_programs_goldens_of_all_families_and_what_they_were_made_with(self):
        build, goldens = self.folder / "build", self.folder / "goldens"
        (build / "bin").mkdir(parents=True)
        (self.folder / "program.c").write_text(self.PROGRAM)
        subprocess.run(["cc", "-o", build / "bin/tessera", self.folder / "program.c"], check=True)
        for name in ("test_cuda_gpu", "test_cuda_table", "test_ops_gpu", "plan_worker"):
            shutil.copy(build / "bin/tessera", build / "bin" / name)
        for name, kind in (("sana", "dit"), ("vae_of_any", "vae"), ("of_tomorrow", "tomorrow")):
            (goldens / name).mkdir(parents=True)
            (goldens / name / "case.json").write_text(json.dumps({"kind": kind}))
            (goldens / name / "original.safetensors").write_text("under other names")
        (build / "CMakeCache.txt").write_text(f"TESSERA_GOLDENS:PATH={goldens}\n")
        pack = self.folder / "gpu-pack"
        done = subprocess.run([ROOT / "scripts/gpu-pack", "--no-build", "--dir", build, "--out", pack, "--demo", self.folder / "none"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("MiB of at most 48", done.stdout)
        there = self.folder / "there"
        gpu.unpack(pack.with_name("gpu-pack.tar.xz"), there)
        self.assertEqual(sorted(f.name for f in (there / "bin").iterdir()), sorted(["tessera", "test_cuda_gpu", "test_cuda_table", "test_ops_gpu", "plan_worker"]))
        self.assertTrue(os.access(there / "bin/tessera", os.X_OK))
        self.assertEqual(sorted(str(f.relative_to(there)) for f in (there / "goldens").rglob("*.*")), ["goldens/sana/case.json", "goldens/vae_of_any/case.json"])
        self.assertEqual(json.loads((there / "sources.json").read_text()), {**gpu.sources(), "torch": "2.11.0"})
        self.assertTrue((there / "needs/include/nlohmann/json.hpp").exists())


class Libraries(InAFolder):
    """Of scripts/gpu-libraries what needs no wheels."""

    def test_each_symbol_is_named_with_the_library_that_has_it(self):
        site = self.folder / "site"
        (site / "torch/lib").mkdir(parents=True)
        (site / "nvidia/nccl/lib").mkdir(parents=True)

        def library(path, source, *words):
            file = self.folder / "source.c"
            file.write_text(source)
            subprocess.run(["cc", "-shared", "-fPIC", "-o", path, file, *words], check=True)

        library(site / "torch/lib/libtorch_cuda.so", "void torch_has(void) {}")
        library(site / "nvidia/nccl/lib/libnccl.so.2", "void ncclSend(void) {} void none(void); void calls(void) { none(); }", "-Wl,-soname,libnccl.so.2")
        library(self.folder / "ours.so", '#include <stdio.h>\nvoid torch_has(void); void nobody_has(void); void ours(void) { torch_has(); nobody_has(); puts(""); }')
        found = real.providers(self.folder / "ours.so", site)
        self.assertEqual((found["torch_has"], found["nobody_has"], found["ncclSend"]), ("libtorch_cuda.so", None, "libnccl.so.2"))
        self.assertNotIn("puts", found)
        self.assertIsNone(found["ncclCommInitRankConfig"], "asked for by name, and not there")
        self.assertEqual(real.of_the_machine(site), [])


class Machine(InAFolder):
    def test_versions_are_read_from_files(self):
        torch = self.folder / "site/torch"
        (torch / "lib").mkdir(parents=True)
        (torch / "version.py").write_text("__version__ = '2.11.0+cu130'\n")
        for name in ("nvidia_cudnn_cu13-9.19.0.56", "nvidia_nccl_cu13-2.28.9", "nvidia_cublas-13.1.0.3"):
            (self.folder / f"site/{name}.dist-info").mkdir()
        facts = gpu_machine.facts(torch)
        self.assertEqual({key: facts[key] for key in ("torch", "cudnn", "nccl", "cublas")},
                         {"torch": "2.11.0", "cudnn": "9.19.0.56", "nccl": "2.28.9", "cublas": "13.1.0.3"})
        self.assertNotIn("cudnn_too_old", facts)
        (self.folder / "site/nvidia_cudnn_cu13-9.19.0.56.dist-info").rename(self.folder / "site/nvidia_cudnn_cu13-9.15.1.9.dist-info")
        self.assertIn("9.15.1", gpu_machine.facts(torch)["cudnn_too_old"])
        for name in ("libtorch_python.so", "libcudnn.so.9", "libtorch_cpu.so"):
            (torch / "lib" / name).write_text(name)
        process = gpu_machine.read_ahead(torch)
        self.assertEqual([Path(word).name for word in process.args[1:]], ["libtorch_cpu.so", "libcudnn.so.9", "libtorch_python.so"])
        self.assertEqual(process.wait(20), 0)

    NVML = """
#include <string.h>
static int readings, gpu;
int nvmlInit_v2() { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) { *device = &gpu; return index; }
struct memory { unsigned version; unsigned long long total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(void* d, struct memory* m) { m->reserved = 512ULL << 20; m->used = (1ULL + ++readings) << 30; return d != &gpu || m->version != (40 | 2 << 24); }
int nvmlDeviceGetClockInfo(void* d, unsigned kind, unsigned* mhz) { *mhz = kind == 1 ? 1980 : 2619; return 0; }
int nvmlDeviceGetPowerUsage(void* d, unsigned* milliwatts) { *milliwatts = 650400; return 0; }
int nvmlDeviceGetUtilizationRates(void* d, unsigned* percent) { percent[0] = 97, percent[1] = 3; return 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void* d, unsigned long long* why) { *why = 4; return 0; }
"""

    def test_the_watcher_writes_readings_until_its_parent_ends(self):
        (self.folder / "nvml.c").write_text(self.NVML)
        library, file = self.folder / "nvml.so", self.folder / "watch.csv"
        subprocess.run(["cc", "-w", "-shared", "-fPIC", "-o", library, self.folder / "nvml.c"], check=True)
        words = [sys.executable, ROOT / "bench/gpu_machine.py", "watch", file, "--library", library]
        begun = time.time()
        parent = subprocess.Popen(["sh", "-c", '"$@" & echo $!; sleep 1.5', "sh", *map(str, words)], stdout=subprocess.PIPE, text=True)
        watcher = int(parent.stdout.readline())
        parent.wait(30)
        end = time.monotonic() + 20
        while os.path.exists(f"/proc/{watcher}") and time.monotonic() < end:
            time.sleep(0.05)
        self.assertFalse(os.path.exists(f"/proc/{watcher}"), "it outlives its parent")
        rows = file.read_text().splitlines()
        self.assertGreater(len(rows), 3)
        self.assertEqual(rows[1].split(",")[1:], ["2048", "512", "1980", "2619", "650", "", "97", "0x4"], "a function that is missing leaves its column empty")
        told = gpu_machine.between(file, begun, time.time())
        self.assertEqual((told["nvml_reserved_gib"], told["watts_most"], told["sm_mhz_least_busy"], told["slowed_by"]), (0.5, 650, 1980, ["0x4"]))
        self.assertEqual(told["nvml_used_gib"], float(len(rows)))
        self.assertEqual(gpu_machine.between(file, 0, 1), {})

    def test_without_nvml_the_watcher_says_so(self):
        done = subprocess.run([sys.executable, ROOT / "bench/gpu_machine.py", "watch", self.folder / "w", "--library", "libnone.so"], capture_output=True, text=True)
        self.assertIn("NVML gives no readings", done.stderr)


class Goldens(InAFolder):
    """With a program of the test's own in the place of `tessera verify`: a case does what its description says."""

    PROGRAM = """#!/usr/bin/env python3
import json, os, signal, sys, time
from pathlib import Path
stops, code = os.path.exists(__file__ + ".stops"), 0
for folder in map(Path, sys.argv[4:]):
    does = json.loads((folder / "case.json").read_text())["kind"]
    with open(__file__ + ".seen", "a") as seen:
        print(folder.name, os.environ.get("TESSERA_SERIAL", ""), file=seen)
    if does == "dies":
        os.kill(os.getpid(), signal.SIGSEGV)
    if does == "hangs":
        time.sleep(3600)
    if does == "unknown":
        print(f"error: [verify] {folder}/case.json: kind 'unknown' is not known; known kinds: agrees, wrong")
        code = 3
        if stops:
            break
        continue
    right = does == "agrees" or (does == "race" and os.environ.get("TESSERA_SERIAL"))
    code = code if right else 1
    print(f"{'ok  ' if right else 'FAIL'} {folder.name}/case.safetensors (model.safetensors)   9 tensors, worst out: 1 of 2", flush=True)
sys.exit(code)
"""

    def compare(self, stops=False, seconds=40, quiet=2, **cases):
        for name, does in cases.items():
            (self.folder / "goldens" / name).mkdir(parents=True)
            (self.folder / "goldens" / name / "case.json").write_text(json.dumps({"kind": does}))
        program = self.folder / "verify"
        program.write_text(self.PROGRAM)
        program.chmod(0o755)
        (self.folder / "verify.stops").write_text("") if stops else None
        code = ("import sys; sys.path.insert(0, sys.argv.pop(1)); import gpu_goldens as g\n"
                f"g.QUIET, g.LAST, g.LEAST = {{'cuda': {quiet}}}, 3, 1; g.main()")
        done = subprocess.run([sys.executable, "-c", code, ROOT / "bench", program, self.folder / "goldens", "--seconds", str(seconds)], capture_output=True, text=True)
        self.seen = (self.folder / "verify.seen").read_text().splitlines()
        return done.returncode, json.loads(done.stdout.splitlines()[-1])

    def test_a_case_of_an_unknown_kind_is_told_and_the_others_are_compared(self):
        for stops in (False, True):
            with self.subTest(stops=stops):
                shutil.rmtree(self.folder / "goldens", ignore_errors=True)
                code, numbers = self.compare(stops, a="agrees", b="unknown", c="agrees", d="unknown", e="agrees")
                self.assertEqual((code, numbers), (0, {"cases_ok": 3, "cases_unknown": ["b", "d"]}))

    def test_a_case_that_differs_is_computed_again_by_itself_and_serially(self):
        code, numbers = self.compare(a="race", b="agrees", c="wrong")
        self.assertEqual(code, 1)
        self.assertEqual(numbers, {"cases_ok": 1, "cases_wrong": ["a", "c"], "alone_and_serial": {"a": "agrees", "c": "differs"}})
        self.assertEqual(self.seen, ["a ", "b ", "c ", "a 1", "c 1"])

    def test_a_case_at_which_the_process_ends_or_hangs_is_passed_over(self):
        code, numbers = self.compare(a="agrees", b="dies", c="agrees", d="hangs", e="agrees")
        self.assertEqual(code, 5)
        self.assertEqual((numbers["cases_ok"], numbers["cases_ended"]), (3, {"b": "ended with -11", "d": "hung"}))
        self.assertEqual(numbers["alone_and_serial"], {"b": "ended with -11", "d": "hung"})

    def test_without_time_what_was_not_compared_is_counted(self):
        code, numbers = self.compare(seconds=13, quiet=30, a="agrees", b="hangs", c="agrees")
        self.assertEqual((code, numbers), (0, {"cases_ok": 1, "cases_without_time": 2}))

    def test_a_program_that_does_not_start_is_given_up(self):
        code, numbers = self.compare(**{name: "dies" for name in "abcdefgh"})
        self.assertEqual((code, numbers["cases_ok"]), (5, 0))
        self.assertLess(len(self.seen), 9)
        self.assertGreater(numbers["cases_without_time"], 3)

    def test_one_of_each_family_comes_first(self):
        for name in ("aardvark", "zebra", *gpu_goldens.FIRST[:4]):
            (self.folder / name).mkdir()
            (self.folder / name / "case.json").write_text("{}")
        self.assertEqual([case.name for case in gpu_goldens.cases_of(self.folder)], [*gpu_goldens.FIRST[:4], "aardvark", "zebra"])

    def test_a_pack_has_the_known_cases_that_there_is_room_for(self):
        for name, kind, size in (("sana", "agrees", 500), ("large", "agrees", 900), ("small", "wrong", 100), ("tomorrow", "unheard", 10)):
            folder = self.folder / "goldens" / name
            folder.mkdir(parents=True)
            (folder / "case.json").write_text(json.dumps({"kind": kind}))
            (folder / "model.safetensors").write_bytes(bytes(size))
            (folder / "diffusers.safetensors").write_bytes(bytes(10000))
        program = self.folder / "verify"
        program.write_text("#!/bin/sh\necho \"error: [verify] $2/case.json: kind '?' is not known; known kinds: agrees, wrong\" >&2\nexit 3\n")
        program.chmod(0o755)
        done = subprocess.run([sys.executable, ROOT / "bench/gpu_goldens.py", program, self.folder / "goldens", "--carry", self.folder / "out", "--most", "800"],
                              capture_output=True, text=True)
        self.assertEqual(sorted(str(f.relative_to(self.folder / "out")) for f in (self.folder / "out").rglob("*.safetensors")),
                         ["sana/model.safetensors", "small/model.safetensors"])
        self.assertIn("no room for large", done.stdout)


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

    def test_what_was_measured_before_a_program_ended_badly_is_told(self):
        line = {"seconds": [0.5], "predicted_seconds": 0.4, "peak_bytes": 2, "predicted_peak_bytes": 3, "host_bytes": 0, "plan": ""}
        with tempfile.TemporaryDirectory() as name:
            program = Path(name) / "tessera"
            for printed, code in ((line, 70), (None, 70), (line, 0)):
                program.write_text(f"#!/bin/sh\necho '{json.dumps(printed) if printed else ''}'\nexit {code}\n")
                program.chmod(0o755)
                done = subprocess.run([sys.executable, ROOT / "bench/gpu_steps.py", "block", program, "--keep", name, "--profile", "x"], capture_output=True, text=True)
                self.assertEqual(done.returncode, code)
                self.assertEqual(json.loads(done.stdout)["step_s"] if printed else done.stdout, 0.5 if printed else "")

    def test_launches_are_counted_and_the_longest_named(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "kernels.json"
            file.write_text(json.dumps([{"kernel": "flash", "count": 2, "us": 3000.0}, {"kernel": "add", "count": 10, "us": 1000.0}]))
            self.assertEqual(steps.launches(file), {"launches": 12, "kernels_ms": 4.0, "longest": ["75.0 % 2x flash", "25.0 % 10x add"]})
            file.write_text("[]")
            self.assertEqual(steps.launches(file), {"launches": 0, "kernels_ms": 0.0, "longest": []})


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
