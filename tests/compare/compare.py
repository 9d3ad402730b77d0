#!/usr/bin/env python3
"""Two builds of the program against each other: the same plans, the same training, to the bit.

    tests/compare/compare.py BASELINE_BINARY NEW_BINARY
    tests/compare/compare.py BASELINE_BINARY NEW_BINARY --only 'run-07' --keep kept     # one run, its folders stay
    tests/compare/compare.py --list                                                     # what would be run

It plans every recipe of recipes/, then trains small random models in random ways with both programs, and compares what
they have written: numbers to the last digit, tensors byte for byte. tests/README.md says the rest.
"""
import argparse
import collections
import os
import shutil
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

import data_set
import recipes
from cases import Case, run
from differ import Accepted, Difference, Folders
from draws import draw

ATTEMPTS = 16  # draws until the program takes one
SHOWN = 4      # differences of a case that --all tells
REFUSED = (2, 4)  # exit codes of a recipe, mesh or plan that cannot be


@dataclass
class Result:
    """What became of a case."""
    case: Case
    differences: list = field(default_factory=list)  # that are not accepted
    codes: list = field(default_factory=list)        # of the commands, where both programs agree
    ended: list = field(default_factory=list)        # earlier draws that did not end with 0 under either: (name, code)
    accepted: int = 0
    files: int = 0
    tensors: int = 0
    seconds: tuple = (0, 0)
    folder: Path | None = None

    def same(self) -> bool:
        return not self.differences

    def last(self) -> str:
        """The command that was run last."""
        return self.case.commands[len(self.codes) - 1].name

    def trained(self) -> bool:
        return self.codes and self.codes[-1] == 0


class Comparison:
    def __init__(self, options):
        self.options = options
        self.programs = [str(Path(program).resolve()) for program in (options.baseline, options.new)]
        self.accepted = Accepted(options.accept)
        self.lock = threading.Lock()
        self.root = Path(options.keep or tempfile.mkdtemp(prefix="tessera-compare-")).resolve()
        self.root.mkdir(parents=True, exist_ok=True)
        self.data = self.root / "data"
        shutil.rmtree(self.data, ignore_errors=True)
        data_set.make_all(self.data)

    def once(self, case: Case, attempt: int = 0) -> Result:
        folder = self.root / (case.name if attempt == 0 else f"{case.name}-draw-{attempt + 1}")
        shutil.rmtree(folder, ignore_errors=True)
        names = ("baseline", "new")
        sides = [run(case, program, folder / name, self.data) for program, name in zip(self.programs, names)]
        result = Result(case, folder=folder, seconds=tuple(side.seconds for side in sides))
        if sides[0].codes != sides[1].codes:
            last = [case.commands[len(side.codes) - 1].name for side in sides]
            told = [f"{name} ended with {side.codes[-1]}" for name, side in zip(last, sides)]
            self.take(result, Difference("exit codes", last[0], *told))
        result.codes = sides[0].codes
        if any(side.codes[-1] != 0 for side in sides):
            return result  # what is left behind depends on the moment
        folders = Folders(folder / names[0], folder / names[1])
        for difference in folders.differences():
            self.take(result, difference)
        result.files, result.tensors = folders.files, folders.tensors
        return result

    def take(self, result: Result, difference: Difference) -> None:
        with self.lock:
            if self.accepted.takes(result.case.name, difference):
                result.accepted += 1
            else:
                result.differences.append(difference)

    def drawn(self, index: int) -> Result:
        """The first draw that both programs run to the end; earlier ones have to end alike."""
        ended = []
        for attempt in range(ATTEMPTS):
            result = self.once(draw(self.options.seed, index, attempt), attempt)
            result.ended = ended
            if result.differences or result.trained():
                break
            ended.append((f"{result.folder.name} ({result.last()})", result.codes[-1]))
            self.clean(result)
        return result

    def clean(self, result: Result) -> None:
        if not self.options.keep and result.same():
            shutil.rmtree(result.folder, ignore_errors=True)

    def tell(self, result: Result) -> None:
        case, notes = result.case, []
        if result.ended:
            notes.append("drawn again behind exit codes " + ", ".join(str(code) for _, code in result.ended))
        if result.accepted:
            notes.append(f"{result.accepted} differences accepted")
        if result.same() and not result.trained():
            notes.append(f"BOTH ENDED WITH {result.codes[-1]}: {result.last()}")
        notes += [f"{result.files} files, {result.tensors} tensors",
                  " and ".join(f"{seconds:.1f} s" for seconds in result.seconds)]
        with self.lock:
            print(f"{'same     ' if result.same() else 'DIFFERENT'}  {case.name}: {case.words}; {'; '.join(notes)}")
            if not result.same():
                print(f"           first difference: {result.differences[0]}")
                for difference in result.differences[1:SHOWN] if self.options.all else []:
                    print(f"           then: {difference}")
                if len(result.differences) > 1:
                    files = len({difference.file for difference in result.differences})
                    print(f"           {len(result.differences)} differences in {files} files, in {result.folder}")
            sys.stdout.flush()

    def all(self) -> list:
        wanted = self.options.only
        jobs = [lambda case=case: self.once(case) for case in recipes.cases()
                if not wanted or fnmatch(case.name, wanted)]
        for index in range(self.options.runs):
            if not wanted or fnmatch(f"run-{index + 1:02d}", wanted):
                jobs.append(lambda index=index: self.drawn(index))

        def work(job) -> Result:
            result = job()
            self.tell(result)
            self.clean(result)
            return result

        with ThreadPoolExecutor(self.options.jobs) as pool:
            try:
                return list(pool.map(work, jobs))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise


def tell_all(results: list, accepted: Accepted, seconds: float) -> None:
    different = [result for result in results if not result.same()]
    unfinished = [result for result in results if result.same() and not result.trained()]
    ended = [draw for result in results for draw in result.ended]
    told = collections.Counter(code for _, code in ended)
    tags = collections.Counter(tag for result in results if result.trained() for tag in result.case.tags)
    print(f"\n{len(results)} cases, {len(results) - len(different)} the same, {len(different)} different; "
          f"{sum(result.files for result in results)} files, {sum(result.tensors for result in results)} tensors; "
          f"{seconds:.0f} s")
    if ended:
        print("draws that ended alike and were drawn again: " +
              ", ".join(f"{count} with {code}" for code, count in sorted(told.items())))
    faults = [f"{name}: {code}" for name, code in ended if code not in REFUSED]
    if faults:
        print("of them not refused, and worth a look: " + ", ".join(faults))
    print("trained and planned through: " + ", ".join(f"{tag} {count}" for tag, count in sorted(tags.items())))
    if unfinished:
        print("cases that ended alike, but not with 0: " +
              ", ".join(f"{result.case.name} ({result.codes[-1]})" for result in unfinished))
    if accepted.lines:
        print("accepted differences:", *accepted.told(), sep="\n")
    for result in different:
        print(f"DIFFERENT {result.case.name}: {result.differences[0]}")


def list_cases(options) -> None:
    for case in recipes.cases() + [draw(options.seed, index) for index in range(options.runs)]:
        if not options.only or fnmatch(case.name, options.only):
            print(f"{case.name}: {case.words} ({' '.join(command.name for command in case.commands)})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("baseline", nargs="?", metavar="BASELINE_BINARY", help="the program that is right")
    parser.add_argument("new", nargs="?", metavar="NEW_BINARY", help="the program that must do the same")
    parser.add_argument("--runs", type=int, default=40, help="random runs (40)")
    parser.add_argument("--seed", type=int, default=1, help="of the draws (1)")
    parser.add_argument("--only", metavar="NAME", help="cases whose name fits this pattern: run-07, 'plan-*'")
    parser.add_argument("--keep", metavar="DIR", help="put all folders there and keep them")
    parser.add_argument("--jobs", type=int, default=2, help="cases at once (2)")
    parser.add_argument("--accept", metavar="FILE",
                        help="differences that are known: lines of run-glob key-glob reason")
    parser.add_argument("--all", action="store_true", help=f"tell {SHOWN} differences of a case, not one")
    parser.add_argument("--list", action="store_true", help="tell what would be run")
    options = parser.parse_args()
    if options.list:
        list_cases(options)
        return 0
    if not options.new:
        parser.error("give two programs: BASELINE_BINARY NEW_BINARY")
    for program in (options.baseline, options.new):
        if not os.access(program, os.X_OK):
            parser.error(f"{program} is no program")
    start, comparison = time.monotonic(), Comparison(options)
    results = comparison.all()
    tell_all(results, comparison.accepted, time.monotonic() - start)
    different = any(not result.same() for result in results)
    if not options.keep:
        if different:
            print(f"folders of what differs: {comparison.root}")
        else:
            shutil.rmtree(comparison.root, ignore_errors=True)
    return 1 if different or not results else 0


if __name__ == "__main__":
    sys.exit(main())
