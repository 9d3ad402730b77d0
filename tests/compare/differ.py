"""What differs between what two programs have written: all files of two folders, key by key and tensor by tensor.

    for difference in Folders(a, b).differences(): print(difference)

Files are compared whole, as what they mean: JSON and TOML parsed, tensors by their bytes. The tables below are the only
exceptions, and each says why.
"""
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import zip_longest
from pathlib import Path

from forms import Safetensors, element, first_element, first_other, read_events, read_json, read_toml

# Files that are not compared.
SKIPPED = [
    ("logs/*", "what the program prints is for people"),
    ("data/*", "both read the same"),
    ("nvme/*", "places for what rests on disk, empty behind a run"),
    ("*.mp4", "an encoder of video may write the same pictures in other bytes; the event file has them too"),
    ("*/plan.txt", "for people; plan.json has its numbers"),
    ("*.html", "for people, and with times"),
    ("*/trace.json", "times of schedule.jsonl, drawn"),
    ("*/.lock", "who is at work in the folder"),
]
# Keys of JSON that are not compared, by the name of the file: what was measured by the clock.
TIMES = {
    "metrics.jsonl": {"seconds", "busy", "utilisation", "exposed", "mfu", "sample_seconds", "moved_seconds", "moved_waited"},
    "schedule.jsonl": {"t0", "t1"},
    "executed.jsonl": {"t0", "t1"},
}
START = {"text", "seconds", "phases"}  # of the line of metrics.jsonl that says how long a run took to begin
PLACES = {"started_in"}                # the folder that a run was started in is each program's own
# Where updates come in the backward, a two-level gather of updated pieces may be sent before or after the step is
# counted: its bytes are booked on this step or on the next. What is sent stands in schedule.jsonl as well.
LATE_BYTES = "sent_bytes.dp_replicate"
# Tags of TensorBoard's files, likewise.
TIMED_TAGS = ["*: train/seconds", "*: train/tokens_per_second", "*: train/mfu", "*: busy/*", "*: utilisation/*", "*: exposed/*"]
# Keys of safetensors' metadata, likewise.
TIMED_METADATA = {"date", "time", "created"}
# What follows from what: the first difference that is told is of the earliest.
ORDER = ["*recipe*.toml", "*plan*.toml", "*.toml", "*plan*.json", "cache/*", "*planned.jsonl", "*metrics.jsonl",
         "*schedule.jsonl", "*executed.jsonl", "*checkpoints/*.safetensors", "*checkpoints/*", "*model/*"]

ABSENT = "(not there)"
SHOWN = 100  # characters of a value


@dataclass
class Difference:
    file: str
    key: str
    baseline: str
    new: str

    def name(self) -> str:
        return f"{self.file}:{self.key}"

    def __str__(self) -> str:
        return f"{self.file}: {self.key}: {shown(self.baseline)} became {shown(self.new)}"


def shown(value) -> str:
    if isinstance(value, (bytes, memoryview)):
        return f"{len(value)} bytes"
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def walk(a, b, key: str, left_out=frozenset()):
    """(key, one, other) of every leaf of two parsed files that differs."""
    if isinstance(a, dict) and isinstance(b, dict):
        for name in list(a) + [name for name in b if name not in a]:
            if name not in left_out:
                inner = f"{key}.{name}" if key else str(name)
                yield from walk(a.get(name, ABSENT), b.get(name, ABSENT), inner, left_out)
    elif isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            yield f"{key}.length", len(a), len(b)
        for i, (one, other) in enumerate(zip(a, b)):
            yield from walk(one, other, f"{key}[{i}]", left_out)
    elif type(a) is not type(b) or a != b:
        yield key, a, b


class Folders:
    """Two folders; counts what it has held against each other."""

    def __init__(self, baseline: Path, new: Path):
        self.sides = (baseline, new)
        self.files = self.tensors = 0

    def differences(self):
        names = [self._names(side) for side in self.sides]
        for name in sorted(set(names[0]) | set(names[1]), key=_order):
            paths = [found.get(name) for found in names]
            if None in paths:
                there = [ABSENT if path is None else f"{path.stat().st_size} bytes" for path in paths]
                yield Difference(name, "(file)", *there)
                continue
            self.files += 1
            try:
                for key, a, b in self._file(Path(name).name, *paths):
                    yield Difference(name, key, shown(a), shown(b))
            except (ValueError, KeyError, IndexError) as error:
                yield Difference(name, "(unreadable)", str(error), "")

    @staticmethod
    def _names(side: Path) -> dict:
        found, events = {}, {}
        for path in sorted(side.rglob("*")):
            name = path.relative_to(side).as_posix()
            if not path.is_file() or any(fnmatch(name, pattern) for pattern, _ in SKIPPED):
                continue
            if ".tfevents." in name:  # named by time and process: the first, the second ...
                count = events[path.parent] = events.get(path.parent, 0) + 1
                name = (path.parent.relative_to(side) / f"events-{count}").as_posix()
            found[name] = path
        return found

    def _file(self, name: str, a: Path, b: Path):
        if name.startswith("events-"):
            yield from self._events(a, b)
        elif name.endswith(".safetensors"):
            yield from self._tensors(a, b)
        elif name.endswith(".jsonl"):
            yield from self._lines(name, a, b)
        elif a.read_bytes() == b.read_bytes():
            return
        elif name.endswith(".json"):
            yield from walk(read_json(a.read_text()), read_json(b.read_text()), "")
        elif name.endswith(".toml"):
            yield from walk(read_toml(a), read_toml(b), "", PLACES)
        elif name.endswith((".md", ".txt")):
            for number, (x, y) in enumerate(zip_longest(a.open(), b.open()), 1):
                if x != y:
                    yield f"line {number}", *(ABSENT if line is None else line.strip() for line in (x, y))
        else:
            yield from _bytes("", a.read_bytes(), b.read_bytes())

    @staticmethod
    def _lines(name: str, a: Path, b: Path):
        late = name == "metrics.jsonl" and any('update = "in_backward"' in plan.read_text()
                                               for plan in a.parent.glob("plan*.toml"))
        with a.open() as one, b.open() as other:
            for number, (x, y) in enumerate(zip_longest(one, other), 1):
                if x is None or y is None:
                    yield f"line {number}", ABSENT if x is None else x.strip(), ABSENT if y is None else y.strip()
                elif x != y:
                    one_row, other_row = read_json(x), read_json(y)
                    begins = name == "metrics.jsonl" and one_row.get("type") == other_row.get("type") == "start"
                    for key, p, q in walk(one_row, other_row, "", START if begins else TIMES.get(name, frozenset())):
                        if late and key.endswith(LATE_BYTES):
                            continue
                        yield f"line {number}: {key}", p, q

    def _tensors(self, a: Path, b: Path):
        one, other = Safetensors(a), Safetensors(b)
        self.tensors += len(one.entries)
        if one.bytes == other.bytes:
            return
        yield from walk(one.metadata, other.metadata, "metadata", TIMED_METADATA)
        for name in list(one.entries) + [name for name in other.entries if name not in one.entries]:
            if name not in one.entries or name not in other.entries:
                yield f"tensor {name}", *(str(side.entries[name]["shape"]) if name in side.entries else ABSENT
                                          for side in (one, other))
                continue
            x, y = one.entries[name], other.entries[name]
            if x["dtype"] != y["dtype"] or x["shape"] != y["shape"]:
                yield f"tensor {name}", f"{x['dtype']} {x['shape']}", f"{y['dtype']} {y['shape']}"
                continue
            p, q = one.tensor(name), other.tensor(name)
            if p != q:
                at = first_element(x["dtype"], p, q)
                yield f"tensor {name}: element {at}", element(x["dtype"], p, at), element(x["dtype"], q, at)

    @staticmethod
    def _events(a: Path, b: Path):
        def kept(path: Path) -> list:
            return [(key, value) for key, value in read_events(path)
                    if not any(fnmatch(key, pattern) for pattern in TIMED_TAGS)]

        one, other = kept(a), kept(b)
        for (x, p), (y, q) in zip(one, other):
            if x != y:
                yield x, x, y
                return  # from here on nothing belongs together
            if p != q:
                yield from _bytes(x, p, q) if isinstance(p, bytes) else [(x, p, q)]
        if len(one) != len(other):
            yield "events", len(one), len(other)


def _bytes(key: str, a: bytes, b: bytes):
    at = first_other(a, b)
    yield f"{key}: byte {at}" if key else f"byte {at}", *(
        f"0x{side[at]:02x} of {len(side)} bytes" if at < len(side) else f"its end, {len(side)} bytes"
        for side in (a, b))


def _order(name: str) -> tuple:
    return next((i for i, pattern in enumerate(ORDER) if fnmatch(name, pattern)), len(ORDER)), name


class Accepted:
    """Differences that are known: lines of `run-glob key-glob reason`, where a key is FILE:KEY as it is told."""

    def __init__(self, path=None):
        self.lines = []
        for number, line in enumerate(Path(path).read_text().splitlines() if path else [], 1):
            words = line.split(None, 2)
            if not words or words[0].startswith("#"):
                continue
            if len(words) < 3:
                raise SystemExit(f"{path}: line {number}: expected run-glob key-glob reason")
            self.lines.append([*words, 0])

    def takes(self, run: str, difference: Difference) -> bool:
        # a space ends a word of the file, so those of a key are written as _; brackets stand for themselves
        key = difference.name().replace(" ", "_")
        for line in self.lines:
            if fnmatch(run, line[0]) and fnmatch(key, line[1].replace("[", "[[]")):
                line[3] += 1
                return True
        return False

    def told(self) -> list:
        return [f"  {count} x {run} {key}: {reason}" for run, key, reason, count in self.lines]
