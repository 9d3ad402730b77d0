#!/usr/bin/env python3
"""`tessera verify` on cases that no other program recorded: settings and sizes are drawn, results are those of plain code.

    tests/compare/golden_cases.py build/bin/tessera                       # cases of every kind
    tests/compare/golden_cases.py build/bin/tessera --seed 7 --cases 20   # twenty of each
    tests/compare/golden_cases.py build/bin/tessera --only lion,mmdit --keep /tmp/cases

The plain code is in golden_*.py, by subject; networks are written in plain.py. Beside each case stand two that are altered:
a wrong expected value must end with 1, a key that nobody knows with 3 and its name. TESSERA_MATRIX_SHARE is the share of
forty cases of each kind.
"""
import argparse
import copy
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import golden_autoencoders
import golden_encoders
import golden_formats
import golden_hunyuan
import golden_opensora
import golden_opensora_vae
import golden_optimisers
import golden_prompts
import golden_samplers
import golden_sana
import golden_tables
import golden_tiles
import golden_tokenizers
import golden_training
import golden_wan
import plain
from golden_files import Case, write

MODULES = (golden_optimisers, golden_tables, golden_samplers, golden_formats, golden_prompts, golden_encoders,
           golden_autoencoders, golden_hunyuan, golden_opensora_vae, golden_wan, golden_sana, golden_opensora, golden_training, golden_tokenizers)
KINDS = {name: make for module in MODULES for name, make in module.KINDS.items()}
UNHEARD_OF = "unheard_of"
ALL_CASES = 40  # of each kind


def verify(binary: str, *arguments) -> tuple:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([binary, "verify", *map(str, arguments)], capture_output=True, text=True, env=environment,
                          timeout=1800)
    return done.returncode, done.stdout + done.stderr


def reported(binary: str, folders: list, report: Path, *options) -> tuple:
    """All in one call: its code, what it printed, and what it reports of each case, by the name of its folder. Where a case
    ends the call, each half is called alone: 3 where one of them is unreadable."""
    report.unlink(missing_ok=True)
    code, output = verify(binary, *options, "--json", report, *folders)
    if not report.exists() and len(folders) > 1:
        half = len(folders) // 2
        first, second = (reported(binary, part, report, *options) for part in (folders[:half], folders[half:]))
        return max(first[0], second[0]), first[1] + second[1], {**first[2], **second[2]}
    of = {}
    for file in json.loads(report.read_text()) if report.exists() else []:
        of.setdefault(file["case"].split("/")[0], []).append(file)
    return code, output, of


def with_unheard_of(config: dict, draw: random.Random) -> dict:
    """A key more in the config or in one of the objects that it holds."""
    changed = copy.deepcopy(config)
    objects, places = [changed], [changed]
    while places:
        inside = [value for value in places.pop().values() if isinstance(value, dict)]
        objects += inside
        places += inside
    draw.choice(objects)[UNHEARD_OF] = 1
    return changed


def altered(case: Case, draw: random.Random) -> Case:
    """One expected value is another one."""
    changed = copy.copy(case)
    changed.expected, changed.files = copy.deepcopy(case.expected), copy.deepcopy(case.files)
    if changed.alter:
        changed.alter(changed.files, draw)
        return changed
    zero = {"grad." + name for name in case.about.get("grads_that_are_zero_in_exact_arithmetic", [])}  # any small value will do
    zero |= {name for name in changed.expected if case.loose and case.loose in name}
    name = draw.choice(sorted(name for name, tensor in changed.expected.items() if tensor.values and name not in zero))
    tensor = changed.expected[name]
    tensor.values = list(tensor.values)
    at = draw.randrange(len(tensor.values))
    before = tensor.values[at]
    if tensor.dtype.startswith(("U", "I")):
        tensor.values[at] = int(before) ^ 1
    else:
        largest = max((abs(value) for value in tensor.values if math.isfinite(value)), default=0.0)  # what is allowed goes by it
        tensor.values[at] = before + 1 + largest if math.isfinite(before) else 1.0
    return changed


def lines_of(output: str, name: str) -> str:
    """Those of a case, or all where none has its name."""
    found = [line for line in output.splitlines() if name in line]
    return "\n".join(found) or output[-3000:]


def drawn_case(kind: str, seed: str) -> tuple:
    """The case of a seed, and the draws that follow it."""
    for attempt in range(100):
        draw = random.Random(f"{seed} again {attempt}" if attempt else seed)
        plain.forget()
        try:
            return draw, KINDS[kind](draw)
        except plain.IllConditioned:
            continue
    raise RuntimeError(f"{kind}: a hundred draws of {seed} were ill-conditioned")


def draw_all(kinds: list, count: int, seed: str, root: Path) -> dict:
    """Three folders for each case: as it is, with another expected value, and with an unknown key. Name -> seconds."""
    seconds = {}
    for kind in kinds:
        begin = time.process_time()
        for i in range(count):
            name = f"{kind}-{i}"
            draw, case = drawn_case(kind, f"{seed} {kind} {i}")
            write(case, root / "plain" / name)
            write(altered(case, draw), root / "altered" / name)
            unknown = copy.copy(case)
            if case.settings:
                unknown.files = case.files | {case.settings: with_unheard_of(case.files[case.settings], draw)}
            else:
                unknown.config = with_unheard_of(case.config, draw)
            write(unknown, root / "unknown" / name)
        seconds[kind] = time.process_time() - begin
    return seconds


def check_drawn(binary: str, names: list, root: Path, mesh: str) -> dict:
    """Name -> what is wrong."""
    faults = {}

    def fault(name: str, what: str, output: str) -> None:
        faults.setdefault(name, f"{name}: {what}\n{lines_of(output, name)}")

    def folders(of: str) -> list:
        return [root / of / name for name in names]

    code, output, found = reported(binary, folders("plain"), root / "plain.json", "--mesh", mesh)
    for name in names:
        files = found.get(name, [])
        if not files or not all(file["passed"] for file in files):
            fault(name, f"does not pass on {mesh}", output)
        for file in files:
            named = {value for values in file.get("not_compared_because", {}).values() for value in values}
            rest = [value for value in file.get("not_compared", []) if value not in named]
            if rest or file.get("refused"):
                fault(name, f"not all was compared: {rest} {file.get('refused')}", output)
    if code != 0 and not faults:
        fault(names[0], f"all cases together ended with {code}", output)
    code, output, found = reported(binary, folders("altered"), root / "altered.json")
    for name in names:
        if code != 1 or all(file["passed"] for file in found.get(name, [])):
            fault(name, f"altered, passes or was not read; all together ended with {code}, not 1", output)
    code, output, found = reported(binary, folders("unknown"), root / "unknown.json")
    for name in names:
        said = any(f"/{name}/" in line and UNHEARD_OF in line for line in output.splitlines())
        refused = any(UNHEARD_OF in run for file in found.get(name, []) for run in file.get("refused", []))
        if code != 3 or not (said or refused):
            fault(name, f"with an unknown key, does not name {UNHEARD_OF}; all together ended with {code}, not 3", output)
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--seed", default=os.environ.get("TESSERA_MATRIX_SEED", "local"))
    share = float(os.environ.get("TESSERA_MATRIX_SHARE") or 0.05)
    parser.add_argument("--cases", type=int, default=max(1, round(ALL_CASES * share)), help="of each kind")
    parser.add_argument("--only", help="kinds, by comma")
    parser.add_argument("--mesh", default="dp_shard=1")
    parser.add_argument("--goldens", help="folder with recorded cases, for tiles; without it they are left out")
    parser.add_argument("--keep", help="folder that the cases stay in")
    options = parser.parse_args()
    binary = str(Path(options.binary).resolve())
    kinds = options.only.split(",") if options.only else [*KINDS, *golden_tiles.KINDS]
    drawn = [kind for kind in kinds if kind not in golden_tiles.KINDS]
    faults = []
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(options.keep or temporary)
        seconds = draw_all(drawn, options.cases, options.seed, root)
        names = [f"{kind}-{i}" for kind in drawn for i in range(options.cases)]
        found = check_drawn(binary, names, root, options.mesh) if names else {}
        for kind in drawn:
            wrong = [name for name in found if name.rpartition("-")[0] == kind]
            print(f"{kind}: {options.cases} drawn in {seconds[kind]:.1f} s, {'FAIL: ' + ', '.join(wrong) if wrong else 'ok'}")
        faults += found.values()
        for kind in [kind for kind in kinds if kind in golden_tiles.KINDS]:
            source, count = Path(options.goldens or "", kind), max(1, options.cases // 2)
            if not source.is_dir():
                print(f"{kind}: left out, there is no folder {source}")
                continue
            wrong = golden_tiles.check(kind, lambda *arguments: verify(binary, *arguments), source, root,
                                       f"{options.seed} {kind}", count)
            print(f"{kind}: {count} drawn, {'FAIL' if wrong else 'ok'}")
            faults += wrong
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"seed {options.seed}: {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
