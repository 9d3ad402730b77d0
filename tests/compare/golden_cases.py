#!/usr/bin/env python3
"""`tessera verify` on cases that no other program recorded: settings and sizes are drawn, results are those of plain code.

    tests/compare/golden_cases.py build/bin/tessera                       # a case of every kind
    tests/compare/golden_cases.py build/bin/tessera --seed 7 --cases 20   # twenty of each
    tests/compare/golden_cases.py build/bin/tessera --only lion --keep /tmp/cases

The plain code is in golden_optimisers.py and golden_tables.py, golden_tiles.py stitches tiles that the program computed one
by one. Beside each case stand two that are altered: a wrong expected value must end with 1, a key that nobody knows with 3
and its name.
"""
import argparse
import copy
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import golden_optimisers
import golden_tables
import golden_tiles
from golden_files import Case, write

KINDS = {**golden_optimisers.KINDS, **golden_tables.KINDS}
UNHEARD_OF = "unheard_of"


def verify(binary: str, *arguments) -> tuple:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([binary, "verify", *map(str, arguments)], capture_output=True, text=True, env=environment,
                          timeout=600)
    return done.returncode, done.stdout + done.stderr


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
    changed = copy.deepcopy(case)
    if not changed.expected:  # a table of sizes
        draw.choice(changed.files["sizes.json"]["own"])["bin"][0] += 16
        return changed
    name = draw.choice(sorted(changed.expected))
    values = changed.expected[name].values
    at = draw.randrange(len(values))
    values[at] = values[at] + 1 + abs(values[at])
    return changed


def check_kind(binary: str, kind: str, count: int, seed: str, root: Path, mesh: str) -> list:
    make = KINDS[kind]
    folders, faults = [], []
    for i in range(count):
        draw = random.Random(f"{seed} {kind} {i}")
        case = make(draw)
        folders.append(write(case, root / f"{kind}-{i}"))
        code, output = verify(binary, write(altered(case, draw), root / f"{kind}-{i}-altered"))
        if code != 1:
            faults.append(f"{kind}-{i}-altered: ended with {code}, not 1\n{output}")
        unknown = copy.deepcopy(case)
        unknown.config = with_unheard_of(case.config, draw)
        code, output = verify(binary, write(unknown, root / f"{kind}-{i}-unknown"))
        if code != 3 or UNHEARD_OF not in output:
            faults.append(f"{kind}-{i}-unknown: ended with {code}, not 3, or does not name {UNHEARD_OF}\n{output}")
    code, output = verify(binary, "--mesh", mesh, *folders)
    if code != 0:
        faults.append(f"{kind}: ended with {code} on {mesh}\n{output}")
    if "not compared" in output:
        faults.append(f"{kind}: not all was compared\n{output}")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--seed", default=os.environ.get("TESSERA_MATRIX_SEED", "local"))
    parser.add_argument("--cases", type=int, default=1, help="of each kind")
    parser.add_argument("--only", help="one kind")
    parser.add_argument("--mesh", default="dp_shard=1")
    parser.add_argument("--goldens", help="folder with dc_ae_tiled, for tiles; without it they are left out")
    parser.add_argument("--keep", help="folder that the cases stay in")
    options = parser.parse_args()
    binary = str(Path(options.binary).resolve())
    faults = []
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(options.keep or temporary)
        for kind in [options.only] if options.only else [*KINDS, golden_tiles.KIND]:
            if kind == golden_tiles.KIND:
                source = Path(options.goldens or "", kind)
                if not source.is_dir():
                    print(f"{kind}: left out, there is no folder {source}")
                    continue
                found = golden_tiles.check(lambda *arguments: verify(binary, *arguments), source, root,
                                           f"{options.seed} {kind}", options.cases)
            else:
                found = check_kind(binary, kind, options.cases, options.seed, root, options.mesh)
            print(f"{kind}: {options.cases} drawn, {'ok' if not found else 'FAIL'}")
            faults += found
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"seed {options.seed}: {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
