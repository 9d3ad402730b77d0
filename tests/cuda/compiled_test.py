#!/usr/bin/env python3
"""The kernels compiled for every chip: no warning, no spill, registers and shared memory within limits, wide accesses.

    tests/cuda/compiled_test.py NVCC FLAG...     prints the table; FLAGs are those of the build

A kernel of 256 threads with at most 64 registers has 1,024 threads on a multiprocessor, with up to 128 it has 512, two blocks; all
of these wait for memory. Of a kernel with several widths of rows the largest numbers count. A limit that a change breaks is moved here, with the reason in its commit, or the kernel is mended.
"""
import re
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHIPS = (80, 86, 89, 90, 100, 120)
LIMITS = {  # kernel: registers, bytes of shared memory
    "adamw": (96, 2048),  # two maps of 256 values
    "lion": (128, 1024),
    "schedule_free": (128, 0),  # three states and the parameter, all of which are stored
    "move_average": (64, 0),
    "prodigy": (128, 19968),  # products of 16 values a lane in a block, and two maps
    "momentum": (96, 1024),
    "step_along": (96, 0),
    "row_sums": (96, 20480),  # 32 columns of 32 rows for each of four warps
    "column_sums": (128, 2048),  # of 256 threads, two blocks: sums of eight groups of rows, for 32 columns
    "residual_rows": (96, 20480),
    "residual_columns": (128, 3072),
    "divided_squares": (96, 2048),
    "master_squares": (80, 2048),
    "move_means": (64, 0),
    "row_factors": (64, 1088),
    "adafactor": (128, 1024),
    "came": (128, 1024),
    "quantise": (40, 1024),
    "dequantise": (40, 1024),
    "quantise_int8": (40, 0),
    "dequantise_int8": (40, 0),
    "quantise_tiles": (40, 32),  # a maximum for each warp
    "find_maxima": (40, 32),
    "make_scales": (40, 0),
    "encode_tiles": (40, 0),
    "decode_tiles": (40, 0),
    "quantise_rows": (48, 32),
    "find_column_maxima": (40, 0),
    "encode_columns": (48, 2304),  # a tile that is turned
    "flat_row_scales": (40, 32),
    "flat_column_maxima": (48, 0),
    "encode_flat": (48, 0),
    "merge_runs": (40, 0),
    "turn": (40, 4352),  # a tile of 64 by 64 codes
    "sum_in_order": (40, 0),
    "sum_halves": (40, 0),
    "sum_halves_rounded": (40, 0),
    "sum_squares": (48, 2048),  # a double for each lane; sixteen values are under way
    "add_in_order": (40, 2048),  # partial sums, one for each thread
    "narrow_range": (40, 0),
    "widen_range": (40, 0),
    "narrow_overlapping": (40, 0),
    "widen_overlapping": (40, 0),
    "high_halves": (40, 0),
    "round_range": (40, 0),
    "drop_floats": (40, 0),
    "drop_halves": (40, 0),
    "layer_norm_rows": (64, 64),  # two sums for each warp
    "layer_norm_back": (128, 64),  # at 6,144 columns a thread has 72 values: x and the sums of two tables
    "rms_norm_rows": (64, 64),
    "rms_norm_back": (128, 64),
    "add_groups": (48, 0),
    "add_left": (128, 0),  # eight groups of eight columns are under way
    "gelu_lanes": (40, 0),
    "glu_lanes": (64, 0),
    "glu_back": (64, 0),
    "gelu_back": (128, 0),  # four tokens of both operands are under way
    "gated_rows": (40, 0),
    "gated_back": (128, 0),  # four tokens of both operands are under way
    "turn_neighbours": (64, 0),
    "turn_halves": (64, 0),
    "depthwise_rows": (168, 0),  # of 128 threads, three blocks: weights of nine taps of eight channels, and three rows under way
    "depthwise_back": (168, 0),
    "add_taps": (64, 0),
    "invert_entries": (40, 0),
    "sum_states": (128, 0),  # 32 values of a state
    "results_of_states": (128, 0),
    "back_of_states": (128, 0),
    "back_of_results": (128, 0),
    "spin": (16, 0),
    "write_word": (16, 0),
}
WIDE = {  # kernel: accesses of 8 or 16 bytes that it must have
    "adamw": ("ld.global.nc.v4.f32", "ld.global.nc.v4.u32", "ld.global.v4.f32", "ld.global.v4.u32", "ld.global.v4.u16",
              "st.global.wb.v4.u32", "st.global.wb.v2.u32"),
    "lion": ("ld.global.v4.f32", "ld.global.v4.u32", "ld.global.v4.u16", "st.global.wb.v4.u32", "st.global.wb.v2.u32"),
    "schedule_free": ("ld.global.v4.f32", "ld.global.v4.u32", "st.global.wb.v4.u32"),
    "move_average": ("ld.global.v4.f32", "ld.global.v4.u32", "st.global.wb.v4.u32"),
    "prodigy": ("ld.global.v4.f32", "ld.global.v4.u32", "ld.global.v4.u16", "st.global.wb.v4.u32", "st.global.wb.v2.u32"),
    "momentum": ("ld.global.v4.f32", "ld.global.v4.u32", "ld.global.v4.u16", "st.global.wb.v4.u32", "st.global.wb.v2.u32"),
    "step_along": ("ld.global.v4.f32", "ld.global.v4.u32", "st.global.wb.v4.u32"),
    "adafactor": ("ld.global.v4.f32", "ld.global.v4.u32", "ld.global.v4.u16", "st.global.wb.v4.u32", "st.global.wb.v2.u32"),
    "came": ("ld.global.v4.f32", "ld.global.v4.u32", "ld.global.v4.u16", "st.global.wb.v4.u32", "st.global.wb.v2.u32"),
    "glu_lanes": ("ld.global.v4.u32", "ld.global.v4.f32", "st.global.wb.v4.u32"),
    "glu_back": ("ld.global.v4.u32", "ld.global.v4.f32", "st.global.wb.v4.u32"),
    "gelu_lanes": ("ld.global.v4.u32", "ld.global.v4.f32", "st.global.wb.v4.u32"),
    "gelu_back": ("ld.global.v4.u32", "ld.global.v4.f32", "st.global.wb.v4.u32"),
    "quantise": ("ld.global.nc.v4.f32", "st.global.wb.v2.u32"),
    "dequantise": ("ld.global.nc.v4.u16", "st.global.wb.v4.u32"),
    "quantise_int8": ("ld.global.nc.v4.f32", "st.global.wb.v2.u32"),
    "dequantise_int8": ("ld.global.nc.v4.u16", "st.global.wb.v4.u32"),
    "sum_halves": ("ld.global.v4.u32", "ld.global.v4.f32", "st.global.wb.v4.u32"),
    "sum_halves_rounded": ("ld.global.v4.u32", "st.global.wb.v4.u32"),
    "narrow_range": ("ld.global.nc.v4.f32", "st.global.wb.v4.u32"),
    "widen_range": ("ld.global.nc.v4.u32", "st.global.wb.v4.u32"),
    "high_halves": ("ld.global.nc.v4.f32", "st.global.wb.v4.u32"),
    "round_range": ("ld.global.v4.f32", "st.global.wb.v4.u32"),
    "drop_floats": ("ld.global.v4.f32", "st.global.wb.v4.u32"),
    "drop_halves": ("ld.global.v4.u32", "st.global.wb.v4.u32"),
    "layer_norm_rows": ("ld.global.v4.u32", "ld.global.v4.f32", "st.global.wb.v4.u32"),
    "layer_norm_back": ("ld.global.v4.u32", "ld.global.v4.f32", "st.global.wb.v4.u32"),
    "rms_norm_rows": ("ld.global.v4.u32", "ld.global.v4.f32", "st.global.wb.v4.u32"),
    "rms_norm_back": ("ld.global.v4.u32", "ld.global.v4.f32", "st.global.wb.v4.u32"),
    "add_left": ("ld.global.v4.u32", "ld.global.v4.f32", "st.global.wb.v4.u32"),
    "gated_rows": ("ld.global.v4.u32", "ld.global.v4.f32", "st.global.wb.v4.u32"),
    "gated_back": ("ld.global.v4.u32", "ld.global.v4.f32", "st.global.wb.v4.u32"),
    "turn_neighbours": ("ld.global.v4.u32", "ld.global.v4.f32", "st.global.wb.v4.u32"),
    "turn_halves": ("ld.global.v4.u32", "ld.global.v4.f32", "st.global.wb.v4.u32"),
    "depthwise_rows": ("ld.global.v4.u32", "ld.global.v4.f32", "st.global.wb.v4.u32"),
    "sum_states": ("ld.global.v4.u32", "st.global.wb.v4.u32"),  # of 16-bit operands, which are those of a GPU
    "results_of_states": ("ld.global.v4.u32", "ld.global.v4.f32", "st.global.wb.v4.u32"),
    "back_of_states": ("ld.global.v4.u32", "ld.global.v4.f32", "st.global.wb.v4.u32"),
    "back_of_results": ("ld.global.v4.u32", "ld.global.v4.f32", "st.global.wb.v4.u32"),
    "depthwise_back": ("ld.global.v4.u32", "ld.global.v4.f32", "st.global.wb.v4.u32"),
}
COMPILED = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\d+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
                      r"(\d+) bytes spill loads.*?Used (\d+) registers([^\n]*)", re.S)


def kernel_of(symbol):
    """The name in a mangled symbol: its length, itself, and the end of the namespaces, or the arguments of a template."""
    return next((name for name in LIMITS if f"{len(name)}{name}E" in symbol or f"{len(name)}{name}I" in symbol), symbol)


def compile_file(source):
    """(what ptxas says of it for all chips, its PTX)"""
    with tempfile.TemporaryDirectory() as folder:
        words = [NVCC, "-std=c++17", f"-I{ROOT / 'src'}", *FLAGS, str(source)]
        chips = [f"-gencode=arch=compute_{c},code=sm_{c}" for c in CHIPS]
        done = subprocess.run([*words, *chips, "-Xptxas=-v", "-c", "-o", f"{folder}/o"], capture_output=True, text=True)
        ptx = subprocess.run([*words, f"-arch=compute_{CHIPS[0]}", "-ptx", "-o", f"{folder}/ptx"], capture_output=True, text=True)
        if done.returncode or ptx.returncode:
            raise RuntimeError(f"{source.name}: {done.stderr}{ptx.stderr}")
        return done.stdout + done.stderr, Path(folder, "ptx").read_text()


class Compiled(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        files = sorted((ROOT / "src/tessera/cuda").glob("*.cu"))
        with ThreadPoolExecutor(2) as pool:
            results = list(pool.map(compile_file, files))
        cls.used = {}  # (kernel, chip): registers, shared bytes, stack, spilled bytes
        for text, _ in results:
            for symbol, chip, stack, stores, loads, registers, rest in COMPILED.findall(text):
                shared = re.search(r"(\d+) bytes smem", rest)
                found = (int(registers), int(shared[1]) if shared else 0, int(stack), int(stores) + int(loads))
                before = cls.used.get((kernel_of(symbol), int(chip)), found)
                cls.used[kernel_of(symbol), int(chip)] = tuple(map(max, found, before))
        cls.ptx = {}
        for _, text in results:
            for symbol, body in re.findall(r"\.entry (\w+)\((.*?)\n}", text, re.S):
                cls.ptx[kernel_of(symbol)] = cls.ptx.get(kernel_of(symbol), "") + body
        print(f"{'registers':<20}" + "".join(f"{'sm_' + str(c):>8}" for c in CHIPS) + "   shared")
        for kernel in LIMITS:
            row = [cls.used.get((kernel, c), (None, None))[0] for c in CHIPS]
            print(f"{kernel:<20}" + "".join(f"{r!s:>8}" for r in row) + f"{cls.used.get((kernel, CHIPS[0]), (0, 0))[1]:>9}")

    def test_every_kernel_has_limits_and_every_limit_a_kernel(self):
        self.assertEqual({kernel for kernel, _ in self.used}, set(LIMITS))
        self.assertEqual(len(self.used), len(LIMITS) * len(CHIPS))

    def test_nothing_spills_and_registers_and_shared_memory_are_within_limits(self):
        for (kernel, chip), (registers, shared, stack, spilled) in self.used.items():
            with self.subTest(kernel=kernel, chip=chip):
                self.assertEqual((stack, spilled), (0, 0))
                self.assertLessEqual(registers, LIMITS[kernel][0])
                self.assertLessEqual(shared, LIMITS[kernel][1])

    def test_kernels_over_lanes_have_wide_accesses(self):
        for kernel, accesses in WIDE.items():
            for access in accesses:
                with self.subTest(kernel=kernel, access=access):
                    self.assertIn(access, self.ptx[kernel])

    def test_no_product_is_fused_into_a_sum(self):
        for kernel, body in self.ptx.items():
            with self.subTest(kernel=kernel):
                self.assertNotIn("fma.", body)


if __name__ == "__main__":
    NVCC, FLAGS = sys.argv[1], sys.argv[2:]
    unittest.main(argv=sys.argv[:1])
