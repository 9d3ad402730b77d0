#!/usr/bin/env python3
"""What the machine of scripts/gpu is, and what its GPU does meanwhile.

    bench/gpu_machine.py watch FILE.csv [--library libnvidia-ml.so.1]    a line ten times a second, until its parent ends

The watcher also holds the GPU: without a process that has it open, the driver starts it anew for each program, which takes
seconds. facts() reads versions from files, since importing torch may take a minute where nothing has read it yet.
"""
import argparse
import ctypes
import glob
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

LEAST_CUDNN = (9, 15, 1)  # it must be newer for attention over lengths that are no multiple of 128
COLUMNS = ("time", "used_mib", "reserved_mib", "sm_mhz", "memory_mhz", "power_w", "celsius", "busy_percent", "slowed_by")
FIRST_READ = ("libtorch_cpu", "libc10", "libtorch_cuda", "libcublas", "libcudnn", "libnccl")  # what every program opens


def version_of(torch):
    """That of a torch package, without importing it; empty if it has none."""
    file = torch / "version.py"
    found = re.search(r"__version__ = '([^'+]*)", file.read_text()) if file.exists() else None
    return found.group(1) if found else ""


def versions(torch):
    """Of the libraries beside it, by the folders that pip leaves: another program's packages may have moved them."""
    found = {}
    for folder in torch.parent.glob("nvidia_*.dist-info"):
        name, version = folder.name.removesuffix(".dist-info").removeprefix("nvidia_").rsplit("-", 1)
        found[re.sub(r"_cu\d+$", "", name)] = version
    return found


def facts(torch):
    """What stages stand on, as numbers and words."""
    of = versions(torch)
    told = {"torch": version_of(torch), "python": sys.version.split()[0], "cores": len(os.sched_getaffinity(0)),
            "numa_nodes": len(glob.glob("/sys/devices/system/node/node[0-9]*")),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "memlock_bytes": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
            **{key: of[key] for key in ("cudnn", "cublas", "nccl", "cuda_runtime") if key in of}}
    if "cudnn" in of and tuple(int(n) for n in re.findall(r"\d+", of["cudnn"])[:3]) <= LEAST_CUDNN:
        told["cudnn_too_old"] = "attention by cuDNN needs more than " + ".".join(map(str, LEAST_CUDNN))
    return told


def read_ahead(torch):
    """A process that reads the libraries into the system's memory, those first that every program opens."""
    files = [*torch.glob("lib/*.so*"), *torch.parent.glob("nvidia/*/lib/*.so*")]
    files.sort(key=lambda f: next((i for i, name in enumerate(FIRST_READ) if f.name.startswith(name)), len(FIRST_READ)))
    if not files:
        return None
    return subprocess.Popen(["cat", *map(str, files)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


class Nvml:
    """Readings of the first GPU. What the library lacks or refuses is left empty."""

    class Memory(ctypes.Structure):
        _fields_ = [("version", ctypes.c_uint), *((name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used"))]

    def __init__(self, name):
        self.library = ctypes.CDLL(name)
        if code := self.library.nvmlInit_v2():
            raise OSError(f"nvmlInit gives {code}")
        self.device = ctypes.c_void_p()
        if code := self.library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(0), ctypes.byref(self.device)):
            raise OSError(f"nvmlDeviceGetHandleByIndex gives {code}")

    def ask(self, function, out, *before):
        """The filled `out`, or None."""
        call = getattr(self.library, function, None)
        return out if call and call(self.device, *before, ctypes.byref(out)) == 0 else None

    def number(self, function, *before, kind=ctypes.c_uint):
        found = self.ask(function, kind(), *map(ctypes.c_uint, before))
        return None if found is None else found.value

    def reading(self):
        memory = self.ask("nvmlDeviceGetMemoryInfo_v2", self.Memory(version=ctypes.sizeof(self.Memory) | 2 << 24))
        power, busy = self.number("nvmlDeviceGetPowerUsage"), self.ask("nvmlDeviceGetUtilizationRates", (ctypes.c_uint * 2)())
        slowed = self.number("nvmlDeviceGetCurrentClocksThrottleReasons", kind=ctypes.c_ulonglong)
        return [memory and memory.used >> 20, memory and memory.reserved >> 20, self.number("nvmlDeviceGetClockInfo", 1),
                self.number("nvmlDeviceGetClockInfo", 2), power and round(power / 1000), self.number("nvmlDeviceGetTemperature", 0),
                busy and busy[0], None if slowed is None else hex(slowed)]


def watch(file, library):
    held = []
    for device in glob.glob("/dev/nvidia[0-9]*"):
        try:
            held.append(os.open(device, os.O_RDWR))
        except OSError as error:
            print(f"watch: {device} is not held: {error}", flush=True)
    parent, nvml = os.getppid(), Nvml(library)
    with open(file, "w") as out:
        print(*COLUMNS, sep=",", file=out)
        while os.getppid() == parent:
            print(f"{time.time():.2f}", *("" if value is None else value for value in nvml.reading()), sep=",", file=out, flush=True)
            time.sleep(0.1)


def between(file, begun, ended):
    """Of a stage, from the watcher's lines: highest memory in use, clocks, power, and what slowed the GPU."""
    rows = []
    if file.exists():
        for line in file.read_text().splitlines()[1:]:
            words = line.split(",")
            if len(words) == len(COLUMNS) and begun <= float(words[0]) <= ended:
                rows.append(dict(zip(COLUMNS, words)))
    told = {}
    for key, column, choose in (("nvml_used_gib", "used_mib", max), ("nvml_reserved_gib", "reserved_mib", max), ("sm_mhz_most", "sm_mhz", max),
                                ("watts_most", "power_w", max), ("celsius_most", "celsius", max)):
        if values := [int(row[column]) for row in rows if row[column]]:
            told[key] = round(choose(values) / 1024, 3) if key.endswith("gib") else choose(values)
    if busy := [int(row["sm_mhz"]) for row in rows if row["sm_mhz"] and int(row["busy_percent"] or 0) > 50]:
        told["sm_mhz_least_busy"] = min(busy)
    if slowed := sorted({row["slowed_by"] for row in rows} - {"", "0x0", "0x1"}):  # 1: it is idle
        told["slowed_by"] = slowed
    return told


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["watch"])
    parser.add_argument("file")
    parser.add_argument("--library", default="libnvidia-ml.so.1")
    options = parser.parse_args()
    try:
        watch(options.file, options.library)
    except (OSError, AttributeError) as error:
        sys.exit(f"watch: NVML gives no readings: {error}")
