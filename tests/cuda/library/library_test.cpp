// How the program meets the CUDA library, on machines without a GPU: the library itself opens beside empty stand-ins of
// the NVIDIA libraries, and each wrong start says what to do. Drivers and libraries with a fault are made by the build.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "stand_ins.h"
#include "tessera/device/open.h"

namespace tessera::device {
namespace {

constexpr char kTorch[] =
    "PyTorch built with:\n  - Build settings: CUDA_VERSION=13.0, TORCH_VERSION=2.11.0, USE_CUDA=ON\n";

/// What the LibTorch of a test says of itself, and how often it was asked.
std::string config;
int asked = 0;
std::string show_config() { return ++asked, config; }

std::string absence(const std::string& driver, const std::string& library, const std::string& torch = kTorch) {
  config = torch;
  const Opened opened = open_library({.driver = stand_in(driver), .library = stand_in(library), .torch = show_config});
  EXPECT_EQ(opened.table == nullptr, !opened.absence.empty());
  return opened.absence;
}

void expect_words(const std::string& text, const std::vector<std::string>& all) {
  for (const std::string& words : all)
    EXPECT_NE(text.find(words), std::string::npos) << words << " is not in: " << text;
}

TEST(DeviceLibrary, IsTakenWhereDriverLibraryAndLibTorchFit) {
  config = kTorch;
  const Opened opened =
      open_library({.driver = stand_in("driver"), .library = stand_in("library"), .torch = show_config});
  ASSERT_TRUE(opened.table) << opened.absence;
  EXPECT_STREQ(opened.table->name, "fake");
  EXPECT_EQ(opened.table->count(), 2);
}

/// The driver reads its environment at cuInit, and no later.
TEST(DeviceLibrary, TheDriverStartsWithAsManyQueuesAsThereAreStreams) {
  void* driver = dlopen(stand_in("driver").c_str(), RTLD_LAZY | RTLD_LOCAL);
  ASSERT_TRUE(driver) << dlerror();
  const auto noted = [&](const char* name) {
    const char* const* word = static_cast<const char* const*>(dlsym(driver, name));
    return std::string(word && *word ? *word : "");
  };
  for (const char* name : {"CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING"}) unsetenv(name);
  absence("driver", "library");
  EXPECT_EQ(noted("connections_at_init"), "32");
  EXPECT_EQ(noted("blocking_at_init"), "");
  setenv("TESSERA_SERIAL", "1", 1);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8", 1);
  absence("driver", "library");
  EXPECT_EQ(noted("connections_at_init"), "8") << "who sets it knows why";
  EXPECT_EQ(noted("blocking_at_init"), "1");
  for (const char* name : {"TESSERA_SERIAL", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING"}) unsetenv(name);
  dlclose(driver);
}

TEST(DeviceLibrary, WithoutADriverSaysSo) {
  expect_words(absence("no_such_driver", "library"),
               {"this machine has no NVIDIA driver", "in a container, pass the GPU on"});
  expect_words(absence("library", "library"), {"is no NVIDIA driver: it has no cuInit"});
}

TEST(DeviceLibrary, ADriverThatDoesNotStartSaysWhy) {
  expect_words(absence("driver_without_device", "library"), {"sees no device", "docker run --gpus all"});
  expect_words(absence("driver_mismatch", "library"), {"library and its kernel module differ: reboot"});
  expect_words(absence("driver_unknown", "library"), {"cuInit gives 999", "does nvidia-smi work?"});
}

TEST(DeviceLibrary, ADriverThatIsTooOldIsNamedWithBothVersions) {
  expect_words(absence("driver_old", "library"),
               {"driver is too old: it knows CUDA 12.8", "needs 13.0", "install a newer driver"});
}

TEST(DeviceLibrary, ALibraryThatIsMissingOrFromAnotherBuildIsNamed) {
  expect_words(absence("driver", "no_such_library"),
               {"libno_such_library.so does not exist", "build on a machine with nvcc"});
  expect_words(absence("driver", "library_other_build"), {"is from another build: build again"});
  expect_words(absence("driver", "driver"), {"is from another build: build again"});
}

TEST(DeviceLibrary, AnotherLibTorchIsNamedWithBothVersions) {
  expect_words(absence("driver", "library_other_torch"),
               {"was built for LibTorch 2.9.1, this process has 2.11.0", "pip install torch==2.9.1, or build again"});
  expect_words(absence("driver", "library", "Build settings: TORCH_VERSION=2.11.0, USE_CUDA=OFF\n"),
               {"this LibTorch (2.11.0) is built without CUDA"});
}

/// at::show_config() asks LibTorch's CUDA hooks, and if these are not there yet, they are not there for good.
TEST(DeviceLibrary, LibTorchIsAskedOnlyOnceTheLibraryIsLoaded) {
  asked = 0;
  absence("no_such_driver", "library");
  absence("driver_without_device", "library");
  absence("driver", "no_such_library");
  absence("driver", "library_needs_symbol");
  EXPECT_EQ(asked, 0) << "there was no library";
  static const std::string path = stand_in("library_of_one_test");
  const auto loaded = [] { return dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD) != nullptr; };
  ASSERT_FALSE(loaded());
  static std::vector<bool> seen;
  const Opened opened = open_library({.driver = stand_in("driver"), .library = path, .torch = [] {
                                        seen.push_back(dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD) != nullptr);
                                        return std::string(kTorch);
                                      }});
  EXPECT_TRUE(opened.table) << opened.absence;
  EXPECT_EQ(seen, std::vector<bool>{true});
}

TEST(DeviceLibrary, ALibraryThatTheLoaderRefusesSaysWhatItLacks) {
  expect_words(absence("driver", "library_needs_library"),
               {"cannot open shared object file", "pip install torch with its nvidia-* packages"});
  expect_words(absence("driver", "library_needs_symbol"),
               {"undefined symbol: function_of_another_library", "build again with the one in use"});
}

/// cuDNN opens libnvrtc by its bare name, which Python loads with torch and nobody here (pytorch#145580).
TEST(DeviceLibrary, WhatLibrariesOpenByTheirBareNamesIsLoadedBeforeThem) {
  const char* names[] = {"libnvrtc.so.13", "libnvrtc-builtins.so.13", "libnvJitLink.so.13"};
  const auto found = [](const char* name) { return dlopen(name, RTLD_LAZY | RTLD_NOLOAD) != nullptr; };
  config = kTorch;
  const auto open_with = [](const std::string& site) {
    return open_library({.driver = stand_in("driver"),
                         .library = stand_in("library"),
                         .torch = show_config,
                         .site = LIBRARY_FOLDER + site});
  };
  for (const char* name : names)
    if (found(name)) GTEST_SKIP() << name << " is loaded already";
  EXPECT_TRUE(open_with("/no_such_site").table);
  for (const char* name : names) EXPECT_FALSE(found(name)) << name;
  EXPECT_TRUE(open_with("/site").table);
  for (const char* name : names) EXPECT_TRUE(found(name)) << name;
}

TEST(DeviceLibrary, ADriverThatHidesItsDevicesNamesTheVariable) {
  expect_words(absence("driver", "library_without_device"),
               {"shows no device to this process: see CUDA_VISIBLE_DEVICES"});
}

TEST(DeviceLibrary, OfTheBuildOpensWithoutADriverAndReportsNoDevice) {
#ifndef TESSERA_CUDA_LIBRARY
  GTEST_SKIP() << "libtessera_cuda.so is not built: there is no nvcc";
#else
  if (void* driver = dlopen("libcuda.so.1", RTLD_LAZY)) {
    dlclose(driver);
    GTEST_SKIP() << "this machine has an NVIDIA driver";
  }
  const Opened opened =
      open_library({.driver = stand_in("driver"), .library = TESSERA_CUDA_LIBRARY, .torch = at::show_config});
  EXPECT_FALSE(opened.table);
  expect_words(opened.absence, {"shows no device to this process"});

  void* library = dlopen(TESSERA_CUDA_LIBRARY, RTLD_LAZY | RTLD_LOCAL);
  ASSERT_TRUE(library) << dlerror();
  const auto get = reinterpret_cast<decltype(&tessera_cuda_register)>(dlsym(library, "tessera_cuda_register"));
  ASSERT_TRUE(get) << dlerror();
  const Backend* table = get();
  EXPECT_EQ(table->version, kBackendVersion);
  EXPECT_STREQ(table->name, "cuda");
  EXPECT_EQ(table->count(), 0);
  EXPECT_GE(table->cuda_version, 12000);
  EXPECT_EQ(table->type, at::kCUDA);
  const Backend& t = *table;
  EXPECT_TRUE(t.properties && t.place && t.wait && t.communicators && t.take && t.give && t.allocate_by && t.pin &&
              t.unpin && t.take_pinned && t.give_pinned && t.copy && t.enqueue_copy);
  EXPECT_TRUE(t.make_stream && t.free_stream && t.set_stream && t.make_event && t.free_event && t.record &&
              t.wait_for && t.await && t.has_happened && t.seconds_between && t.write_word && t.fault);
  EXPECT_TRUE(t.begin_graph && t.end_graph && t.launch && t.free_graph && t.graph_nodes);
  EXPECT_TRUE(t.narrow && t.widen && t.narrow_in_place && t.widen_in_place && t.high_half && t.round);
  EXPECT_TRUE(t.sum_in_order && t.sum_halves && t.sum_halves_rounded && t.sum_of_squares);
  EXPECT_FALSE(t.take_pinned(4096));
  EXPECT_NO_THROW(t.give_pinned(nullptr));
  EXPECT_NO_THROW(t.give(nullptr)) << "threads end with it, also where every call of CUDA fails, as here";
  EXPECT_TRUE(t.adamw && t.quantise_int8 && t.dequantise_int8 && t.quantise_fp8 && t.dequantise_fp8 && t.drop);
#endif
}

}  // namespace
}  // namespace tessera::device
