// Streams and events of the simulated device: what is in no order is found, and what waits is not.
#include "timeline.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <thread>

#include "simulated.h"
#include "tessera/device/streams.h"
#include "tessera/torch_headers.h"

namespace tessera::testing {
namespace {

using device::Mark;

constexpr int64_t kCount = 1000, kBytes = kCount * 4;

/// Page-locked memory of the host.
class Pinned {
 public:
  Pinned() : values_(kCount) { simulated_device().pin(values_.data(), kBytes); }
  ~Pinned() { simulated_device().unpin(values_.data()); }
  Pinned(const Pinned&) = delete;
  float* data() { return values_.data(); }

 private:
  std::vector<float> values_;
};

/// Two ranges of the device, two streams beside the first one, and one page-locked range.
class Streams : public ::testing::Test {
 protected:
  void SetUp() override {
    device::use(simulated_device(), 0);
    timeline().compare_uses(true);
    for (float*& range : ranges) range = static_cast<float*>(gpu.take(kBytes));
    for (device::Stream& stream : streams) stream = gpu.make_stream(device::Priority::normal);
  }
  void TearDown() override {
    gpu.set_stream(nullptr);
    for (device::Stream stream : streams) gpu.free_stream(stream);
    for (float* range : ranges) gpu.give(range);
    timeline().compare_uses(false);
  }
  void on(int stream) { gpu.set_stream(stream ? streams[stream - 1] : nullptr); }
  void write(int range) { gpu.round(ranges[range], at::kHalf, kCount); }
  void read(int range) { gpu.enqueue_copy(host.data(), ranges[range], kBytes); }

  /// What is said of work in no order; empty: it is in order.
  template <class Work>
  std::string found(const Work& work) {
    try {
      work();
      return "";
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
  }

  const device::Backend& gpu = simulated_device();
  float* ranges[2] = {};
  device::Stream streams[2] = {};
  Pinned host;
};

using StreamsDeathTest = Streams;
TEST_F(StreamsDeathTest, MemoryThatIsGivenBackWhileAStreamUsesItIsFound) {
  const auto give_back = [&](bool waits) {
    setenv("TESSERA_SIMULATED_POISON", "1", 1);
    gpu.allocate_by(c10::GetAllocator(at::kPrivateUse1));
    std::optional<at::Tensor> x = at::zeros({kCount}, at::TensorOptions(at::kPrivateUse1).dtype(at::kFloat));
    gpu.wait();
    on(1), gpu.label("stash mid");
    gpu.enqueue_copy(host.data(), x->const_data_ptr(), kBytes);
    if (waits) gpu.wait();
    on(0), x.reset();
    std::exit(0);
  };
  EXPECT_DEATH(give_back(false), "freed.* writes bytes that .*stash mid");
  EXPECT_EXIT(give_back(true), ::testing::ExitedWithCode(0), "");
}

TEST_F(Streams, AreInNoOrderWithoutAnEvent) {
  on(1), gpu.label("gather mid"), write(0);
  on(2), gpu.label("stash mid");
  const std::string text = found([&] { read(0); });
  for (const char* word : {"copy of stash mid", "reads", "round of gather mid", "writes", "neither waits"})
    EXPECT_NE(text.find(word), std::string::npos) << word << " in: " << text;
  EXPECT_EQ(found([&] { read(1); }), "") << "bytes that no other stream uses";
  gpu.label("");
}

TEST_F(Streams, AreOrderedByAnEvent) {
  Mark mark;
  on(1), write(0), mark.record();
  on(2), mark.order();
  EXPECT_EQ(found([&] { read(0), write(0); }), "");
  on(1);
  EXPECT_NE(found([&] { write(0); }), "") << "the event orders one way";
}

TEST_F(Streams, AnEventIsWhatWasGivenBeforeIt) {
  Mark mark;
  on(1), mark.record(), write(0);
  on(2), mark.order();
  EXPECT_NE(found([&] { read(0); }), "");
}

TEST_F(Streams, ReadsNeedNoOrderAndTheNextWriteNeedsThemAll) {
  Mark first, second;
  on(1), read(0), first.record();
  on(2), gpu.copy(ranges[1], ranges[0], kBytes), second.record();
  on(0), second.order();
  EXPECT_NE(found([&] { write(0); }), "");
  first.order();
  EXPECT_EQ(found([&] { write(0); }), "");
}

TEST_F(Streams, AnOrderIsPassedOn) {
  Mark one, two;
  on(1), write(0), one.record();
  on(0), one.order(), two.record();
  on(2), two.order();
  EXPECT_EQ(found([&] { write(0); }), "");
}

TEST_F(Streams, AThreadThatWaitedPassesItOnWithItsWork) {
  Mark mark;
  on(1), write(0), mark.record();
  mark.await();
  on(2);
  EXPECT_EQ(found([&] { write(0); }), "");
  on(1), write(1);
  std::string other;
  std::thread([&] {
    other = found([&] { write(1); });
  }).join();  // on the first stream, by a thread that has not waited
  EXPECT_NE(other, "");
}

TEST_F(Streams, AHostThatReadsTooEarlyIsFound) {
  Mark mark;
  on(1), read(0), mark.record();
  EXPECT_NE(found([&] { device::host_uses(host.data(), kBytes, false); }), "")
      << "the stream of the thread is not waited for either";
  mark.await();
  EXPECT_EQ(found([&] { device::host_uses(host.data(), kBytes, true); }), "");
  on(2);
  EXPECT_EQ(found([&] { read(1); }), "") << "given by the thread that used it";
  std::string other;
  std::thread([&] { other = found([&] { read(0); }); }).join();
  EXPECT_NE(other, "");
}

TEST_F(Streams, PartsOfARangeAreSeparate) {
  on(1), gpu.round(ranges[0], at::kHalf, 100), gpu.round(ranges[0] + 500, at::kHalf, 100);
  on(2);
  EXPECT_EQ(found([&] { gpu.round(ranges[0] + 100, at::kHalf, 400); }), "");
  EXPECT_NE(found([&] { gpu.round(ranges[0] + 599, at::kHalf, 1); }), "");
  EXPECT_NE(found([&] { gpu.round(ranges[0] + 99, at::kHalf, 100); }), "");
}

TEST_F(Streams, OperatorsOfLibTorchAreSeenByTheirSchema) {
  const at::TensorOptions options = at::TensorOptions(at::kFloat).device("simulated:0");
  at::Tensor x = at::ones({kCount}, options), y = at::ones({kCount}, options);
  auto* data = static_cast<float*>(x.mutable_data_ptr());
  on(1);
  EXPECT_NE(found([&] { gpu.round(data, at::kHalf, kCount); }), "") << "ones() wrote it on the first stream";
  on(0);
  Mark mark;
  mark.record();
  on(1), mark.order(), gpu.round(data, at::kHalf, kCount / 2);
  on(0);
  EXPECT_EQ(found([&] { x.view({2, -1}).t(), x.narrow(0, kCount / 2, 10).add_(1); }), "");
  const std::string text = found([&] { y.add_(x); });
  EXPECT_NE(text.find("aten::add_ (the first stream) reads"), std::string::npos) << text;
  EXPECT_NE(found([&] { x.zero_(); }), "");
  EXPECT_NE(found([&] { at::add_out(x, y, y); }), "");
}

TEST_F(Streams, WaitsOfTheHostAreCounted) {
  (void)timeline().take_counts();
  Mark mark;
  on(1), read(0), mark.record();
  EXPECT_EQ(timeline().take_counts().waits, 0) << "an enqueued copy";
  mark.await();
  float value = 0;
  gpu.copy(&value, ranges[0], 4);
  const HostCounts counts = timeline().take_counts();
  EXPECT_EQ(counts.waits, 2);
  EXPECT_EQ(counts.bytes_back, 4);
  on(0);
  const at::Tensor x = at::ones({4}, at::TensorOptions(at::kFloat).device("simulated:0"));
  (void)timeline().take_counts();
  EXPECT_EQ(x.sum().item<float>(), 4);
  EXPECT_EQ(timeline().take_counts().waits, 1);
}

TEST_F(Streams, LaunchesAreCountedWithTheirBytesAndTheOperationsOfProducts) {
  on(0);
  const auto options = at::TensorOptions(at::kBFloat16).device("simulated:0");
  const at::Tensor x = at::ones({6, 5}, options), w = at::ones({5, 7}, options);
  timeline().label("forward here");
  (void)timeline().take_launches();
  const at::Tensor view = x.t().view({5, 2, 3}).select(1, 0), y = x.mm(w);
  const at::Tensor z = y.to(at::kFloat).mm(at::ones({7, 2}, options.dtype(at::kFloat)));
  write(0), write(1);
  auto launches = timeline().take_launches();
  timeline().label("");
  const auto of = [&](const std::string& what) { return launches[{"forward here", what}]; };
  EXPECT_EQ(of("aten::t").count + of("aten::view").count + of("aten::select").count, 0) << "views";
  EXPECT_EQ(of("aten::mm").count, 1);
  EXPECT_EQ(of("aten::mm").read, 2 * (30 + 35));
  EXPECT_EQ(of("aten::mm").written, 2 * 42);
  EXPECT_EQ(of("aten::mm").flops, 2 * 6 * 5 * 7);
  EXPECT_EQ(of("aten::mm of fp32").flops, 2 * 6 * 7 * 2);
  EXPECT_EQ(of("round").count, 2);
  EXPECT_EQ(of("round").written, 2 * kBytes);
}

}  // namespace
}  // namespace tessera::testing
