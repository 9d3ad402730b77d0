#include "tessera/device/open.h"

#include <ATen/Version.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "tessera/device/driver_watch.h"

namespace tessera::device {

namespace {

const Backend* offered = nullptr;

/// A line of at::show_config(), such as CUDA_VERSION=13.0; empty if it has none.
std::string setting(const std::string& config, const std::string& name) {
  const size_t at = config.find(name + "=");
  if (at == std::string::npos) return "";
  const size_t begin = at + name.size() + 1;
  return config.substr(begin, config.find_first_of(", \n", begin) - begin);
}

std::string cuda_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

/// What cuInit answers, of CUresult, and what then has to be done.
struct InitFault {
  int code;
  const char* text;
};
constexpr InitFault kInitFaults[] = {
    {34, "libcuda.so.1 is the toolkit's stub, not the driver: take its folder out of LD_LIBRARY_PATH"},
    {100,
     "the NVIDIA driver sees no device: is there a GPU, and is it passed on (docker run --gpus all, srun --gpus)?"},
    {101, "the NVIDIA driver finds a device invalid: CUDA_VISIBLE_DEVICES must name devices of nvidia-smi -L"},
    {802, "the NVIDIA driver waits for the NVSwitches: start nvidia-fabricmanager"},
    {803,
     "the NVIDIA driver's library and its kernel module differ: reboot, or take the compatibility library out of "
     "LD_LIBRARY_PATH"},
    {804, "this GPU cannot run with the compatibility library of CUDA: take it out of LD_LIBRARY_PATH"},
};

std::string init_fault(int code) {
  for (const InitFault& fault : kInitFaults)
    if (fault.code == code) return fault.text;
  return "the NVIDIA driver does not start (cuInit gives " + std::to_string(code) + "): does nvidia-smi work?";
}

/// What the driver reads at cuInit, and never again.
void set_environment() {
  // With fewer queues than streams, one stream waits for what another was given.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  // TESSERA_SERIAL=1 waits after each instruction, and so after each kernel: what fails is what was launched last.
  if (const char* serial = std::getenv("TESSERA_SERIAL"); serial && serial == std::string_view("1"))
    setenv("CUDA_LAUNCH_BLOCKING", "1", /*overwrite=*/0);
}

/// The driver's version, or why it cannot be used. It is asked itself, because files below /proc and /dev say nothing on
/// WSL2. The library stays loaded: it cannot be unloaded once it has threads.
struct Driver {
  int version = 0;
  std::string fault;
};

Driver start_driver(const std::string& name) {
  void* library = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (!library)
    return {0, "this machine has no NVIDIA driver (" + std::string(dlerror()) + "); in a container, pass the GPU on"};
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(library, "cuInit"));
  const auto get_version = reinterpret_cast<int (*)(int*)>(dlsym(library, "cuDriverGetVersion"));
  if (!init || !get_version) return {0, name + " is no NVIDIA driver: it has no cuInit"};
  note_taken_memory();
  if (const int code = init(0)) return {0, init_fault(code)};
  Driver driver;
  if (const int code = get_version(&driver.version)) return {0, init_fault(code)};
  return driver;
}

/// The loader's message, and what it means most often.
std::string load_fault(const std::string& message) {
  const bool missing = message.find("cannot open shared object file") != std::string::npos;
  return message + (missing ? ": a library of CUDA is missing; pip install torch with its nvidia-* packages, and run "
                              "tessera with that torch (TESSERA_TORCH)"
                            : ": the library was built for another LibTorch; build again with the one in use");
}

/// cuDNN and cuBLAS open these by their bare names when they first compile a kernel. They lie in packages of their own, where
/// the loader does not look; Python loads them with torch, and here nobody else does. A library that is there already is found
/// by its name.
void preload(const std::filesystem::path& site) {
  namespace fs = std::filesystem;
  constexpr const char* kNames[] = {"libnvJitLink.so.", "libnvrtc-builtins.so.",
                                    "libnvrtc.so."};  // each before who needs it
  std::error_code ignored;
  std::vector<fs::path> folders = {site / "torch" / "lib"};
  for (const auto& package : fs::directory_iterator(site / "nvidia", ignored))
    folders.push_back(package.path() / "lib");
  for (const char* name : kNames)
    for (const fs::path& folder : folders)
      for (const auto& file : fs::directory_iterator(folder, ignored))
        if (file.path().filename().string().starts_with(name))
          static_cast<void>(dlopen(file.path().c_str(), RTLD_LAZY | RTLD_LOCAL));
}

/// The folder above torch/lib, which has the library of this function.
std::filesystem::path site_of_torch() {
  Dl_info found;
  const auto* function = reinterpret_cast<const void*>(&at::show_config);
  if (!dladdr(function, &found) || !found.dli_fname) return {};
  std::error_code ignored;
  return std::filesystem::weakly_canonical(found.dli_fname, ignored).parent_path().parent_path().parent_path();
}

/// Why a library that was opened does not fit this program, its LibTorch or the driver; empty if it does.
std::string misfit(const Backend* table, const Places& places, const Driver& driver) {
  const std::string path = places.library.string();
  if (!table || table->version != kBackendVersion) return path + " is from another build: build again";
  // at::show_config() asks LibTorch's CUDA hooks, and what they answer is remembered: the library had to come first
  const std::string config = places.torch(), torch = setting(config, "TORCH_VERSION");
  if (torch != table->torch_version)
    return path + " was built for LibTorch " + table->torch_version + ", this process has " + torch +
           ": pip install torch==" + table->torch_version + ", or build again";
  if (setting(config, "CUDA_VERSION").empty())
    return "this LibTorch (" + torch + ") is built without CUDA: pip install the torch that has it";
  if (driver.version / 1000 < table->cuda_version / 1000)
    return "the NVIDIA driver is too old: it knows CUDA " + cuda_text(driver.version) + ", " + path + " needs " +
           cuda_text(table->cuda_version) + "; install a newer driver (nvidia-smi shows the one in use)";
  if (table->count() == 0) return "the NVIDIA driver shows no device to this process: see CUDA_VISIBLE_DEVICES";
  return "";
}

}  // namespace

void offer(const Backend& table) { offered = &table; }

const Opened& open() {
  // once, and never unloaded: streams and communicators outlive any scope
  static const Opened once = []() -> Opened {
    if (offered) return {offered, ""};
    std::error_code ignored;
    const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
    return open_library(
        {.library = program.parent_path() / "libtessera_cuda.so", .torch = at::show_config, .site = site_of_torch()});
  }();
  return once;
}

int count_in_child() {
  int ends[2];
  if (::pipe(ends) != 0) return 0;
  const pid_t child = ::fork();
  if (child == 0) {
    int count = 0;
    try {
      if (const Backend* table = open().table) count = table->count();
    } catch (...) {
    }
    const ssize_t sent = ::write(ends[1], &count, sizeof count);
    ::_exit(sent == sizeof count ? 0 : 1);
  }
  ::close(ends[1]);
  int count = 0;
  ssize_t got = 0;
  if (child > 0) {
    while ((got = ::read(ends[0], &count, sizeof count)) < 0 && errno == EINTR) {
    }
    while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  ::close(ends[0]);
  return got == sizeof count ? std::max(count, 0) : 0;
}

Opened open_library(const Places& places) {
  set_environment();
  const Driver driver = start_driver(places.driver);
  if (!driver.fault.empty()) return {nullptr, driver.fault};
  std::error_code ignored;
  if (!std::filesystem::exists(places.library, ignored))
    return {nullptr, places.library.string() + " does not exist: build on a machine with nvcc"};
  if (!places.site.empty()) preload(places.site);
  // bound lazily: of cuDNN and others, LibTorch's library names more than any run calls
  void* library = dlopen(places.library.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (!library) return {nullptr, load_fault(dlerror())};
  const auto get = reinterpret_cast<decltype(&tessera_cuda_register)>(dlsym(library, "tessera_cuda_register"));
  const Backend* table = get ? get() : nullptr;
  if (const std::string fault = misfit(table, places, driver); !fault.empty()) return {nullptr, fault};
  return {table, ""};
}

}  // namespace tessera::device
