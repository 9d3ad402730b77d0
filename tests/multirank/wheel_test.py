#!/usr/bin/env python3
"""What `make wheel` makes: pip installs it into a fresh venv without a network, and it plans and trains in a root that has
the C library, libstdc++ and Python, and no Debian package besides.

    wheel_test.py BUILD TORCH     # the build folder, and the torch package that it was built with
"""
import base64
import csv
import hashlib
import importlib.machinery
import importlib.util
import io
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import unittest
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/compare"))
import data_set  # noqa: E402

loader = importlib.machinery.SourceFileLoader("wheel", str(ROOT / "scripts/wheel"))
wheel = importlib.util.module_from_spec(importlib.util.spec_from_loader("wheel", loader))
loader.exec_module(wheel)

BUILD = TORCH = None  # from the command line
# Where a new mount namespace may be made: root asks for it alone, others for a user namespace with it.
UNSHARE = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]


def run(command, environment=None, **options):
    return subprocess.run([str(word) for word in command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=600, **options)


def resolved(program, environment=None):
    """{soname: file} as the loader finds them, "" where it finds none."""
    text = run(["ldd", program], environment).stdout
    return {soname: Path(file) if file.startswith("/") else ""
            for soname, file in re.findall(r"^\s*(\S+) => (not found|\S+)", text, re.MULTILINE)}


class Wheel(unittest.TestCase):
    """One wheel, installed once: test_1 sees it without LibTorch, the others with it."""

    @classmethod
    def setUpClass(cls):
        cls.held = tempfile.TemporaryDirectory(prefix="tessera-wheel-")
        cls.addClassCleanup(cls.held.cleanup)
        cls.folder = Path(cls.held.name).resolve()
        made = run([ROOT / "scripts/wheel", "--no-build", "--dir", BUILD, "--out", cls.folder])
        assert made.returncode == 0, made.stdout
        cls.wheel = next(cls.folder.glob("*.whl"))
        cls.venv = cls.folder / "venv"
        made = run([sys.executable, "-m", "venv", cls.venv])
        assert made.returncode == 0, made.stdout
        made = run([cls.venv / "bin/pip", "install", "--disable-pip-version-check", "--no-deps", "--no-index", cls.wheel])
        assert made.returncode == 0, made.stdout
        cls.site = next(cls.venv.glob("lib/python3*/site-packages"))
        cls.plain = {"PATH": f"{cls.venv}/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/nonexistent", "OMP_NUM_THREADS": "1"}

    def give_torch(self, package=None):
        """A torch package beside tessera's, by links."""
        for name in ("torch", "nvidia"):
            (self.site / name).unlink(missing_ok=True)
            if ((package or TORCH).parent / name).exists():
                (self.site / name).symlink_to((package or TORCH).parent / name)

    def test_0_no_entry_of_its_files_is_one_that_a_stranger_can_fill(self):
        checked = run([ROOT / "scripts/check-rpaths", self.wheel])
        self.assertEqual(checked.returncode, 0, checked.stdout)

    def test_1_without_torch_or_with_another_it_says_what_to_install(self):
        result = run(["tessera", "--version"], self.plain)
        self.assertEqual(result.returncode, 2, result.stdout)
        self.assertIn("pip install torch==2.11.0", result.stdout)
        other = self.folder / "other/torch"
        (other / "lib").mkdir(parents=True)
        (other / "lib/libtorch_cpu.so").write_text("none")
        (other / "version.py").write_text("__version__ = '2.4.1+cpu'\n")
        self.give_torch(other)
        result = run(["tessera", "--version"], self.plain)
        self.assertEqual(result.returncode, 2, result.stdout)
        self.assertIn("is torch 2.4.1+cpu, this program needs 2.11.0", result.stdout)

    def test_2_metadata_record_and_licences_are_whole(self):
        with zipfile.ZipFile(self.wheel) as archive:
            files = {entry.filename: archive.read(entry) for entry in archive.infolist()}
            self.assertEqual({entry.date_time for entry in archive.infolist()}, {(1980, 1, 1, 0, 0, 0)})
        info = next(name for name in files if name.endswith("/METADATA")).removesuffix("METADATA")
        metadata = files[info + "METADATA"].decode()
        self.assertIn("\nName: tessera-dit\n", metadata)
        self.assertEqual({name.split("/")[0] for name in files}, {"tessera_dit", info.rstrip("/")}, "nothing of PyPI's tessera")
        self.assertIn("\nRequires-Dist: torch==2.11.0\n", metadata)
        self.assertRegex(metadata, "FFmpeg[^.]*is under the GPL version [23] or later")
        self.assertNotRegex(metadata, "@[A-Z_]+@")
        self.assertIn(f"Tag: {self.wheel.stem.split('-', 2)[2]}\n", files[info + "WHEEL"].decode())
        rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(files[info + "RECORD"].decode()))}
        self.assertEqual(set(rows), set(files))
        for name, data in files.items():
            if name != info + "RECORD":
                hashed = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
                self.assertEqual(rows[name], ["sha256=" + hashed, str(len(data))], name)
        table = dict(line.split()[:2] for line in files[info + "licenses/LIBRARIES"].decode().splitlines()[1:])
        self.assertEqual({f"tessera_dit/lib/{soname}" for soname in table}, {n for n in files if n.startswith("tessera_dit/lib/")})
        for package in [*table.values(), "nlohmann-json3-dev"]:
            self.assertIn(f"{info}licenses/{package}/copyright", files)
        self.assertIn(info + "licenses/common-licenses/GPL-2", files)
        for name in ("LICENSE", "NOTICE"):
            self.assertEqual(files[f"{info}licenses/{name}"], (ROOT / name).read_bytes())
        self.assertEqual("tessera_dit/bin/libtessera_cuda.so" in files, (BUILD / "bin/libtessera_cuda.so").exists())

    def test_3_every_library_is_the_wheels_or_of_any_system(self):
        self.give_torch()
        libraries = resolved(self.site / "tessera_dit/bin/tessera", self.plain)
        self.assertIn("libavcodec.so", {soname[:13] for soname in libraries})
        for soname, file in libraries.items():
            if not wheel.SYSTEM.match(soname):
                self.assertTrue(str(file).startswith(str(self.site)), f"{soname}: {file or 'not found'}")
        for file in (self.site / "tessera_dit/bin").iterdir():
            places = re.search(r"\(R(?:UN)?PATH\).*\[(.*)\]", run(["readelf", "-d", file]).stdout)
            for place in places[1].split(":") if places else []:
                self.assertTrue(place.startswith("$ORIGIN/"), f"{file} looks in {place}, a folder of the machine it was built on")
        glibc = tuple(map(int, re.search(r"manylinux_(\d+)_(\d+)_", self.wheel.name).groups()))
        self.assertLessEqual(wheel.newest_symbol([*(self.site / "tessera_dit/lib").iterdir()], "GLIBC"), glibc)

    def make_clips(self, folder):
        folder.mkdir(parents=True)
        data_set.write_avi(folder / "clip.avi", [data_set.picture(0, frame, 64, 96) for frame in range(16)], 64, 96)
        (folder / "clip.txt").write_text("a square that moves to the right")
        return folder

    def bare(self, *commands):
        """Runs commands in a root of bind mounts; each is a list of words. Those of before must have ended with 0."""
        root = self.folder / "root"
        given = resolved(BUILD / "bin/tessera")
        files = {file for soname, file in given.items() if wheel.SYSTEM.match(soname) and file}
        files |= {file for file in resolved(sys.executable).values() if file}  # Python's own
        files.add(Path("/lib64/ld-linux-x86-64.so.2"))
        python = self.venv / "bin/python"
        while python.is_symlink():  # from link to link to the program
            python = Path(os.path.normpath(python.parent / os.readlink(python)))
            files |= set() if python.is_relative_to(self.venv) else {python}
        folders = {Path("/proc"), Path("/dev"), self.folder / "work", self.venv, Path(sysconfig.get_path("stdlib")),
                   Path(sysconfig.get_path("platstdlib"))}
        script = ["set -e", f"mkdir -p '{root}' '{self.folder}/work'", f"mount -t tmpfs none '{root}'", f"mkdir '{root}/tmp'"]
        for name in ("torch", "nvidia"):  # mounts: links would lead out of the root
            if (self.site / name).is_symlink():
                (self.site / name).unlink()
            (self.site / name).mkdir(exist_ok=True)
            script.append(f"mount --rbind '{TORCH.parent / name}' '{self.site / name}'")
        for place in sorted(files | folders):
            to = f"{root}{place}"
            script += [f"mkdir -p '{os.path.dirname(to)}'", f"touch '{to}'" if place in files else f"mkdir -p '{to}'",
                       f"mount --rbind '{place}' '{to}'"]
        script += ["chroot '%s' %s" % (root, " ".join(f"'{word}'" for word in command)) for command in commands]
        return run([*UNSHARE, "sh", "-c", "\n".join(script)], self.plain)

    def test_4_it_plans_and_trains_in_a_bare_root(self):
        if (may := run([*UNSHARE, "sh", "-c", "mount -t tmpfs none /mnt"])).returncode:
            self.skipTest("no mount namespace may be made here: " + may.stdout)
        clips, out = self.make_clips(self.folder / "work/clips"), self.folder / "work/run"
        program = self.venv / "bin/tessera"
        result = self.bare([BUILD / "bin/tessera", "--version"])
        self.assertNotEqual(result.returncode, 0, "the root is not bare: it has all that the built program needs")
        keys = ["--data.path", clips, "--data.cache", self.folder / "work/cache", "--run.out", out, "--run.steps", 2,
                "--train.global_batch", 2, "--sample.every", 2, "--sample.steps", 2]
        result = self.bare([program, "--version"], [program, "plan", "wan-tiny_demo_cpu", "--mesh", "dp_shard=2"],
                           [program, "launch", "-n", 2, "train", "recipes/wan-tiny_demo_cpu.toml", *keys])
        self.assertEqual(result.returncode, 0, result.stdout)
        for words in ("tessera 0.", "LibTorch 2.11.0", "chosen", "step 2/2"):
            self.assertIn(words, result.stdout)
        self.assertTrue((out / "report.html").exists())
        self.assertTrue(list(out.glob("samples/*.mp4")), result.stdout)
        self.assertTrue(list(out.glob("checkpoints/step-*/manifest.json")))

    def test_5_the_demo_works_in_the_current_folder(self):
        if (self.site / "torch").is_dir() and not (self.site / "torch").is_symlink():  # where test 4 mounted it
            for name in ("torch", "nvidia"):
                (self.site / name).rmdir()
        self.give_torch()
        clips = self.make_clips(self.folder / "demo/clips")
        recipe = self.folder / "demo/recipes/wan-tiny_demo_cpu.toml"  # comes before the one that came with the program
        recipe.parent.mkdir()
        carried = (self.site / "tessera_dit/recipes" / recipe.name).read_text()
        recipe.write_text(carried.replace("steps = 500", "steps = 2").replace("every = 250", "every = 2"))
        helped = run(["tessera-demo", "--help"], self.plain, cwd=self.folder / "demo")
        self.assertEqual(helped.returncode, 0, helped.stdout)
        self.assertIn("CLIP=", helped.stdout)
        self.assertFalse((self.folder / "demo/runs").exists(), "help does nothing")
        refused = run(["tessera-demo", "--hlep"], self.plain, cwd=self.folder / "demo")
        self.assertEqual(refused.returncode, 2, refused.stdout)
        self.assertIn("--hlep", refused.stdout)
        result = run(["tessera-demo"], {**self.plain, "CLIP": str(clips / "clip.avi")}, cwd=self.folder / "demo")
        self.assertIn("The demo is done", result.stdout)
        self.assertTrue((self.folder / "demo/runs/demo/sample-8x.gif").exists())
        self.assertIn("demo: the sample reached", result.stdout, "two steps teach nothing, and it says so")
        self.assertTrue((self.folder / "demo/runs/demo/run/report.html").exists())


if __name__ == "__main__":
    BUILD, TORCH = (Path(path).resolve() for path in sys.argv[1:3])
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
