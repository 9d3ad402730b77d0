// How fast a GPU does what its table offers, and page-locked memory of the size of a host tier: a line of numbers each, which
// `make gpu` keeps. The same file runs on the simulated device, with a few values; without any device it is skipped.
//
//   TESSERA_TIMED_VALUES=268435456 TESSERA_PINNED_MIB=8192 test_ops_gpu --gtest_filter=TableTimes.*:PinnedMemory.*
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <numeric>

#include "tessera/base/device_messages.h"
#include "tessera/comm/device_links.h"
#include "tessera/device/open.h"
#include "tessera/device/staging.h"
#include "tessera/device/streams.h"
#include "tessera/ops/adamw.h"
#include "tessera/ops/dropout.h"

namespace tessera::testing {

namespace {

int64_t setting(const char* name, int64_t otherwise) {
  const char* value = std::getenv(name);
  return value && *value ? std::atoll(value) : otherwise;
}

const device::Backend& table() { return *device::open().table; }

/// Memory of the device, zeros.
class Bytes {
 public:
  explicit Bytes(int64_t bytes) : data_(table().take(bytes)) {
    if (!data_) throw std::bad_alloc();
    const std::vector<char> zeros(1 << 20);
    for (int64_t at = 0; at < bytes; at += 1 << 20)
      table().copy(static_cast<char*>(data_) + at, zeros.data(), std::min<int64_t>(1 << 20, bytes - at));
  }
  ~Bytes() { table().give(data_); }
  Bytes(const Bytes&) = delete;
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_;
};

/// Host memory, page-locked while it lives.
class Locked {
 public:
  explicit Locked(int64_t bytes) : bytes_(bytes) {
    void* mapped =
        mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    data = static_cast<char*>(mapped);
    madvise(mapped, static_cast<size_t>(bytes), MADV_HUGEPAGE);
    const auto begun = std::chrono::steady_clock::now();
    std::vector<std::future<void>> parts;  // one thread touches some GiB a second
    for (int64_t part = 0; part < kThreads; ++part)
      parts.push_back(std::async(std::launch::async, [=, this] {
        for (int64_t at = part * bytes / kThreads; at < (part + 1) * bytes / kThreads; at += 4096) data[at] = 0;
      }));
    for (std::future<void>& part : parts) part.get();
    const auto touched = std::chrono::steady_clock::now();
    locked = device::pin(data, bytes).empty();
    touch_seconds = std::chrono::duration<double>(touched - begun).count();
    lock_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - touched).count();
  }
  ~Locked() {
    if (locked) device::unpin(data);
    munmap(data, static_cast<size_t>(bytes_));
  }
  Locked(const Locked&) = delete;

  char* data = nullptr;
  bool locked = false;
  double touch_seconds = 0, lock_seconds = 0;

 private:
  static constexpr int64_t kThreads = 8;
  int64_t bytes_;
};

/// Seconds of the device for one call, of several behind one that warms it.
double seconds_of(const std::function<void()>& call) {
  constexpr int kCalls = 5;
  call();
  const device::Event from = table().make_event(/*timed=*/true), to = table().make_event(/*timed=*/true);
  table().record(from);
  for (int i = 0; i < kCalls; ++i) call();
  table().record(to);
  table().await(to);
  const double seconds = table().seconds_between(from, to) / kCalls;
  table().free_event(from), table().free_event(to);
  return seconds;
}

TEST(TableTimes, OfFunctionsOverRanges) {
  if (!device::open().table) GTEST_SKIP() << device::open().absence;
  const int64_t n = setting("TESSERA_TIMED_VALUES", 1 << 16), bytes = 4 * n;
  const Bytes a(bytes), b(bytes), c(bytes), d(bytes), codes(n), scales(bytes / 8), sum(4096);
  const Locked host(bytes);
  const float* parts[2] = {b.as<float>(), c.as<float>()};
  const ops::AdamWStep step{.step = 1};
  const ops::DropRange dropped{.row = 0,
                               .rows = n / 1024,
                               .cols = 1024,
                               .stride = 1024,
                               .width = 1024,
                               .first = 0,
                               .key = RandomKey(1, Purpose::test),
                               .border = 0x1000,
                               .scale = 1};
  struct Case {
    const char* name;
    double bytes;  // read and written, for each value
    std::function<void()> call;
  };
  const Case cases[] = {
      {"narrow", 6, [&] { table().narrow(a.as<void>(), b.as<float>(), c10::kBFloat16, n); }},
      {"widen", 6, [&] { table().widen(a.as<float>(), b.as<void>(), c10::kBFloat16, n); }},
      {"round", 8, [&] { table().round(a.as<float>(), c10::kBFloat16, n); }},
      {"high_half", 6, [&] { table().high_half(a.as<uint16_t>(), b.as<float>(), n); }},
      {"sum_in_order", 12, [&] { table().sum_in_order(a.as<float>(), parts, 2, n, false); }},
      {"sum_of_squares", 4, [&] { table().sum_of_squares(sum.as<double>(), a.as<float>(), n); }},
      {"adamw", 28,
       [&] {
         table().adamw({.fp32 = a.as<float>()}, {.fp32 = b.as<float>()}, {.fp32 = c.as<float>()},
                       {.fp32 = d.as<float>()}, n, step);
       }},
      {"quantise_int8", 5, [&] { table().quantise_int8(codes.as<int8_t>(), scales.as<float>(), a.as<float>(), n); }},
      {"dequantise_int8", 5,
       [&] { table().dequantise_int8(a.as<float>(), codes.as<int8_t>(), scales.as<float>(), n); }},
      {"drop", 8, [&] { table().drop(a.as<void>(), c10::kFloat, dropped); }},
      {"copy", 8, [&] { table().enqueue_copy(a.as<void>(), b.as<void>(), bytes); }},
      {"copy_from_host", 4, [&] { table().enqueue_copy(a.as<void>(), host.data, bytes); }},
      {"copy_to_host", 4, [&] { table().enqueue_copy(host.data, a.as<void>(), bytes); }},
  };
  for (const Case& one : cases) {
    const double seconds = seconds_of(one.call);
    EXPECT_GT(seconds, 0) << one.name;
    std::printf("{\"%s_gb_s\": %.1f}\n", one.name, one.bytes * static_cast<double>(n) / seconds * 1e-9);
  }
}

/// As much as a host tier has: what is sent from its first, middle and last bytes comes back.
TEST(PinnedMemory, OfAHostTierIsSentAndComesBack) {
  if (!device::open().table) GTEST_SKIP() << device::open().absence;
  const int64_t bytes = setting("TESSERA_PINNED_MIB", 64) << 20, piece = std::min<int64_t>(bytes / 8, 64 << 20);
  const Locked host(bytes);
  ASSERT_TRUE(host.locked) << "the system refuses to page-lock " << (bytes >> 20) << " MiB: ulimit -l";
  const Bytes there(piece);
  for (const int64_t at : {int64_t{0}, bytes / 2, bytes - 2 * piece}) {
    auto* sent = reinterpret_cast<int32_t*>(host.data + at);
    auto* back = reinterpret_cast<int32_t*>(host.data + at + piece);
    std::iota(sent, sent + piece / 4, static_cast<int32_t>(at >> 20));
    device::enqueue_copy(there.as<void>(), sent, piece);
    device::enqueue_copy(back, there.as<void>(), piece);
    table().wait();
    EXPECT_TRUE(std::equal(sent, sent + piece / 4, back)) << "at " << at;
  }
  std::printf("{\"pinned_mib\": %lld, \"touch_s\": %.3f, \"lock_s\": %.3f}\n", static_cast<long long>(bytes >> 20),
              host.touch_seconds, host.lock_seconds);
}

/// Of the host, for a message that goes to a stream: NCCL launches it from a thread of its own, which the host awaits
/// (comm/device_links.cpp). A rank alone sends to itself; with TESSERA_MESSAGE_RANKS=2 two GPUs send to each other.
TEST(GpuFigures, HostTimeOfAMessage) {
  if (!device::open().table) GTEST_SKIP() << device::open().absence;
  const device::Communicators* messages = table().communicators;
  if (!messages || !messages->absence().empty()) GTEST_SKIP() << (messages ? messages->absence() : "no communicators");
  const auto ranks = static_cast<int>(setting("TESSERA_MESSAGE_RANKS", 1));
  if (ranks > table().count()) GTEST_SKIP() << "this machine has " << table().count() << " GPUs";
  const auto calls = static_cast<int>(setting("TESSERA_MESSAGES", 20));
  constexpr int64_t kBytes = int64_t{1} << 20;
  const std::string id = messages->new_id();
  std::vector<double> seconds(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      table().place(rank);
      device::own_stream();
      comm::DeviceLinks links(*messages, 60);
      const auto link =
          links.connect("figures", rank, ranks, device_messages("sequence"), [&](const std::string&) { return id; });
      const Bytes sent(kBytes), received(kBytes);
      const auto tensor = [&](const Bytes& bytes) {
        return at::from_blob(bytes.as<void>(), {kBytes},
                             at::TensorOptions(at::kByte).device(table().type, static_cast<c10::DeviceIndex>(rank)));
      };
      std::vector<at::Tensor> out(static_cast<size_t>(ranks)), in(out);
      out[static_cast<size_t>(ranks - 1 - rank)] = tensor(sent),
                                          in[static_cast<size_t>(ranks - 1 - rank)] = tensor(received);
      link->exchange("exchange", out, in);
      table().wait();
      const auto begun = std::chrono::steady_clock::now();
      for (int i = 0; i < calls; ++i) link->exchange("exchange", out, in);
      seconds[static_cast<size_t>(rank)] =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count() / calls;
      table().wait();
      EXPECT_NO_THROW(links.check());
    });
  for (std::thread& thread : threads) thread.join();
  const double most = *std::ranges::max_element(seconds);
  EXPECT_GT(most, 0);
  std::printf("{\"message_ranks\": %d, \"message_host_us\": %.1f}\n", ranks, most * 1e6);
}

}  // namespace

}  // namespace tessera::testing
