"""What the subjects of the suite share: the program, rows of the table, and the draws of a training step."""
import glob
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "compare"))
import data_set  # clips that are written without any other program

SIDE, FRAMES, CAPTION = 32, 5, "ba ko ling tera"


class Suite:
    """Where it works, what it runs, and the rows of the table."""

    def __init__(self, binary, work, only=""):
        self.binary, self.work, self.only, self.rows = str(Path(binary).resolve()), Path(work), only, []
        self.family = ""

    def tessera(self, *arguments, code=0):
        done = subprocess.run([self.binary, *map(str, arguments)], capture_output=True, text=True, timeout=600,
                              env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=self.work)
        text = done.stdout + done.stderr
        if done.returncode != code:
            last = [line for line in text.splitlines() if line.strip()][-1:]
            raise AssertionError(f"{''.join(last)[-400:]} (code {done.returncode}, expected {code}: {' '.join(map(str, arguments))})")
        return text

    def row(self, what, against, bound, measure):
        """Measures one agreement: `measure` gives the largest error, or nothing where only success counts."""
        name = f"{self.family}: {what} ({against})"
        if self.only and self.only not in name:
            return
        start = time.monotonic()
        try:
            error = measure()
            passed, text = error is None or error <= bound, "" if error is None else f"{error:.1e}"
        except Exception as problem:  # one row that fails does not hide the others
            passed, text = False, f"{type(problem).__name__}: {str(problem)[:300]}"
        self.rows.append((self.family, what, against, text, f"{bound:.0e}" if bound else "", passed))
        print(f"{'ok  ' if passed else 'FAIL'} {name}: {text or 'done'}  ({time.monotonic() - start:.1f} s)", flush=True)

    def guarded(self, subject, family, folder):
        """A subject that cannot even begin is a row that failed."""
        try:
            subject(self, family, folder)
        except Exception as problem:
            words = f"{type(problem).__name__}: {str(problem)[:300]}"
            self.rows.append((self.family, subject.__name__, "", words, "", False))
            print(f"FAIL {self.family}: {subject.__name__}: {words}", flush=True)

    def clips(self, family):
        """One clip of raw frames, as large as the family's samples: nothing is resized or left out."""
        side, folder = SIDE * family.scale, self.work / f"clips-{SIDE * family.scale}"
        if not folder.exists():
            folder.mkdir(parents=True)
            data_set.write_avi(folder / "a.avi", [data_set.picture(0, f, side, side) for f in range(FRAMES)], side, side, 16)
            (folder / "metadata.csv").write_text(f"file_name,text\na.avi,{CAPTION}\n")
        return folder

    def recipe(self, family, folder):
        """The recipe of a pipeline of diffusers: its parts, one clip of raw frames, five steps of AdamW in fp32."""
        parts = {"path": folder / "transformer"}
        data = {"path": self.clips(family), "vae": folder / "vae", "text_encoder_path": folder / "text_encoder",
                "tokenizer": family.tokenizer, "frames": family.frames, "size": [SIDE * family.scale, SIDE * family.scale],
                "cache": self.work / f"cache-{family.name}"}
        if family.kind != "wan":
            data["text_encoder"] = "gemma-2-demo"
        if (folder / "image_encoder").exists():
            data.update(image_encoder_path=folder / "image_encoder", image_encoder="clip-demo")
        if (folder / "transformer_2").exists():
            parts["path"] = folder
        tables = {"model": parts, "data": data, "train": {"global_batch": 1, "lr": 1e-3}, "run": {"steps": 5},
                  "diffusion": {"shift": family.shift, **family.diffusion}, **family.keys}
        if (folder / "image_encoder").exists():
            tables["model.config"] = {"image_len": 5}  # of pictures of 28 x 28: no tensor and no field of diffusers tells
        text = ""
        for table, keys in tables.items():
            text += f"[{table}]\n" + "".join(
                f"{key} = {json.dumps(str(value) if isinstance(value, Path) else value)}\n" for key, value in keys.items())
        file = self.work / f"{family.name}.toml"
        file.write_text(text)
        return file


def relative(found, expected):
    """The largest difference, as a share of the largest value."""
    found, expected = torch.as_tensor(found).double(), torch.as_tensor(expected).double()
    return ((found - expected).abs().max() / expected.abs().max().clamp_min(1e-30)).item()


def steps_of(run):
    rows = [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["type"] == "step"]


def cached(cache):
    """The one sample of a cache: its latent, the rows of its text, and what its model is given beside them."""
    sample = load_file(next(iter(glob.glob(f"{cache}/*.safetensors"))))
    text = load_file(next(iter(glob.glob(f"{cache}/texts/*.safetensors"))))
    return {**{k: v.float() for k, v in sample.items()}, "context": text["context"].float()}


class Draws:
    """Philox4x32-10, keyed as src/tessera/base/random.h says: the same numbers in NumPy."""
    SAMPLE, TIMESTEP, NOISE = 6, 4, 3
    MASK = (1 << 64) - 1

    def __init__(self, seed, purpose, a=0, b=0):
        k = self.mix(seed ^ self.mix(purpose))
        h = self.mix(a ^ self.mix(b ^ self.mix(k)))
        self.key, self.high = (k & 0xFFFFFFFF, k >> 32), (h & 0xFFFFFFFF, h >> 32)

    @classmethod
    def mix(cls, x):
        x = (x + 0x9E3779B97F4A7C15) & cls.MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & cls.MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & cls.MASK
        return x ^ (x >> 31)

    def blocks(self, count):
        u, low = np.uint64, np.uint64(0xFFFFFFFF)
        index = np.arange(count, dtype=u)
        c = [index & low, index >> u(32), np.full_like(index, self.high[0]), np.full_like(index, self.high[1])]
        k0, k1 = self.key
        for _ in range(10):
            p0, p1 = u(0xD2511F53) * c[0], u(0xCD9E8D57) * c[2]
            c = [(p1 >> u(32)) ^ c[1] ^ u(k0), p1 & low, (p0 >> u(32)) ^ c[3] ^ u(k1), p0 & low]
            k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
        return c

    @staticmethod
    def unit(high, low):
        return (((high << np.uint64(32) | low) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53

    def uniform(self):
        b = self.blocks(1)
        return float(self.unit(b[0], b[1])[0])

    def normal(self, shape):
        count = int(np.prod(shape))
        b = self.blocks((count + 1) // 2)
        radius, angle = np.sqrt(-2 * np.log(self.unit(b[0], b[1]))), 2 * np.pi * self.unit(b[2], b[3])
        pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).reshape(-1)
        return torch.from_numpy(pairs[:count].astype(np.float32)).view(*shape)
