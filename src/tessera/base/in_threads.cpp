#include "tessera/base/in_threads.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

namespace tessera {

void for_each_in_threads(size_t count, const std::function<void(size_t)>& work) {
  constexpr size_t kMostThreads = 8;
  std::vector<std::exception_ptr> thrown(count);
  std::atomic<size_t> next = 0;
  const auto take = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        thrown[i] = std::current_exception();
      }
    }
  };
  std::vector<std::jthread> others;
  const size_t threads = std::min({kMostThreads, count, static_cast<size_t>(std::thread::hardware_concurrency())});
  for (size_t t = 1; t < threads; ++t) others.emplace_back(take);
  take();
  others.clear();  // waits for them
  for (const std::exception_ptr& exception : thrown)
    if (exception) std::rethrow_exception(exception);
}

}  // namespace tessera
