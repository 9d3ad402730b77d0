#include "tessera/device/driver_watch.h"

#include <dlfcn.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "tessera/device/backend.h"

namespace tessera::device {

namespace {

// Of NVML's interface (NVIDIA's nvml.h) what is called: functions give 0, or the number of an error.
using Gpu = void*;
struct Utilisation {
  unsigned gpu = 0, memory = 0;  // percent
};
struct Memory {
  unsigned long long total = 0, free = 0, used = 0;  // bytes; used: with what the driver keeps for itself
};
/// The same without that.
struct MemoryAndReserve {
  unsigned version = sizeof(MemoryAndReserve) | 2U << 24;
  unsigned long long total = 0, reserved = 0, free = 0, used = 0;
};

using EventSet = void*;
struct EventData {
  Gpu gpu = nullptr;
  unsigned long long type = 0, data = 0;  // of an Xid: its number
  unsigned gpu_instance = 0, compute_instance = 0;
};
constexpr unsigned long long kXid = 8;

struct Nvml {
  int (*start)() = nullptr;
  int (*end)() = nullptr;
  int (*gpu_of)(const char* uuid, Gpu*) = nullptr;
  int (*utilisation)(Gpu, Utilisation*) = nullptr;
  int (*power)(Gpu, unsigned* milliwatts) = nullptr;
  int (*memory)(Gpu, Memory*) = nullptr;
  int (*memory_and_reserve)(Gpu, MemoryAndReserve*) = nullptr;  // null in drivers before 510
  int (*count)(unsigned*) = nullptr;
  int (*gpu_at)(unsigned index, Gpu*) = nullptr;
  int (*uuid_of)(Gpu, char*, unsigned length) = nullptr;
  // null in drivers that tell no events
  int (*make_events)(EventSet*) = nullptr;
  int (*register_events)(Gpu, unsigned long long types, EventSet) = nullptr;
  int (*wait_for_event)(EventSet, EventData*, unsigned milliseconds) = nullptr;
  int (*free_events)(EventSet) = nullptr;
  bool tells_events() const { return make_events && register_events && wait_for_event && free_events; }
};

/// Of NVIDIA's list of Xids what ends a program, and what then has to be done.
struct Xid {
  unsigned number;
  const char* text;
};
constexpr Xid kXids[] = {
    {13, "a kernel was stopped for what it did: a fault of the program"},
    {31, "a kernel used an address that is not its own: a fault of the program"},
    {43, "the GPU stopped a program for its fault, and is well"},
    {45, "the GPU's work was ended, after an earlier error"},
    {48, "memory of the GPU has an error of two bits: reset the GPU, and replace it if that comes again"},
    {63, "the GPU has put away a row of bad memory: reset it at the next occasion"},
    {64, "the GPU could not put away a row of bad memory: replace it"},
    {74, "NVLink has an error: look at nvidia-smi nvlink --errorcounters, and at what connects the GPUs"},
    {79, "the GPU has fallen off the bus: look at its power, its heat and its slot, and reboot"},
    {94, "memory of the GPU has an error, which ended this program alone: start again"},
    {95, "memory of the GPU has an error that was not contained: reset the GPU"},
    {119, "the GPU's system processor does not answer: reset the GPU or reboot"},
    {120, "the GPU's system processor has an error: reset the GPU or reboot"},
    {140, "memory of the GPU has an error that is not corrected: reset the GPU"},
};

std::string describe_xid(unsigned long long number) {
  std::string text = "Xid " + std::to_string(number);
  for (const Xid& known : kXids)
    if (known.number == number) text += std::string(" (") + known.text + ")";
  return text;
}

/// "GPU-" and the digits in groups of 8, 4, 4, 4 and 12, as NVML and nvidia-smi -L write them.
std::string as_nvml_writes(const std::string& uuid) {
  if (uuid.size() != 32) return uuid;
  return "GPU-" + uuid.substr(0, 8) + "-" + uuid.substr(8, 4) + "-" + uuid.substr(12, 4) + "-" + uuid.substr(16, 4) +
         "-" + uuid.substr(20);
}

/// Why it cannot be used; empty if it can. The library stays loaded, and is not started.
std::string load_nvml(const std::string& name, Nvml& nvml) {
  void* library = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (!library) return "no numbers from the driver: " + std::string(dlerror());
  const auto load = [&]<class Function>(Function*& to, const char* symbol) {
    to = reinterpret_cast<Function*>(dlsym(library, symbol));
    return to != nullptr;
  };
  const bool whole = load(nvml.start, "nvmlInit_v2") && load(nvml.end, "nvmlShutdown") &&
                     load(nvml.gpu_of, "nvmlDeviceGetHandleByUUID") &&
                     load(nvml.utilisation, "nvmlDeviceGetUtilizationRates") &&
                     load(nvml.power, "nvmlDeviceGetPowerUsage") && load(nvml.memory, "nvmlDeviceGetMemoryInfo");
  if (!whole) return "no numbers from the driver: " + name + " lacks functions of NVML";
  load(nvml.memory_and_reserve, "nvmlDeviceGetMemoryInfo_v2");
  load(nvml.count, "nvmlDeviceGetCount_v2"), load(nvml.gpu_at, "nvmlDeviceGetHandleByIndex_v2");
  load(nvml.uuid_of, "nvmlDeviceGetUUID");
  load(nvml.make_events, "nvmlEventSetCreate"), load(nvml.register_events, "nvmlDeviceRegisterEvents");
  load(nvml.wait_for_event, "nvmlEventSetWait_v2"), load(nvml.free_events, "nvmlEventSetFree");
  return "";
}

/// The same, started.
std::string open_nvml(const std::string& name, Nvml& nvml) {
  if (std::string absence = load_nvml(name, nvml); !absence.empty()) return absence;
  if (const int code = nvml.start())
    return "no numbers from the driver: NVML does not start (error " + std::to_string(code) + ")";
  return "";
}

/// By NVML's name of the GPU: bytes that were taken before this process came to it, with what the driver keeps for itself.
std::map<std::string, double>& taken_before() {
  static auto* once = new std::map<std::string, double>;  // written before there are other threads
  return *once;
}

}  // namespace

struct DriverWatch::Driver {
  Nvml nvml;
  Gpu gpu = nullptr;
  double before = 0;          // bytes, of drivers that do not tell what they keep for themselves
  EventSet events = nullptr;  // null: the driver tells none

  void listen() {
    if (!nvml.tells_events() || nvml.make_events(&events) != 0) return;
    if (nvml.register_events(gpu, kXid, events) == 0) return;
    nvml.free_events(events);
    events = nullptr;
  }

  std::mutex lock;
  std::condition_variable wake;
  bool ends = false, answers = true;
  DriverNumbers sum, last;
  int readings = 0;
  std::thread thread;

  /// Bytes that programs have; empty: the driver does not answer.
  std::optional<double> memory() const {
    MemoryAndReserve whole;
    if (nvml.memory_and_reserve && nvml.memory_and_reserve(gpu, &whole) == 0) return static_cast<double>(whole.used);
    Memory memory;
    if (nvml.memory(gpu, &memory) != 0) return std::nullopt;
    return std::max(0.0, static_cast<double>(memory.used) - before);
  }

  /// False where the driver does not answer. A board without a power sensor has 0 W.
  bool read() {
    Utilisation used;
    unsigned milliwatts = 0;
    const std::optional<double> taken = memory();
    if (nvml.utilisation(gpu, &used) != 0 || !taken) return false;
    if (nvml.power(gpu, &milliwatts) != 0) milliwatts = 0;
    const std::lock_guard held(lock);
    last = {used.gpu / 100.0, milliwatts / 1000.0, *taken};
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
    absence_ =
        "no numbers from the driver: NVML knows no " + as_nvml_writes(uuid) + " (error " + std::to_string(code) + ")";
    driver->nvml.end();
    return;
  }
  if (const auto found = taken_before().find(as_nvml_writes(uuid)); found != taken_before().end())
    driver->before = found->second;
  driver->listen();
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
  if (driver_->events) driver_->nvml.free_events(driver_->events);
  driver_->nvml.end();
}

std::string DriverWatch::take_fault(std::chrono::milliseconds wait) {
  if (!driver_ || !driver_->events) return "";
  EventData event;
  if (driver_->nvml.wait_for_event(driver_->events, &event, static_cast<unsigned>(wait.count())) != 0) return "";
  return event.type & kXid ? describe_xid(event.data) : "";
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

void note_taken_memory(const std::string& library) {
  Nvml nvml;
  if (!load_nvml(library, nvml).empty() || nvml.memory_and_reserve) return;
  if (!nvml.count || !nvml.gpu_at || !nvml.uuid_of || nvml.start() != 0) return;
  unsigned gpus = 0;
  if (nvml.count(&gpus) != 0) gpus = 0;
  for (unsigned index = 0; index < gpus; ++index) {
    Gpu gpu = nullptr;
    Memory memory;
    char uuid[96] = "";  // NVML's longest
    if (nvml.gpu_at(index, &gpu) == 0 && nvml.uuid_of(gpu, uuid, sizeof uuid) == 0 && nvml.memory(gpu, &memory) == 0)
      taken_before()[uuid] = static_cast<double>(memory.used);
  }
  nvml.end();
}

namespace {
// Set before there are other threads; never destroyed: its thread may be within NVML.
DriverWatch* of_process = nullptr;
}  // namespace

void watch_driver() {
  if (used() && !of_process) of_process = new DriverWatch(used()->properties(here().index()).uuid);
}

DriverWatch* driver() { return of_process; }

}  // namespace tessera::device
