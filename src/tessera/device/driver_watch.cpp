#include "tessera/device/driver_watch.h"

#include <dlfcn.h>

#include <condition_variable>
#include <mutex>
#include <thread>

namespace tessera::device {

namespace {

// Of NVML's interface (NVIDIA's nvml.h) what is called: functions give 0, or the number of an error.
using Gpu = void*;
struct Utilisation {
  unsigned gpu = 0, memory = 0;  // percent
};
struct Memory {
  unsigned long long total = 0, free = 0, used = 0;  // bytes
};

struct Nvml {
  int (*start)() = nullptr;
  int (*end)() = nullptr;
  int (*gpu_of)(const char* uuid, Gpu*) = nullptr;
  int (*utilisation)(Gpu, Utilisation*) = nullptr;
  int (*power)(Gpu, unsigned* milliwatts) = nullptr;
  int (*memory)(Gpu, Memory*) = nullptr;
};

/// "GPU-" and the digits in groups of 8, 4, 4, 4 and 12, as NVML and nvidia-smi -L write them.
std::string as_nvml_writes(const std::string& uuid) {
  if (uuid.size() != 32) return uuid;
  return "GPU-" + uuid.substr(0, 8) + "-" + uuid.substr(8, 4) + "-" + uuid.substr(12, 4) + "-" + uuid.substr(16, 4) +
         "-" + uuid.substr(20);
}

/// Why it cannot be used; empty if it can. The library stays loaded.
std::string open_nvml(const std::string& name, Nvml& nvml) {
  void* library = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (!library) return "the driver's numbers are not to be had: " + std::string(dlerror());
  const auto load = [&]<class Function>(Function*& to, const char* symbol) {
    to = reinterpret_cast<Function*>(dlsym(library, symbol));
    return to != nullptr;
  };
  const bool whole = load(nvml.start, "nvmlInit_v2") && load(nvml.end, "nvmlShutdown") &&
                     load(nvml.gpu_of, "nvmlDeviceGetHandleByUUID") &&
                     load(nvml.utilisation, "nvmlDeviceGetUtilizationRates") &&
                     load(nvml.power, "nvmlDeviceGetPowerUsage") && load(nvml.memory, "nvmlDeviceGetMemoryInfo");
  if (!whole) return "the driver's numbers are not to be had: " + name + " lacks functions of NVML";
  if (const int code = nvml.start())
    return "the driver's numbers are not to be had: NVML does not start (error " + std::to_string(code) + ")";
  return "";
}

}  // namespace

struct DriverWatch::Driver {
  Nvml nvml;
  Gpu gpu = nullptr;

  std::mutex lock;
  std::condition_variable wake;
  bool ends = false, answers = true;
  DriverNumbers sum, last;
  int readings = 0;
  std::thread thread;

  /// False where the driver does not answer. A board without a power sensor has 0 W.
  bool read() {
    Utilisation used;
    Memory memory;
    unsigned milliwatts = 0;
    if (nvml.utilisation(gpu, &used) != 0 || nvml.memory(gpu, &memory) != 0) return false;
    if (nvml.power(gpu, &milliwatts) != 0) milliwatts = 0;
    const std::lock_guard held(lock);
    last = {used.gpu / 100.0, milliwatts / 1000.0, static_cast<double>(memory.used)};
    sum.utilisation += last.utilisation, sum.watts += last.watts, sum.memory_bytes += last.memory_bytes;
    ++readings;
    return true;
  }

  void run(std::chrono::milliseconds period) {
    while (true) {
      const bool answered = read();
      std::unique_lock held(lock);
      answers = answered;
      if (!answers || wake.wait_for(held, period, [this] { return ends; })) return;
    }
  }
};

DriverWatch::DriverWatch(const std::string& uuid, const std::string& library, std::chrono::milliseconds period) {
  auto driver = std::make_unique<Driver>();
  absence_ = open_nvml(library, driver->nvml);
  if (!absence_.empty()) return;
  if (const int code = driver->nvml.gpu_of(as_nvml_writes(uuid).c_str(), &driver->gpu)) {
    absence_ = "the driver's numbers are not to be had: NVML knows no " + as_nvml_writes(uuid) + " (error " +
               std::to_string(code) + ")";
    driver->nvml.end();
    return;
  }
  driver_ = std::move(driver);
  driver_->thread = std::thread([this, period] { driver_->run(period); });
}

DriverWatch::~DriverWatch() {
  if (!driver_) return;
  {
    const std::lock_guard held(driver_->lock);
    driver_->ends = true;
  }
  driver_->wake.notify_all();
  driver_->thread.join();
  driver_->nvml.end();
}

std::optional<DriverNumbers> DriverWatch::take() {
  if (!driver_) return std::nullopt;
  const std::lock_guard held(driver_->lock);
  if (!driver_->answers) return std::nullopt;
  DriverNumbers mean = driver_->last;
  if (driver_->readings == 0) return mean == DriverNumbers{} ? std::nullopt : std::optional(mean);
  const double n = driver_->readings;
  mean = {driver_->sum.utilisation / n, driver_->sum.watts / n, driver_->sum.memory_bytes / n};
  driver_->sum = {}, driver_->readings = 0;
  return mean;
}

}  // namespace tessera::device
