#include "tessera/device/backend.h"

#include <atomic>

namespace tessera::device {

namespace {

std::atomic<const Backend*> chosen = nullptr;
std::atomic<int> chosen_index = 0;

}  // namespace

void use(const Backend& backend, int index) {
  chosen_index = index;
  chosen = &backend;
  enter_thread();
}

const Backend* used() { return chosen.load(std::memory_order_acquire); }

c10::DeviceType type() {
  const Backend* backend = used();
  return backend ? backend->type : c10::DeviceType::CPU;
}

void enter_thread() {
  if (const Backend* backend = used()) backend->place(chosen_index);
}

}  // namespace tessera::device
