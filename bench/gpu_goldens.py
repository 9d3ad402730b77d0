#!/usr/bin/env python3
"""Golden cases of all families on a device, within a given time (scripts/gpu).

    bench/gpu_goldens.py PROGRAM FOLDER [--device cuda] [--seconds 55] [--cases NAME...]
    bench/gpu_goldens.py PROGRAM FOLDER --carry OUT    copies those that the program knows, with weights under their own names alone

One process compares many cases, since each start of a program on a GPU costs seconds. A case that the program does not know or cannot
read is told and is no failure. A case that differs, or at which the process ends or hangs, is computed again in a process of its
own with TESSERA_SERIAL=1, where the host waits after every instruction: what is right then was a race, what is wrong is arithmetic.
A case at which a process ended is passed over by the next, which goes on behind it. Prints a JSON object of numbers; ends with 1
if a case differs, with 5 if a process ended or hung.
"""
import argparse
import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# One of each family first, so that little time has shown most.
FIRST = ("wan21_t2v", "wan21_vae", "sana", "dc_ae", "opensora2", "opensora_dc_ae", "stdit3_v12", "opensora_vae12", "hunyuan_video15", "umt5",
         "gemma2", "t5", "clip_vision", "wav2vec", "wan22_ti2v", "wan22_moe", "wan22_s2v", "wan_vace", "wan_fun_control", "wan_animate", "sana_video",
         "wan22_vae", "hunyuan_vae")
MOST_SILENT = 4  # processes without a result, one after the other
LEAST = 3  # seconds for a case by itself
LAST = 12  # likewise, at most
QUIET = {"cuda": 15, "cpu": 90}  # seconds without a word, after which a process hangs
OTHER_NAMES = ("diffusers", "original")  # how files begin that have the same weights under other names: a device does not see them


def cases_of(folder):
    """Folders with a case, those that show most first."""
    named = {path.parent.name: path.parent for path in folder.glob("*/case.json")}
    return [named.pop(name) for name in FIRST if name in named] + [named[name] for name in sorted(named)]


class Told:
    """What `tessera verify` said: of each case that it finished, whether it agrees; of others, that their kind is not known."""

    def __init__(self, text):
        self.text, self.agrees, self.unknown = text, {}, set()
        for word, name in re.findall(r"^(ok|FAIL) +([^/\s]+)/", text, re.M):
            self.agrees[name] = self.agrees.get(name, True) and word == "ok"
        for folder in re.findall(r"([^\s:]+)/case\.json: kind '[^']*' is not known", text):
            self.unknown.add(Path(folder).name)


def verify(options, cases, seconds, serial=False):
    """(exit code or None if it was cut off or silent for too long, Told)."""
    words = [options.program, "verify", "--device", options.device, *map(str, cases)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               env={**os.environ, **({"TESSERA_SERIAL": "1"} if serial else {})})
    end, pieces = time.monotonic() + seconds, []
    while True:
        ready, _, _ = select.select([process.stdout], [], [], max(0, min(QUIET[options.device], end - time.monotonic())))
        piece = os.read(process.stdout.fileno(), 1 << 16) if ready else None
        if not piece:  # its end, or nothing for too long
            break
        pieces.append(piece.decode(errors="replace"))
        print(pieces[-1], end="", flush=True)
    if piece is None:
        process.kill()
    try:
        code = process.wait(LEAST)
    except subprocess.TimeoutExpired:
        code = None  # the system cannot end it: it is held in the driver
    return None if piece is None else code, Told("".join(pieces))


def compare(options, cases, end):
    """Of all cases that there was time for: {name: agrees}, unknown ones, and {name: how the process ended at it}. Ends with 3 are of
    programs that stop at a case that they do not know, or that go on behind it and tell so at their end."""
    agrees, unknown, ended, silent = {}, set(), {}, 0
    while cases and end - time.monotonic() > LEAST:
        code, told = verify(options, cases, end - time.monotonic())
        agrees |= told.agrees
        unknown |= told.unknown
        left = [case for case in cases if case.name not in agrees and case.name not in unknown]
        if code in (0, 1) or not left:
            break
        if code is None and end - time.monotonic() <= LEAST and told.agrees:
            break  # there was no time for them
        if code == 3 and told.unknown:  # it stops at a case that it does not know: the next begins behind it
            cases = left
            continue
        silent = 0 if told.agrees else silent + 1
        if silent == MOST_SILENT and not agrees:
            break  # it does not start here
        how = "hung" if code is None else f"ended with {code}"
        print(f"gpu_goldens: the process {how} at {left[0].name}", flush=True)
        if code == 3:  # it cannot read a file of it
            unknown.add(left[0].name)
        else:
            ended[left[0].name] = how
        cases = left[1:]
    return agrees, unknown, ended


def known_kinds(program):
    """Those that a program compares, as it says where it is given another; empty if it does not say."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "case.json").write_text('{"kind": "?", "tolerance": {}}')
        (Path(folder) / "config.json").write_text("{}")
        done = subprocess.run([program, "verify", folder], capture_output=True, text=True)
    found = re.search(r"known kinds: (.*)", done.stdout + done.stderr)
    return set(found.group(1).split(", ")) if found else set()


def carry(options):
    """The first of each family, then the small ones, as far as there is room."""
    kinds, carried, left_out, bytes_left = known_kinds(options.program), [], [], options.most
    cases = cases_of(options.folder)
    sizes = {case: sum(f.stat().st_size for f in case.rglob("*") if f.is_file() and not f.name.startswith(OTHER_NAMES)) for case in cases}
    cases.sort(key=lambda case: (FIRST.index(case.name), 0) if case.name in FIRST else (len(FIRST), sizes[case]))
    for case in cases:
        if kinds and json.loads((case / "case.json").read_text()).get("kind") not in kinds:
            continue
        if sizes[case] > bytes_left:
            left_out.append(case.name)
            continue
        bytes_left -= sizes[case]
        shutil.copytree(case, options.carry / case.name, copy_function=shutil.copyfile,
                        ignore=lambda folder, names: [name for name in names if name.startswith(OTHER_NAMES)])
        carried.append(case.name)
    print(f"gpu_goldens: {len(carried)} cases in {options.carry}" + (f"; no room for {', '.join(left_out)}" if left_out else ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=55)
    parser.add_argument("--cases", nargs="+", help="these alone")
    parser.add_argument("--carry", type=Path, metavar="OUT")
    parser.add_argument("--most", type=int, default=44_000_000, help="bytes that are carried; random weights hardly shrink")
    options = parser.parse_args()
    if options.carry:
        return carry(options)
    cases = [case for case in cases_of(options.folder) if not options.cases or case.name in options.cases]
    if not cases:
        sys.exit(f"gpu_goldens: {options.folder} has no cases: scripts/gpu-pack carries them")
    end = time.monotonic() + options.seconds
    agrees, unknown, ended = compare(options, cases, end - LAST)
    wrong = [name for name, right in agrees.items() if not right]
    serial = {}
    for case in [c for c in cases if c.name in [*wrong, *ended]]:
        left = end - time.monotonic()
        if left < LEAST:
            break
        print(f"gpu_goldens: {case.name} again, waiting after every instruction", flush=True)
        code, told = verify(options, [case], min(LAST, left), serial=True)
        serial[case.name] = "hung" if code is None else "agrees" if told.agrees.get(case.name) else "differs" if code == 1 else f"ended with {code}"
    numbers = {"cases_ok": sum(agrees.values()), "cases_wrong": wrong, "cases_unknown": sorted(unknown), "cases_ended": ended,
               "alone_and_serial": serial, "cases_without_time": sum(c.name not in {*agrees, *unknown, *ended} for c in cases)}
    print(json.dumps({key: value for key, value in numbers.items() if value or key == "cases_ok"}), flush=True)
    sys.exit(5 if ended else 1 if wrong or not agrees else 0)


if __name__ == "__main__":
    main()
