"""What a call of scripts/gpu leaves, for machines from which one folder comes back with few files; and how it is read again."""
import io
import json
import tarfile
import time
import zlib
from pathlib import Path

MOST_FILES, MOST_BYTES = 8, 16 << 20  # that come back
MOST_LOG = 1 << 20  # bytes of a log, from its end
OWN = ("lines.jsonl", "table.txt", "profile.toml", "watch.csv")  # beside results.tgz, which has them too


def lines_of(text):
    """JSON objects, one a line; what is none is left out."""
    found = []
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


class Results:
    """The folder that comes back: few files, all written again by save()."""

    def __init__(self, folder, logs):
        self.folder, self.logs = folder, logs
        self.unwritten = []  # lines that the folder would not take
        self.warned = False
        self.sizes, self.left_out = {}, set()  # of files in the archive
        self.lines, self.profile, self.watched = folder / "lines.jsonl", folder / "profile.toml", logs / "watch.csv"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            others = [f for f in folder.rglob("*") if f.is_file() and f.name not in (*OWN, "results.tgz", ".part")]
        except OSError as error:
            self.warn(f"{folder}: {error}")
            others = []
        self.before = b""  # lines of earlier calls
        try:
            self.before = self.lines.read_bytes()
        except OSError:
            pass
        self.room = MOST_FILES - len(others)  # for ours; results.tgz has all of them, so it comes first
        if self.room <= len(OWN):
            self.warn(f"{folder} has {len(others)} other files, and {MOST_FILES} come back: "
                      f"{'only results.tgz' if self.room < 2 else 'some of the results'} will lie beside them; it has all")

    def warn(self, what):
        print(f"gpu: RESULTS: {what}", flush=True)
        self.warned = True

    def write(self, name, data):
        """In one move, so that a cut leaves the one before."""
        part = self.folder / ".part"
        try:
            part.write_bytes(data)
            part.replace(self.folder / name)
        except OSError as error:
            part.unlink(missing_ok=True) if self.folder.is_dir() else None
            if not self.warned:
                self.warn(f"{self.folder / name} cannot be written ({error.strerror}): the lines of the stages follow here")
            return False
        return True

    def archive(self, files):
        """Without the largest, where there is no room for all."""
        small = {name: self.small(name, data) for name, data in files.items()}
        for name in sorted(files, key=small.get, reverse=True):
            if sum(small.values()) < MOST_BYTES * 0.95:
                break
            print(f"gpu: {name} has no room in results.tgz", flush=True) if name not in self.left_out else None
            self.left_out.add(name)
            del files[name], small[name]
        memory = io.BytesIO()
        with tarfile.open(fileobj=memory, mode="w:gz", compresslevel=6) as tar:
            for name, data in files.items():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mtime = len(data), int(time.time())
                tar.addfile(entry, io.BytesIO(data))
        return memory.getvalue()

    def small(self, name, data):
        """Its bytes in the archive, about; what has not changed is not compressed again for it."""
        mark = (len(data), zlib.crc32(data))
        if self.sizes.get(name, (None,))[0] != mark:
            self.sizes[name] = mark, len(zlib.compress(data, 1)) + 1024
        return self.sizes[name][1]

    def save(self, lines, probed, table):
        """`lines`: those of this call. Of logs their ends are kept."""
        text = self.before + "".join(json.dumps(line) + "\n" for line in lines).encode()
        own = {"lines.jsonl": text, "table.txt": table.encode()}  # in the order of OWN
        if probed.exists():
            own["profile.toml"] = probed.read_bytes()
        if self.watched.exists():
            own["watch.csv"] = self.watched.read_bytes()[-MOST_BYTES:]
        logs = {f"logs/{f.name}": f.read_bytes()[-MOST_LOG:] for f in sorted(self.logs.glob("*")) if f.is_file() and f != self.watched}
        written = self.write("results.tgz", self.archive({**own, **logs}))
        for name in list(own)[:max(0, self.room - 1)]:
            self.write(name, own[name])
        if not written and lines and lines[-1] not in self.unwritten:
            self.unwritten.append(lines[-1])
            print("gpu: LINE " + json.dumps(lines[-1]), flush=True)


def read(folder):
    """{name: bytes} of what a call left: of results.tgz, else of the files beside it."""
    archive = folder / "results.tgz"
    if archive.exists():
        with tarfile.open(archive) as tar:
            return {entry.name: tar.extractfile(entry).read() for entry in tar if entry.isfile() and ".." not in Path(entry.name).parts}
    return {name: (folder / name).read_bytes() for name in OWN if (folder / name).exists()}
