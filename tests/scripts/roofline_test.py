#!/usr/bin/env python3
"""scripts/roofline-page counts what a block must take, by formulas of its sizes, and the fused kernels take less of it.

    tests/scripts/roofline_test.py PROGRAM WORKER        the program on the simulated device; tests/multirank/family_worker
"""
import importlib.machinery
import importlib.util
import json
import subprocess
import sys
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/roofline-page"
loader = importlib.machinery.SourceFileLoader("roofline_page", str(SCRIPT))
page = importlib.util.module_from_spec(importlib.util.spec_from_loader("roofline_page", loader))
loader.exec_module(page)

FRAMES, HEIGHT, WIDTH, D, F, TEXT = 21, 60, 104, 1536, 8960, 512
TOKENS = FRAMES * HEIGHT * WIDTH // 4
LATENT = f"16,{FRAMES},{HEIGHT},{WIDTH}"
CASE = ("", {**page.WAN, "dim": D, "num_heads": 12, "ffn_dim": F}, LATENT, "")


def total(found, column, wanted=lambda key: True):
    return sum(entry[column] for key, entry in found.items() if wanted(key))


class Roofline(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.aten, cls.fused = (page.block(PROGRAM, CASE, kernels) for kernels in ("aten", "fused"))

    def test_operations_are_those_of_the_block(self):
        linears = 2 * (TOKENS * (6 * D * D + 2 * D * F) + TEXT * 2 * D * D)  # q, k, v, o, cross q and o, MLP; cross k and v
        attention = 4 * TOKENS * D * (TOKENS + TEXT)
        for found in (self.aten, self.fused):
            for direction, times, times_attention in (("forward", 1, 1), ("backward", 2, 2.5)):
                of = lambda attends: total(found, 2, lambda key: key[0] == direction and ("attention" in key[1]) == attends)
                self.assertEqual(of(False), times * linears)
                self.assertEqual(of(True), times_attention * attention)

    def test_a_norm_reads_the_residual_stream_once_and_writes_half_as_much(self):
        launches, moved, _ = self.fused["forward", "layer_norm"]
        self.assertEqual(launches, 3)
        self.assertAlmostEqual(moved / (3 * 6 * TOKENS * D), 1, delta=0.01)

    def test_fused_kernels_launch_less_and_move_less(self):
        self.assertLess(total(self.fused, 0), MOST_LAUNCHES)
        self.assertLess(2 * total(self.fused, 0), total(self.aten, 0))
        beside = [sum(entry[1] for entry in found.values() if not entry[2]) for found in (self.fused, self.aten)]
        self.assertLess(4 * beside[0], beside[1])

    def test_a_kernel_takes_the_longer_of_its_operations_and_its_bytes(self):
        rates = page.CHIPS["H200"]
        self.assertEqual(page.seconds(("forward", "mm"), (1, 0, 650e12), "H200"), 1)
        self.assertEqual(page.seconds(("forward", "mm of fp32"), (1, 0, 48e12), "H200"), 1)
        self.assertEqual(page.seconds(("backward", "_cudnn_attention"), (1, 0, rates.backward * 1e12), "H200"), 1)
        self.assertEqual(page.seconds(("forward", "mm"), (1, 8400e9, 650e12), "H200"), 2)


class CostModel(unittest.TestCase):
    """Bytes that the cost model counts of operators between products are those that their kernels declare."""

    def test_agrees_with_the_kernels_about_a_block_of_each_model(self):
        for case in page.CASES:
            name, config, latent, _ = case
            declared = page.block(PROGRAM, case, "fused")
            if name in MOST_OF_BARE:
                for chip, most in MOST_OF_BARE[name].items():
                    bare, beside = page.totals(declared, chip)
                    with self.subTest(model=name, chip=chip):
                        self.assertLessEqual(1 + beside / bare, most)
            done = subprocess.run([WORKER, "--streamed", json.dumps(config), latent], capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, done.stderr)
            counted = json.loads(done.stdout)
            all_bytes = total(declared, 1, lambda key: declared[key][2] == 0)
            for direction, suffix in (("forward", ""), ("backward", " backward")):
                for kinds, kernels in KERNELS_OF:
                    by_model = sum(counted.get(kind + suffix, 0) for kind in kinds)
                    ends = "" if direction == "forward" or kinds == ("rope",) else "_gradients"
                    names = {("gated" if kernel == "gated_sum" and ends else kernel) + ends for kernel in kernels}
                    if kinds == ("conv",):
                        names.add("depthwise")
                    by_kernel = total(declared, 1, lambda key: key[0] == direction and key[1] in names)
                    with self.subTest(model=name, direction=direction, kinds=kinds):
                        self.assertLess(abs(by_model - by_kernel), 0.08 * by_kernel + 0.002 * all_bytes, (by_model, by_kernel))


KERNELS_OF = [(("norm",), ("layer_norm",)), (("rms_norm", "rms_norm_rope"), ("rms_norm",)), (("residual",), ("gated_sum",)),
              (("gelu",), ("gelu",)), (("activation",), ("silu_glu",)), (("conv",), ("depthwise", "gated_depthwise")), (("rope",), ("rotate_rows",))]
MOST_LAUNCHES = 70
# Of a whole block to its products, attention and convolutions alone.
MOST_OF_BARE = {"Wan 14B": {"H100": 1.045, "H200": 1.035}, "Sana 1.6B": {"H100": 1.15, "H200": 1.11}}

if __name__ == "__main__":
    PROGRAM, WORKER = (Path(argument).resolve() for argument in sys.argv[1:3])
    unittest.main(argv=sys.argv[:1])
