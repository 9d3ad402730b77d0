// How the program meets the CUDA library, on machines without a GPU: the library itself opens beside empty stand-ins of
// the NVIDIA libraries, and each wrong start says what to do. Drivers and libraries with a fault are made by the build.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "tessera/comm/device_backend.h"

namespace tessera::comm {
namespace {

std::string file(const std::string& name) { return LIBRARY_FOLDER "/lib" + name + ".so"; }

constexpr char kTorch[] =
    "PyTorch built with:\n  - Build settings: CUDA_VERSION=13.0, TORCH_VERSION=2.11.0, USE_CUDA=ON\n";

std::string absence(const std::string& driver, const std::string& library, const std::string& torch = kTorch) {
  const OpenedDevice opened = open_device_backend({.driver = file(driver), .library = file(library), .torch = torch});
  EXPECT_EQ(opened.table == nullptr, !opened.absence.empty());
  return opened.absence;
}

void expect_words(const std::string& text, const std::vector<std::string>& all) {
  for (const std::string& words : all)
    EXPECT_NE(text.find(words), std::string::npos) << words << " is not in: " << text;
}

TEST(DeviceLibrary, IsTakenWhereDriverLibraryAndLibTorchFit) {
  const OpenedDevice opened =
      open_device_backend({.driver = file("driver"), .library = file("library"), .torch = kTorch});
  ASSERT_TRUE(opened.table) << opened.absence;
  EXPECT_STREQ(opened.table->name, "fake");
  EXPECT_EQ(opened.table->count(), 2);
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

TEST(DeviceLibrary, ALibraryThatTheLoaderRefusesSaysWhatItLacks) {
  expect_words(absence("driver", "library_needs_library"),
               {"cannot open shared object file", "pip install torch with its nvidia-* packages"});
  expect_words(absence("driver", "library_needs_symbol"),
               {"undefined symbol: function_of_another_library", "build again with the one in use"});
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
  const OpenedDevice opened =
      open_device_backend({.driver = file("driver"), .library = TESSERA_CUDA_LIBRARY, .torch = at::show_config()});
  EXPECT_FALSE(opened.table);
  expect_words(opened.absence, {"shows no device to this process"});

  void* library = dlopen(TESSERA_CUDA_LIBRARY, RTLD_LAZY | RTLD_LOCAL);
  ASSERT_TRUE(library) << dlerror();
  const auto get = reinterpret_cast<decltype(&tessera_cuda_register)>(dlsym(library, "tessera_cuda_register"));
  ASSERT_TRUE(get) << dlerror();
  const DeviceBackend* table = get();
  EXPECT_EQ(table->version, kDeviceBackendVersion);
  EXPECT_STREQ(table->name, "cuda");
  EXPECT_EQ(table->count(), 0);
  EXPECT_GE(table->cuda_version, 12000);
  EXPECT_TRUE(table->place && table->lane_stream && table->make_transport && table->sum_in_order);
#endif
}

}  // namespace
}  // namespace tessera::comm
