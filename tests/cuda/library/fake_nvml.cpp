// An NVML of one GPU that answers and counts: the first reading has 40 %, 100 W and 1 GiB, each that follows 10 points,
// 50 W and 1 GiB more, up to STOPS_AFTER of them. The driver keeps half a GiB for itself, which version 1 counts as used. With
// VERSION_1 there is no other, and 2 GiB more are taken from when NVML is started the second time. With XID it tells that error of the GPU. fake_nvml_calls() gives what was
// called. START is what nvmlInit_v2 gives, UUID what it knows the GPU by.
#include <atomic>
#include <cstring>

#ifndef UUID
#define UUID "GPU-00112233-4455-6677-8899-aabbccddeeff"
#endif

namespace {
std::atomic<int> starts = 0, ends = 0, readings = 0;
char asked_for[96] = {};
int gpu = 0;
constexpr unsigned long long kReserved = 1ULL << 29;
}  // namespace

extern "C" {

int nvmlInit_v2() { return ++starts, START; }
int nvmlShutdown() { return ++ends, 0; }
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  std::strncpy(asked_for, uuid, sizeof asked_for - 1);
  *device = &gpu;
  return std::strcmp(uuid, UUID) == 0 ? 0 : 6;
}
int nvmlDeviceGetUtilizationRates(void* device, unsigned* percent) {
  percent[0] = 40 + 10 * readings, percent[1] = 99;
  return device == &gpu && readings < STOPS_AFTER ? 0 : 15;
}
int nvmlDeviceGetMemoryInfo(void* device, unsigned long long* bytes) {
  bytes[0] = 80ULL << 30, bytes[2] = ((1ULL + readings) << 30) + kReserved, bytes[1] = bytes[0] - bytes[2];
#ifdef VERSION_1
  if (starts > 1) bytes[2] += 2ULL << 30;
#endif
  return device == &gpu ? 0 : 15;
}
#ifndef VERSION_1
struct MemoryAndReserve {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
int nvmlDeviceGetMemoryInfo_v2(void* device, MemoryAndReserve* memory) {
  if (memory->version != 0x2000028) return 25;  // NVML_ERROR_ARGUMENT_VERSION_MISMATCH
  memory->total = 80ULL << 30, memory->reserved = kReserved, memory->used = (1ULL + readings) << 30;
  memory->free = memory->total - memory->reserved - memory->used;
  return device == &gpu ? 0 : 15;
}
#endif
int nvmlDeviceGetCount_v2(unsigned* count) { return *count = 1, 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) { return *device = &gpu, index == 0 ? 0 : 2; }
int nvmlDeviceGetUUID(void*, char* uuid, unsigned length) { return std::strncpy(uuid, UUID, length), 0; }
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  *milliwatts = 100000 + 50000 * readings++;  // asked last
  return device == &gpu ? 0 : 15;
}

#ifdef XID
int events = 0;
int nvmlEventSetCreate(void** set) { return *set = &events, 0; }
int nvmlDeviceRegisterEvents(void* device, unsigned long long types, void* set) {
  return device == &gpu && types == 8 && set == &events ? 0 : 2;
}
struct EventData {
  void* device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};
/// Each is told once.
int nvmlEventSetWait_v2(void*, EventData* event, unsigned) {
  if (events++ > 0) return 10;  // NVML_ERROR_TIMEOUT
  return *event = {&gpu, 8, XID, ~0u, ~0u}, 0;
}
int nvmlEventSetFree(void*) { return 0; }
#endif

struct NvmlCalls {
  int starts, ends, readings;
  const char* asked_for;
};
NvmlCalls fake_nvml_calls() { return {starts, ends, readings, asked_for}; }
}
