#!/usr/bin/env python3
"""scripts/demo-text: its pictures, its judge, and the whole of it with a model that has learned nothing.

    demo_text_test.py PROGRAM
"""
import importlib.machinery
import importlib.util
import itertools
import os
import random
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/demo-text"
PROGRAM = None


def load():
    loader = importlib.machinery.SourceFileLoader("demo_text", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("demo_text", loader))
    loader.exec_module(module)
    return module


sys.dont_write_bytecode = True
demo = load()


def over(*pictures):
    """The darkest of each pixel: what several pictures show, in one."""
    return [[min(pixels, key=sum) for pixels in zip(*rows)] for rows in zip(*pictures)]


class Pictures(unittest.TestCase):
    def setUp(self):
        self.draws = random.Random(11)

    def test_what_is_held_out_leaves_every_word_and_every_pair_of_words(self):
        seen = [c for c in demo.ALL if c not in demo.HELD_OUT]
        self.assertEqual(len(demo.ALL), 24)
        self.assertEqual(len(seen) + len(demo.HELD_OUT), 24)
        for i, j in itertools.combinations(range(3), 2):
            self.assertEqual({(c[i], c[j]) for c in seen}, {(c[i], c[j]) for c in demo.ALL}, "a pair is never seen")
        self.assertEqual(len({demo.caption(c) for c in demo.ALL}), 24)

    def test_the_judge_sees_what_was_drawn(self):
        for _, c in itertools.product(range(3), demo.ALL):
            self.assertEqual(demo.judge(demo.draw(c, self.draws)), c)

    def test_the_judge_sees_it_through_noise_and_soft_edges(self):
        for c in demo.ALL:
            rows = demo.draw(c, self.draws)
            noisy = [[tuple(max(0, min(255, v + self.draws.randint(-16, 16))) for v in p) for p in row] for row in rows]
            self.assertEqual(demo.judge(noisy), c)
            soft = [[tuple((a + b) // 2 for a, b in zip(row[x], row[min(x + 1, demo.SIDE - 1)]))
                     for x in range(demo.SIDE)] for row in rows]
            self.assertEqual(demo.judge(soft), c)

    def test_the_judge_refuses_what_is_no_picture_of_these(self):
        n, white = demo.SIDE, demo.BACKGROUND
        draw = lambda *c: demo.draw(c, self.draws)
        noise = [[tuple(self.draws.randint(0, 255) for _ in range(3)) for _ in range(n)] for _ in range(n)]
        two = over(draw("red", "circle", "left"), draw("red", "circle", "right"))
        colours = over(draw("red", "circle", "left"), draw("blue", "square", "right"))
        middle = draw("green", "square", "left")
        middle = [row[-11:] + row[:-11] for row in middle]
        faint = [[tuple((3 * w + v) // 4 for w, v in zip(white, p)) for p in row] for row in draw("blue", "circle", "left")]
        violet = [[(150, 40, 190) if sum(p) < 500 else white for p in row] for row in draw("red", "square", "left")]
        halves = [row if y % 4 < 2 else [white] * n for y, row in enumerate(draw("blue", "square", "right"))]
        for name, rows in {"nothing": [[white] * n] * n, "a full one": [[demo.COLOURS["red"]] * n] * n, "noise": noise,
                           "two shapes": two, "two colours": colours, "one in the middle": middle, "a faint one": faint,
                           "another colour": violet, "stripes": halves}.items():
            self.assertIsNone(demo.judge(rows), name)

    def test_png_files_are_read_with_each_filter_and_four_channels(self):
        rows = demo.draw(("yellow", "triangle", "left"), self.draws)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "a.png"
            demo.write_png(file, rows)
            self.assertEqual(demo.read_png(file), rows)
            for n, way in itertools.product((3, 4), range(5)):
                lines = [bytes(v for p in row for v in (*p, 255)[:n]) for row in rows]
                packed, above = b"", bytes(len(lines[0]))
                for line in lines:
                    def guess(i):
                        left, up = line[i - n] if i >= n else 0, above[i]
                        corner = above[i - n] if i >= n else 0
                        if way == 4:
                            p = left + up - corner
                            return min((left, up, corner), key=lambda v: abs(p - v))
                        return (0, left, up, (left + up) // 2)[way]
                    packed += bytes([way]) + bytes((line[i] - guess(i)) & 255 for i in range(len(line)))
                    above = line
                chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + b"\0\0\0\0"
                header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 2 if n == 3 else 6, 0, 0, 0)
                half = zlib.compress(packed)
                file.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", half[:50]) +
                                 chunk(b"IDAT", half[50:]) + chunk(b"IEND", b""))
                self.assertEqual(demo.read_png(file), rows, f"filter {way}, {n} channels")
            file.write_bytes(b"\x89PNG\r\n\x1a\n")
            self.assertRaises(ValueError, demo.read_png, file)

    def test_the_command_draws_and_judges(self):
        with tempfile.TemporaryDirectory() as folder:
            run = lambda *a: subprocess.run([SCRIPT, *a], capture_output=True, text=True)
            self.assertEqual(run("--draw", folder).returncode, 0)
            texts = {f.stem.rsplit("-", 1)[0]: f.read_text().strip() for f in Path(folder).glob("*.txt")}
            self.assertEqual(set(texts.values()), {demo.caption(c) for c in demo.ALL if c not in demo.HELD_OUT})
            self.assertEqual(len(list(Path(folder).glob("*.png"))), 20 * demo.PICTURES)
            said = run("--judge", f"{folder}/blue-square-left-00.png").stdout
            self.assertIn("a blue square on the left", said)


class Whole(unittest.TestCase):
    """Few steps teach nothing: the judge must say so, of samples of every combination."""

    def test_a_model_that_has_learned_nothing_is_told(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([SCRIPT, "--pictures", "1", "--samples", "1", "--out", f"{folder}/demo", "--", "--run.steps", "2",
                                   "--sample.steps", "2"], capture_output=True, text=True,
                                  env={**os.environ, "TESSERA_PROGRAM": PROGRAM}, timeout=300)
            self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
            self.assertRegex(done.stdout, r"demo-text: right in \d+ of 20 \(\d+ %\) samples of combinations that it was "
                                          r"shown, \d+ of 4 \(\d+ %\) of those that it never saw")
            self.assertIn("expected at least 95 % and 80 %", done.stderr)
            grid = demo.read_png(f"{folder}/demo/grid.png")
            self.assertEqual((len(grid), len(grid[0])), (2 * (2 * demo.SIDE + 4), 12 * (2 * demo.SIDE + 4)))
            self.assertTrue(Path(folder, "demo/run/report.html").exists())


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
