#!/usr/bin/env python3
"""Does compare.py see what it should? Changed files, then a program that was changed a little.

    tests/compare/self_test.py                     # files alone, in a moment
    tests/compare/self_test.py build/bin/tessera   # and the program against itself behind changed flags, a minute
"""
import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from differ import Accepted, Difference, Folders

HERE = Path(__file__).resolve().parent
STEP = {"type": "step", "step": 1, "loss": 2.0766789533843575, "seconds": 0.5,
        "ranks": [{"peak_bytes": 100, "busy": {"compute": 0.1}}]}


def safetensors(values: list, metadata: dict) -> bytes:
    data = struct.pack(f"<{len(values)}f", *values)
    header = json.dumps({"__metadata__": metadata,
                         "w": {"dtype": "F32", "shape": [len(values)], "data_offsets": [0, len(data)]}}).encode()
    return struct.pack("<Q", len(header)) + header + data


def found(name: str, one, other) -> list:
    with tempfile.TemporaryDirectory() as root:
        for side, content in (("a", one), ("b", other)):
            path = Path(root, side, name)
            path.parent.mkdir(parents=True)
            if content is not None:
                path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return list(Folders(Path(root, "a"), Path(root, "b")).differences())


def expect(name: str, one, other, *wanted: str) -> None:
    told = [str(difference) for difference in found(name, one, other)]
    assert len(told) == len(wanted) and all(want in text for want, text in zip(wanted, told)), (name, wanted, told)


def files() -> None:
    def line(**changes) -> str:
        return json.dumps(STEP | changes) + "\n"

    expect("run/metrics.jsonl", line(), line(seconds=0.7, ranks=[{"peak_bytes": 100, "busy": {"compute": 9}}]))
    expect("run/metrics.jsonl", line(), line(loss=2.0766789533843579), "line 1: loss")
    expect("run/metrics.jsonl", line(), line(ranks=[{"peak_bytes": 101}]), "ranks[0].peak_bytes: 100 became 101")
    expect("run/metrics.jsonl", line(), line() + line(step=2), "line 2")
    expect("run/schedule.jsonl", '{"op":"gather","t0":1.0}\n', '{"op":"gather","t0":2.0}\n')
    expect("run/schedule.jsonl", '{"op":"gather","t0":1.0}\n', '{"op":"reduce","t0":1.0}\n', "op: gather became reduce")
    expect("plan.json", '{"a": 1, "b": [1.5]}', '{"b": [1.50000000000000001], "a": 1}', "b[0]")
    expect("plan.json", '{"a": 1}', '{"a": 1, "b": 2}', "b: (not there)")
    expect("run/plan.toml", "prefetch = 1\n[mesh]\ncp = 2", "prefetch = 1\n# a note\nmesh.cp = 2")
    expect("run/plan.toml", "prefetch = 1", "prefetch = 2", "prefetch: 1 became 2")
    expect("run/model/m.safetensors", safetensors([1, 2], {"date": "1"}), safetensors([1, 2], {"date": "2"}))
    expect("run/model/m.safetensors", safetensors([1, 2], {"rank": "1"}), safetensors([1, 2], {"rank": "2"}),
           "metadata.rank")
    expect("run/model/m.safetensors", safetensors([1, 2.0], {}), safetensors([1, 2.0000002384185791], {}),
           "tensor w: element 1: 2.0 (0x40000000) became 2.000000238418579 (0x40000001)")
    expect("pictures/frame-0000.png", b"abc", b"abd", "byte 2")
    expect("pictures/frame-0000.png", b"abc", None, "(file)")
    expect("run/samples/a.mp4", b"abc", b"abd")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("# known\nrun-0* *metrics.jsonl:*peak_bytes a smaller buffer\n")
        file.flush()
        accepted, here = Accepted(file.name), Difference("run/metrics.jsonl", "line 1: ranks[0].peak_bytes", "1", "2")
        assert accepted.takes("run-01", here) and not accepted.takes("run-11", here)
        assert not accepted.takes("run-01", Difference("run/metrics.jsonl", "line 1: loss", "1", "2"))
        assert "1 x run-0*" in accepted.told()[0]
    print("changed files are seen, times are not")


# Flags that a changed program adds to its own, by command: the cases, what is accepted, what has to be told.
CHANGES = {
    "a rate that is off by 1e-9": ("train", "--train.lr 1.000000001e-3", "run-01", "", "became 1.000000001"),
    "a tensor that moves by a bit": ("train", "--train.eps 1.001e-8", "run-01", "*recipe* *metrics*", "tensor "),
    "another plan": ("plan", "--plan.prefetch 2", "plan-wan-tiny_demo_cpu-ranks", "", "prefetch: "),
    "a refusal": ("train", "--mesh sp=64", "run-01", "", "exit codes"),
}


def programs(program: str) -> None:
    compare = [sys.executable, str(HERE / "compare.py")]
    with tempfile.TemporaryDirectory() as root:
        for what, (command, flags, case, accepted, wanted) in CHANGES.items():
            wrapper, known = Path(root, "tessera"), Path(root, "known.txt")
            wrapper.write_text(f'#!/bin/sh\ncase " $* " in *" {command} "*) exec "{program}" "$@" {flags};; esac\n'
                               f'exec "{program}" "$@"\n')
            wrapper.chmod(0o755)
            known.write_text("".join(f"* {pattern} it was asked for\n" for pattern in accepted.split()))
            result = subprocess.run([*compare, program, str(wrapper), "--only", case, "--accept", str(known)],
                                    capture_output=True, text=True, env={**os.environ, "TMPDIR": root})
            assert result.returncode == 1 and wanted in result.stdout, (what, result.stdout, result.stderr)
            print(f"seen: {what}")


if __name__ == "__main__":
    files()
    if len(sys.argv) > 1:
        programs(str(Path(sys.argv[1]).resolve()))
