#!/usr/bin/env python3
"""scripts/check-shape on made-up trees: each thing that it counts, planted once, changes its number and no other's."""
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/check-shape"
BODY = "// a line that says something\n" * 60
LIMITS = """percent_under_40_lines = { limit = 0 }
median_module = { limit = 100, at_least = true }
headers_with_one_includer = { limit = 0 }
header_lines_with_a_whole_recipe = { limit = 0 }
longest_file = { limit = 900 }
functions_over_120_lines = { limit = 0 }
classes_over_several_sources = { limit = 0 }
classes_over_25_fields = { limit = 0 }
"""
HEADER = '#pragma once\n#include "tessera/base/a.h"\n' + BODY


class Shape(unittest.TestCase):
    def setUp(self):
        self.root = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        for folder in ("scripts", "docs", "src/tessera/base", "apps"):
            (self.root / folder).mkdir(parents=True)
        shutil.copy(SCRIPT, self.root / "scripts/check-shape")
        (self.root / "docs/rooms.md").write_text("| 0 | `base` | no | all |\n")
        (self.root / "scripts/shape.toml").write_text(LIMITS)
        # a.h has two includers beside its own source; b.h and c.h are included by two modules each
        self.write("a.h", "#pragma once\n" + BODY)
        self.write("a.cpp", '#include "tessera/base/a.h"\n' + BODY)
        for one, other in (("b", "c"), ("c", "b")):
            self.write(f"{one}.h", HEADER)
            self.write(f"{one}.cpp", f'#include "tessera/base/{one}.h"\n#include "tessera/base/{other}.h"\n' + BODY)
        (self.root / "apps/main.cpp").write_text('#include "tessera/base/b.h"\n#include "tessera/base/c.h"\n' + 2 * BODY)

    def write(self, name, text):
        (self.root / "src/tessera/base" / name).write_text(text)

    def run_script(self, *arguments):
        return subprocess.run([sys.executable, self.root / "scripts/check-shape", *arguments], capture_output=True, text=True)

    def refused(self, name):
        """Asserts that exactly this row is beyond its limit."""
        result = self.run_script()
        self.assertEqual(result.returncode, 1, result.stdout)
        named = [line.split()[1] for line in result.stderr.splitlines()]
        self.assertEqual(named, [name], result.stdout)

    def test_a_tree_within_its_limits_passes(self):
        result = self.run_script()
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_a_splinter_is_refused(self):
        self.write("b.cpp", '#include "tessera/base/b.h"\n#include "tessera/base/c.h"\n' + BODY[:30 * 20])
        self.refused("percent_under_40_lines")

    def test_small_modules_are_refused(self):
        for name in ("d", "e", "f", "g", "h"):
            self.write(f"{name}.cpp", BODY)
        self.refused("median_module")

    def test_a_header_of_one_includer_is_refused(self):
        self.write("d.h", "#pragma once\n" + BODY)
        self.write("d.cpp", '#include "tessera/base/d.h"\n' + BODY)
        self.write("b.cpp", '#include "tessera/base/b.h"\n#include "tessera/base/d.h"\n#include "tessera/base/c.h"\n' + BODY)
        self.refused("headers_with_one_includer")

    def test_a_whole_recipe_in_a_header_is_refused_and_one_in_a_comment_is_not(self):
        self.write("b.h", HEADER + "// takes a Recipe& recipe)\n")
        self.assertEqual(self.run_script().returncode, 0)
        self.write("b.h", HEADER + "void plan(const recipe::Recipe& recipe);\n")
        self.refused("header_lines_with_a_whole_recipe")

    def test_a_long_file_and_a_long_function_are_refused(self):
        self.write("b.cpp", '#include "tessera/base/b.h"\n#include "tessera/base/c.h"\n' + 16 * BODY)
        self.refused("longest_file")
        self.write("b.cpp", '#include "tessera/base/b.h"\n#include "tessera/base/c.h"\nvoid f() {\n' + "  g();\n" * 120 + "}\n")
        self.refused("functions_over_120_lines")

    def test_a_class_cut_over_two_sources_is_refused_and_the_twin_of_an_optional_part_is_not(self):
        method = "namespace tessera::base {\nvoid Store::load() {\n}\n}\n"
        for name in ("b", "c"):
            path = self.root / f"src/tessera/base/{name}.cpp"
            path.write_text(path.read_text() + method)
        self.refused("classes_over_several_sources")
        (self.root / "src/tessera/base/c.cpp").rename(self.root / "src/tessera/base/no_b.cpp")
        self.write("c.cpp", '#include "tessera/base/c.h"\n#include "tessera/base/b.h"\n' + BODY)
        self.assertNotIn("classes_over_several_sources", self.run_script().stderr)

    def test_a_class_of_many_fields_is_refused_and_its_functions_do_not_count(self):
        methods = "".join(f"  int get_{i}() const {{ return field_{i}_; }}\n" for i in range(30))
        fields = "".join(f"  int field_{i}_ = 0;\n" for i in range(25))
        self.write("b.h", HEADER + f"class Run {{\n{methods}{fields}}};\n")
        self.assertEqual(self.run_script().returncode, 0)
        self.write("b.h", HEADER + f"class Run {{\n{methods}{fields}  std::map<int, int> one_, more_;\n}};\n")
        self.refused("classes_over_25_fields")

    def test_tighten_takes_better_numbers_and_keeps_the_others(self):
        (self.root / "scripts/shape.toml").write_text(LIMITS.replace("limit = 900", "limit = 500").replace("limit = 100", "limit = 110"))
        self.write("d.h", "#pragma once\n" + BODY)
        self.write("d.cpp", '#include "tessera/base/d.h"\n#include "tessera/base/c.h"\n' + BODY)
        self.run_script("--tighten")
        text = (self.root / "scripts/shape.toml").read_text()
        self.assertIn("longest_file = { limit = 122 }", text)
        self.assertIn("median_module = { limit = 123, at_least = true }", text)
        self.assertIn("headers_with_one_includer = { limit = 0 }", text)


if __name__ == "__main__":
    unittest.main()
