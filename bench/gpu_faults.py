"""Faults that `scripts/gpu --dry --fault NAME` plants: what a machine with a GPU may do to a call, on one without."""
import os
import shutil
import sys
import tempfile
from pathlib import Path

from gpu_stages import Stage


def hang(run, seconds=3):
    """Behind the first stage one that hangs, with a child, and ignores SIGTERM."""
    stubborn = Stage("hangs", 1, "", f"echo '{{\"reached\": 7}}'; trap '' TERM; sleep {os.getpid()}.5 & while :; do sleep 0.1; done", patience=seconds)
    stages_of = run.stages_of
    run.stages_of = lambda call: [*stages_of(call)[:1], stubborn, *stages_of(call)[1:]]


def slow_import(run, seconds=70):
    """The first import of torch takes so long, each that follows nothing."""
    site = Path(tempfile.mkdtemp(prefix="slow-import-"))
    (site / "torch").mkdir()
    (site / "torch/__init__.py").write_text(f"import pathlib, time\nmark = pathlib.Path({str(site / 'imported')!r})\n"
                                            f"if not mark.exists():\n    time.sleep({seconds})\nmark.write_text('')\n"
                                            "__version__ = 'slow'\ndef zeros(n):\n    pass\n")
    run.environment["PYTHONPATH"] = str(site)
    run.python = sys.executable
    stages_of = run.stages_of
    imports = '{python} -c \'import torch; print("{\\"imported\\": \\"" + torch.__version__ + "\\"}")\''
    run.stages_of = lambda call: [stage if stage.programs else Stage(stage.name, 10, "", imports, programs=False) for stage in stages_of(call)]


def full_results(run):
    """The folder of results has as many files of others as come back."""
    for i in range(8):
        (run.results.folder / f"other-{i}").write_text("of another program")
    run.results = type(run.results)(run.results.folder, run.keep)


def no_results(run):
    """Nothing can be written there."""
    (run.keep / "file").write_text("")
    run.results = type(run.results)(run.keep / "file/results", run.keep)


def other_torch(run):
    """The machine's torch is of another version than the programs were made with."""
    run.torch = Path(tempfile.mkdtemp(prefix="other-torch-")) / "torch"
    run.torch.mkdir()
    (run.torch / "version.py").write_text("__version__ = '2.9.1+cu130'\n")
    sources_of = sys.modules[type(run).__module__].sources_of
    sys.modules[type(run).__module__].sources_of = lambda pack: {**sources_of(pack), "torch": "2.11.0"}


def gpu_lost(run, after=4):
    """Behind so many stages whatever is started fails, as on a GPU that has fallen off its bus."""
    execute, begun = run.execute, []

    def failing(command, limit, log):
        begun.append(command)
        return execute(command, limit, log) if len(begun) <= after else (1, "CUDA error: unspecified launch failure", {})

    run.execute = failing


def unknown_case(run):
    """A golden case of a kind that no program knows, among those that are compared."""
    prepare = run.prepare

    def with_case():
        there = prepare()
        folder = Path(tempfile.mkdtemp(prefix="goldens-"))
        for case in run.goldens.glob("*"):
            os.symlink(case, folder / case.name)
        (folder / "aaa_of_tomorrow").mkdir()
        shutil.copy(next(run.goldens.glob("*/config.json")), folder / "aaa_of_tomorrow/config.json")
        (folder / "aaa_of_tomorrow/case.json").write_text('{"kind": "of_tomorrow", "tolerance": {}}')
        run.goldens = folder
        return there

    run.prepare = with_case


FAULTS = {"hang": hang, "slow-import": slow_import, "full-results": full_results, "no-results": no_results, "other-torch": other_torch,
          "gpu-lost": gpu_lost, "unknown-case": unknown_case}


def plant(name, run):
    if name not in FAULTS:
        sys.exit(f"gpu: no fault '{name}': {', '.join(FAULTS)}")
    FAULTS[name](run)
