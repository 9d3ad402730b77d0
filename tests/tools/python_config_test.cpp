// Configurations in Python: what is read of them is what Python would have assigned; anything that has to be run is an
// error with its line.
#include "tessera/tools/import/config_file.h"

#include <nlohmann/json.hpp>

#include "tools/import_cases.h"

namespace tessera::tools {
namespace {

using Json = nlohmann::ordered_json;

Json read(const std::string& text) {
  const Folder folder;
  return read_python_config(folder.file("config.py", text));
}

TEST(PythonConfig, HasTheValuesThatPythonAssigns) {
  // the values on the right were printed by Python 3.11
  const std::vector<std::pair<std::string, const char*>> cases = {
      {"None", "null"},
      {"True", "true"},
      {"-3", "-3"},
      {"10_000", "10000"},
      {"0x1F + 0o17 + 0b11", "49"},
      {"5e-5", "5e-05"},
      {".5", "0.5"},
      {"7.", "7.0"},
      {"(260 + 20) * 1024 * 1024", "293601280"},
      {"25 * 1024**3", "26843545600"},
      {"-2 ** 2", "-4"},
      {"2 ** -1", "0.5"},
      {"2 ** 3 ** 2", "512"},
      {"7 / 2", "3.5"},
      {"-7 // 2", "-4"},
      {"7 // -2", "-4"},
      {"-7 % 2", "1"},
      {"7 % -2", "-1"},
      {"-7.5 // 2", "-4.0"},
      {"-7.5 % 2", "0.5"},
      {"1 + 2 * 3 - 4", "3"},
      {"[1] * 2 + [3]", "[1, 1, 3]"},
      {"2 * (1,)", "[1, 1]"},
      {"(1)", "1"},
      {"(1,)", "[1]"},
      {"()", "[]"},
      {"1, 2", "[1, 2]"},
      {"[1, [2, (3, None)],]", "[1, [2, [3, null]]]"},
      {"{'a': 1, 33: (1.0, 12), True: 'b',}", R"({"a": 1, "33": [1.0, 12], "true": "b"})"},
      {"dict(a=1, b=dict(c=[2]),)", R"({"a": 1, "b": {"c": [2]}})"},
      {"'it' \"s\"", R"("its")"},
      {"'a' + 'b'", R"("ab")"},
      {R"('tab\tquote\'end\\')", R"("tab\tquote'end\\")"},
      {R"(r'\d')", R"("\\d")"},
      {"\"\"\"two\nlines\"\"\"", R"("two\nlines")"},
      {"'a \\\nb'", R"("a b")"},
      {"[\n  1,  # one\n  2\n]", "[1, 2]"},
      {"1 + \\\n 2", "3"},
      {"depth * 2", "38"},
  };
  for (const auto& [text, value] : cases)
    EXPECT_EQ(read("depth = 19\nx = " + text + "  # a remark\n")["x"].dump(), Json::parse(value).dump()) << text;
}

TEST(PythonConfig, LaysADictOverThoseOfItsBases) {
  const Folder folder;
  folder.file(
      "base/image.py",
      "\"\"\"What all have.\"\"\"\nlr = 1e-5\n__private__ = 1\n"
      "optim = dict(cls='HybridAdam', lr=lr, betas=(0.9, 0.95))\n"
      "buckets = {'256px': {1: (1.0, 50)}, '768px': {1: (0.5, 11)}}\nae = dict(type='hunyuan_vae', tiles=True)\n");
  folder.file("base/second.py", "seed = 42\n");
  const std::string path = folder.file(
      "stage.py",
      "_base_ = ['base/image.py', 'base/second.py']\nlr = _base_.optim.lr * 5\noptim = dict(lr=lr)\n"
      "buckets = {'_delete_': True, '256px': {33: (1.0, 12)}}\nae = dict(type='dc_ae', inner=dict(_delete_=True, a=1))\n");
  EXPECT_EQ(read_python_config(path).dump(), Json::parse(R"({
      "lr": 5e-05, "optim": {"cls": "HybridAdam", "lr": 5e-05, "betas": [0.9, 0.95]},
      "buckets": {"256px": {"33": [1.0, 12]}}, "ae": {"type": "dc_ae", "tiles": true, "inner": {"a": 1}},
      "seed": 42})")
                                                 .dump());
}

TEST(PythonConfig, SaysTheLineOfWhatHasToBeRun) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"import os", "import"},
      {"x = os.environ['A']", "os"},
      {"x = open('/etc/passwd').read()", "a call of open"},
      {"x = [y for y in range(3)]", "y was not assigned"},
      {"x = z", "z was not assigned"},
      {"x = first[0]", "a part of first"},
      {"x = f'{first}'", "`f`"},
      {"x = 1 if first else 2", "end of the line"},
      {"x = lambda: 1", "lambda"},
      {"x += 1", "expected `x = VALUE`"},
      {"  x = 1", "indented"},
      {"x = 1 / 0", "division by zero"},
      {"x = 2 ** 63", "64 bits"},
      {"x = 9223372036854775807 + 1", "64 bits"},
      {"x = 1e308 * 10", "finite"},
      {"x = [0] * 99999999999", "100000 items"},
      {"x = 'a", "without its end"},
      {"x = [1,\n 2", "is not closed"},
      {"x = {**first}", "expected a value"},
      {"x = '\\x41'", "by its number"},
      {"x = 1 1", "end of the line"},
      {"x =", "a value is missing"},
      {"_base_ = 'other.py'", "after other names"},
  };
  for (const auto& [text, part] : cases) {
    try {
      read("first = [1]\n" + text + "\n");
      ADD_FAILURE() << "no error of\n" << text;
    } catch (const UserError& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find("config.py, line 2"), std::string::npos) << what;
      EXPECT_NE(what.find(part), std::string::npos) << text << "\n" << what;
    }
  }
}

TEST(PythonConfig, IsBoundedInDepthSizeAndBases) {
  EXPECT_THROW(read("x = " + std::string(200'000, '[')), UserError);
  EXPECT_THROW(read("x = " + std::string(200'000, '-') + "1"), UserError);
  std::string doubled = "a = [1]\n";
  for (int i = 0; i < 200; ++i) doubled += "a = [a, a]\n";
  EXPECT_THROW(read(doubled), UserError);
  const Folder folder;
  EXPECT_THROW(read_python_config(folder.file("own.py", "_base_ = 'own.py'\n")), UserError) << "its own base";
  EXPECT_THROW(read_python_config(folder.file("lost.py", "_base_ = 'none.py'\n")), UserError);
  EXPECT_THROW(read_python_config((folder.path / "absent.py").string()), UserError);
}

TEST(PythonConfig, TakesAFlagsTextForWhatItIs) {
  EXPECT_EQ(python_value("8"), 8);
  EXPECT_EQ(python_value("1e-5"), 1e-5);
  EXPECT_EQ(python_value("None"), nullptr);
  EXPECT_EQ(python_value("True"), true);
  EXPECT_EQ(python_value("[1, 'a']").dump(), R"([1,"a"])");
  EXPECT_EQ(python_value("clips/all.csv"), "clips/all.csv");
  EXPECT_EQ(python_value("zero2"), "zero2");
}

}  // namespace
}  // namespace tessera::tools
