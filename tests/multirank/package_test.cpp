// What `make install` and `make dist` make: it works from another folder, without the source tree and with a bare
// environment; a program of one's own links to the library.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

/// A bare environment: what a fresh login has.
Result run_bare(const fs::path& folder, const std::string& command, const std::string& variables = "",
                double timeout = 120) {
  return run_program({"/usr/bin/env", "-i", "PATH=/usr/bin:/bin", "HOME=/nonexistent", "/bin/sh", "-c",
                      "cd '" + folder.string() + "' && " + variables + " " + command},
                     {}, timeout);
}

void expect(const Result& r, int code, const std::vector<std::string>& words) {
  EXPECT_EQ(r.code, code) << r.output;
  for (const auto& word : words)
    EXPECT_NE(r.output.find(word), std::string::npos) << "expected '" << word << "' in:\n" << r.output;
}

class Package : public ::testing::Test {
 protected:
  Package() {
    std::string pattern = (fs::temp_directory_path() / "tessera package-XXXXXX").string();  // a space: paths are quoted
    folder_ = mkdtemp(pattern.data());
  }
  ~Package() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  static std::string source(const std::string& path) { return "'" TESSERA_SOURCE_DIR "/" + path + "'"; }
  static std::string build() { return "'" + fs::path(TESSERA_BINARY).parent_path().parent_path().string() + "'"; }
  /// The torch package of this build, as TESSERA_TORCH takes it.
  static std::string torch() { return "TESSERA_TORCH='" TESSERA_TORCH_DIR "'"; }

  fs::path folder_;
};

TEST_F(Package, TheArchiveRunsWhereverItIsUnpacked) {
  Result r = run_bare(folder_, source("scripts/dist") + " --no-build --dir " + build() + " --out '" + folder_.string() +
                                   "' && tar xzf tessera-*.tar.gz && rm tessera-*.tar.gz && mv tessera-* unpacked");
  expect(r, 0, {".tar.gz"});
  const std::string tessera = "unpacked/bin/tessera";
  expect(run_bare(folder_, tessera + " --version", torch()), 0, {"tessera ", "LibTorch "});
  // its recipes lie in share/tessera, and are known by their names
  expect(run_bare(folder_, tessera + " plan wan-tiny_demo_cpu --mesh dp_shard=2", torch()), 0, {"chosen"});
  const TinyRun tiny("package");
  r = run_bare(folder_, tessera + " launch -n 2 train '" + tiny.recipe() + "' --run.steps 2",
               torch() + " OMP_NUM_THREADS=1");
  expect(r, 0, {"step 2/2"});
  EXPECT_TRUE(fs::exists(tiny.out() + "/report.html"));
  r = run_bare(folder_, "grep -rl " + source("") + " unpacked/bin unpacked/share");
  EXPECT_EQ(r.output, "") << "names the machine it was built on";
  EXPECT_FALSE(fs::exists(folder_ / "unpacked/lib/tessera/libc.so.6"));
  expect(run_bare(folder_, source("scripts/check-rpaths") + " unpacked"), 0, {"no entry that a stranger can fill"});
}

/// A library of a stranger, which leaves a file where it is loaded.
std::string strangers_library(const fs::path& folder, const std::string& name) {
  std::ofstream(folder / "stranger.c")
      << "#include <fcntl.h>\n__attribute__((constructor)) static void act(void) { creat(\"loaded\", 0600); }\n";
  return "cc -shared -fPIC -Wl,-soname," + name + " -o " + name + " stranger.c";
}

TEST_F(Package, NoLibraryBesideADataSetRuns) {
  std::string made;
  for (const char* name : {"liburing.so.2", "libtorch_cpu.so", "libnvidia-ml.so.1"})
    made += (made.empty() ? "" : " && ") + strangers_library(folder_, name);
  expect(run_bare(folder_, made), 0, {});
  expect(run_bare(folder_, "'" TESSERA_BINARY "' --version"), 0, {"tessera "});
  expect(run_bare(folder_, "'" TESSERA_BINARY "' list presets"), 0, {});
  EXPECT_FALSE(fs::exists(folder_ / "loaded"));
  // and by the script of an installation, with the empty entry that many a profile makes
  expect(run_bare(folder_, source("scripts/install") + " --no-build --dir " + build(),
                  "PREFIX='" + (folder_ / "installed").string() + "' DESTDIR="),
         0, {});
  expect(run_bare(folder_, "installed/bin/tessera --version", "LD_LIBRARY_PATH=:/nowhere:"), 0, {"tessera "});
  EXPECT_FALSE(fs::exists(folder_ / "loaded"));
  expect(run_bare(folder_, source("scripts/check-rpaths") + " " + build() + "/bin installed"), 0, {});
}

TEST_F(Package, EntriesThatAStrangerCanFillAreNamed) {
  std::ofstream(folder_ / "main.c") << "int main(void) { return 0; }\n";
  fs::create_directories(folder_ / "open");
  fs::permissions(folder_ / "open", fs::perms::all);
  const std::string open = (folder_ / "open").string(), own = (folder_ / "own").string();
  fs::create_directories(own);
  const struct {
    std::string entries;
    int code;
    std::string words;
  } cases[] = {
      {own, 0, "no entry"},
      {"$ORIGIN/own", 0, "no entry"},
      {own + ":", 1, "is empty, so the loader looks in the current folder"},
      {":" + own, 1, "is empty"},
      {own + "::/usr/lib", 1, "is empty"},
      {"lib", 1, "entry lib: is relative"},
      {"./lib:" + own, 1, "entry ./lib: is relative"},
      {open, 1, "everybody may write to " + open},
      {open + "/deeper", 1, open},
      {"$ORIGIN/open/../open", 1, "everybody may write to"},
      {"/tmp/tessera-nobody-made-this/lib", 1, "everybody may make it"},
  };
  for (const auto& [entries, code, words] : cases)
    for (const char* tag : {"--enable-new-dtags", "--disable-new-dtags"}) {
      SCOPED_TRACE(entries + " " + tag);
      expect(run_bare(folder_, "cc -o program main.c -Wl," + std::string(tag) + " '-Wl,-rpath," + entries + "'"), 0,
             {});
      expect(run_bare(folder_, source("scripts/check-rpaths") + " program"), code, {words});
    }
  expect(run_bare(folder_, source("scripts/check-rpaths") + " own"), 1, {"no program or library"});
}

TEST_F(Package, TheArchiveSaysWhatTheMachineLacks) {
  expect(run_bare(folder_, source("scripts/dist") + " --no-build --dir " + build() + " --out '" + folder_.string() +
                               "' && tar xzf tessera-*.tar.gz && rm tessera-*.tar.gz && mv tessera-* unpacked"),
         0, {});
  const std::string tessera = "unpacked/bin/tessera --version";
  expect(run_bare(folder_, tessera), 2, {"LibTorch 2.11 not found", "pip install"});
  expect(run_bare(folder_, tessera, "TESSERA_TORCH=/nowhere"), 2, {"TESSERA_TORCH=/nowhere"});
  // a venv is found in the archive, beside it, and when it is the active one
  const fs::path venv = folder_ / "unpacked/.venv/lib/python3.11/site-packages";
  fs::create_directories(venv);
  fs::create_symlink(TESSERA_TORCH_DIR, venv / "torch");
  expect(run_bare(folder_, tessera), 0, {"LibTorch"});
  // one of another user, and one that others may change, are not
  fs::permissions(folder_ / "unpacked/.venv", fs::perms::all);
  expect(run_bare(folder_, tessera), 2, {"not found", ".venv is of another user or open to others"});
  fs::permissions(folder_ / "unpacked/.venv", fs::perms::owner_all);
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown((folder_ / "unpacked/.venv").c_str(), 65534, 65534), 0);
    expect(run_bare(folder_, tessera), 2, {"not found", ".venv is of another user or open to others"});
    expect(run_bare(folder_, tessera, "TESSERA_TORCH=unpacked/.venv"), 0, {"LibTorch"});
    ASSERT_EQ(::chown((folder_ / "unpacked/.venv").c_str(), 0, 0), 0);
  }
  fs::rename(folder_ / "unpacked/.venv", folder_ / "mine");
  expect(run_bare(folder_, tessera), 2, {"not found"});
  expect(run_bare(folder_, tessera, "VIRTUAL_ENV=mine"), 0, {"LibTorch"});
  // The folder that it is started in may be a stranger's: neither a venv there nor a module is used.
  const fs::path strangers = folder_ / "data/set";
  fs::create_directories(strangers / ".venv/lib");
  std::ofstream(strangers / ".venv/lib/libtorch_cpu.so") << "none";
  fs::create_directories(strangers / "torch/lib");
  std::ofstream(strangers / "torch/__init__.py") << "open('imported', 'w')\n";
  std::ofstream(strangers / "torch/lib/libtorch_cpu.so") << "none";
  std::ofstream(strangers / "importlib.py") << "open('imported', 'w')\n";
  fs::copy(strangers / ".venv", strangers / "venv", fs::copy_options::recursive);
  expect(run_bare(strangers, "../../" + tessera), 2, {"not found"});
  EXPECT_FALSE(fs::exists(strangers / "imported"));
  fs::rename(folder_ / "mine", folder_ / ".venv");
  expect(run_bare(strangers, "../../" + tessera), 0, {"LibTorch"});
  // another version of LibTorch, and a library that no package brought
  fs::create_directories(folder_ / "old/lib");
  std::ofstream(folder_ / "old/lib/libtorch_cpu.so") << "none";
  std::ofstream(folder_ / "old/version.py") << "__version__ = '2.4.1+cpu'\n";
  expect(run_bare(folder_, tessera, "TESSERA_TORCH=old"), 2, {"is torch 2.4.1+cpu, this program needs 2.11"});
  std::ofstream(folder_ / "unpacked/share/tessera/libraries", std::ios::app) << "libnowhere.so.1 libnowhere1\n";
  expect(run_bare(folder_, tessera), 2, {"libnowhere.so.1", "apt-get install libnowhere1"});
}

TEST_F(Package, AnInstallationHasEverythingInItsUsualPlace) {
  const fs::path stage = folder_ / "stage";
  expect(run_bare(folder_, source("scripts/install") + " --no-build --dir " + build(),
                  "PREFIX=/usr DESTDIR='" + stage.string() + "'"),
         0, {"installed in"});
  for (const char* file :
       {"bin/tessera", "libexec/tessera/tessera", "share/man/man1/tessera.1", "share/zsh/site-functions/_tessera",
        "share/bash-completion/completions/tessera", "share/fish/vendor_completions.d/tessera.fish",
        "share/tessera/recipes/wan-tiny_demo_cpu.toml", "include/tessera/engine/engine.h",
        "include/tessera/net/unit.h"}) {
    EXPECT_TRUE(fs::exists(stage / "usr" / file)) << file;
    EXPECT_TRUE(fs::exists(stage / "usr" / file) && fs::file_size(stage / "usr" / file) > 0) << file;
  }
  expect(run_bare(folder_, "stage/usr/bin/tessera --version"), 0, {"tessera "});
  const fs::path held = folder_ / "held";
  std::ofstream(held) << "a file where a folder should be";
  expect(
      run_bare(folder_, source("scripts/install") + " --no-build --dir " + build(), "PREFIX='" + held.string() + "'"),
      1, {"cannot be written", "PREFIX=DIR"});
}

TEST_F(Package, AProgramOfOnesOwnTrainsThroughTheLibrary) {
  expect(run_bare(folder_, source("scripts/install") + " --no-build --dir " + build(),
                  "PREFIX='" + (folder_ / "prefix").string() + "' DESTDIR="),
         0, {});
  fs::rename(folder_ / "prefix", folder_ / "moved");
  const std::string example = "moved/share/doc/tessera/examples/ring";
  std::ifstream lines(folder_ / example / "main.cpp");
  int count = 0;
  for (std::string line; std::getline(lines, line);) ++count;
  EXPECT_LT(count, 100);
  Result r =
      run_bare(folder_,
               "cmake -S " + example + " -B ring -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH='" +
                   (folder_ / "moved").string() + "' -DTESSERA_TORCH='" TESSERA_TORCH_DIR "' && cmake --build ring",
               "", 300);
  ASSERT_EQ(r.code, 0) << r.output;
  r = run_bare(folder_, "ring/ring", "OMP_NUM_THREADS=1");
  expect(r, 0, {"step 50  loss ", "step 300  loss "});
  const auto loss = [&](const std::string& step) {
    return std::stod(r.output.substr(r.output.find("step " + step + "  loss ") + 12 + step.size()));
  };
  EXPECT_LT(loss("300"), loss("50"));

  // two ranks under torchrun's variables: the same curve
  const std::string ranks = "MASTER_ADDR=127.0.0.1 MASTER_PORT=" + std::to_string(20000 + ::getpid() % 20000) +
                            " WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 OMP_NUM_THREADS=1";
  const Result two = run_bare(folder_, "RANK=1 LOCAL_RANK=1 ring/ring & RANK=0 LOCAL_RANK=0 ring/ring && wait $!",
                              "export " + ranks + ";");
  ASSERT_EQ(two.code, 0) << two.output;
  const auto last = [](const std::string& output) {
    const size_t at = output.find("step 300  loss ");
    return at == output.npos ? 0.0 : std::stod(output.substr(at + 15));
  };
  EXPECT_NEAR(last(two.output), last(r.output), 2e-3 * last(r.output));

  // another one by our launcher, with ZeRO-3: stopped on four ranks, it goes on on two as if it had never stopped
  const std::string spiral = "moved/share/doc/tessera/examples/spiral";
  r = run_bare(folder_,
               "cmake -S " + spiral + " -B spiral -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH='" +
                   (folder_ / "moved").string() + "' -DTESSERA_TORCH='" TESSERA_TORCH_DIR "' && cmake --build spiral",
               "", 300);
  ASSERT_EQ(r.code, 0) << r.output;
  const auto launched = [&](const std::string& ranks, const std::string& words) {
    return run_bare(folder_, "moved/bin/tessera launch -n " + ranks + " spiral/spiral " + words, "OMP_NUM_THREADS=1");
  };
  const auto loss_of = [](const Result& run, const std::string& step) {
    const size_t at = run.output.find("step " + step + "  loss ");
    return at == run.output.npos ? 0.0 : std::stod(run.output.substr(at + 12 + step.size()));
  };
  const Result straight = launched("1", "straight 80");
  expect(straight, 0, {"step 20  loss ", "step 80  loss "});
  EXPECT_LT(loss_of(straight, "80"), 0.8 * loss_of(straight, "20"));
  expect(launched("4", "stopped 40"), 0, {"step 40  loss "});
  const Result resumed = launched("2", "stopped 80");
  expect(resumed, 0, {"resumed from step 40 of dp_shard=4", "step 80  loss "});
  EXPECT_EQ(resumed.output.find("\nstep 40 "), std::string::npos) << resumed.output;
  EXPECT_NEAR(loss_of(resumed, "80"), loss_of(straight, "80"), 1e-3 * loss_of(straight, "80"));
  expect(launched("2", "one"), 3, {"expected FOLDER STEPS"});
  expect(run_bare(folder_, "moved/bin/tessera launch -n 2 ./nowhere"), 2, {"no program that may be executed"});
}

}  // namespace
}  // namespace tessera::testing
