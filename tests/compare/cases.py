"""A case: a few commands in a folder of their own, run with one program and then with the other.

    command = Command("train", train(recipe, "recipe.toml"))
    case = Case("run-01", "i2v on cp=2", ["cp"], {"recipe.toml": recipe}, [command])
    side = run(case, "build/bin/tessera", folder, data)
    side.codes                                   # exit codes, to the first that is not 0

Everything is said relative to the folder, so that what is written is the same wherever it stands.
"""
import copy
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

AXES = ["pp", "dp_replicate", "dp_shard", "cp", "sp", "tp"]
TIMEOUT = 180  # seconds of a command
TIMED_OUT = 124


@dataclass
class Command:
    name: str
    words: list                                     # without the program
    output: str = ""                                # file that gets stdout, to be compared as well
    before: Callable[[Path], None] | None = None    # makes files of the folder that the command needs


@dataclass
class Case:
    name: str
    words: str                                      # what it is, one line
    tags: list = field(default_factory=list)        # what it covers
    recipes: dict = field(default_factory=dict)     # file -> tables, or the text itself
    commands: list = field(default_factory=list)
    threads: int = 1                                # of each rank
    data: bool = True                               # whether the folder has the data sets


@dataclass
class Side:
    codes: list
    seconds: float


def toml(tables: dict) -> str:
    """TOML of {table: {key: value}}; `stage` is a list of tables whose keys have their table's name."""
    text = ""
    for name, table in tables.items():
        if name == "stage":
            for stage in table:
                text += "[[stage]]\n" + "".join(f"{key} = {_value(value)}\n" for key, value in stage.items()) + "\n"
        elif table:
            text += f"[{name}]\n" + "".join(f"{key} = {_value(value)}\n" for key, value in table.items()) + "\n"
    return text


def _value(value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + " }"
    return repr(value)


def with_values(tables: dict, **changes: dict) -> dict:
    """A copy with other values: with_values(recipe, run={"steps": 4}, mesh={"cp": 2}). None takes a key out."""
    changed = copy.deepcopy(tables)
    for name, values in changes.items():
        table = changed.setdefault(name, {})
        for key, value in values.items():
            if value is None:
                table.pop(key, None)
            else:
                table[key] = value
    return changed


def ranks_of(tables: dict) -> int:
    ranks = 1
    for axis in AXES:
        ranks *= tables.get("mesh", {}).get(axis, 1)
    return ranks


def launched(tables: dict, words: list) -> list:
    ranks = ranks_of(tables)
    return words if ranks == 1 else ["launch", "-n", str(ranks), *words]


def train(tables: dict, file: str, *more: str) -> list:
    return launched(tables, ["train", file, *more])


def run(case: Case, program: str, folder: Path, data: Path) -> Side:
    """Makes the folder and runs the commands in it, until one does not end with 0."""
    folder.mkdir(parents=True)
    for inner in ("logs", "nvme"):
        (folder / inner).mkdir()
    if case.data:
        (folder / "data").symlink_to(os.path.relpath(data, folder))
    for file, tables in case.recipes.items():
        (folder / file).write_text(tables if isinstance(tables, str) else toml(tables))
    start, codes = time.monotonic(), []
    for number, command in enumerate(case.commands, 1):
        if command.before:
            command.before(folder)
        codes.append(_run(program, command, folder, f"logs/{number}-{command.name}", case.threads))
        if codes[-1] != 0:
            break
    return Side(codes, time.monotonic() - start)


def _run(program: str, command: Command, folder: Path, log: str, threads: int) -> int:
    # Freed memory is poisoned, so that reading what was never written shows.
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TESSERA_POISON": "1"}
    with (folder / (command.output or f"{log}.out")).open("wb") as out, (folder / f"{log}.err").open("wb") as err:
        process = subprocess.Popen([program, *command.words], cwd=folder, stdin=subprocess.DEVNULL, stdout=out,
                                   stderr=err, env=environment, start_new_session=True)
        try:
            code = process.wait(TIMEOUT)
        except BaseException as stop:
            os.killpg(process.pid, signal.SIGKILL)  # the group of this process, its ranks among it
            process.wait()
            if not isinstance(stop, subprocess.TimeoutExpired):
                raise
            return TIMED_OUT
    return 128 - code if code < 0 else code
