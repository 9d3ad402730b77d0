// The functions of the CUDA library's table on a device: memory, copies, and the bits of the CPU's twins. What the kernels do
// with odd numbers and sizes is asked in test_cuda_gpu. Without a device everything but the first test is skipped.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <set>

#include "tessera/device/open.h"
#include "tessera/ops/adamw.h"
#include "tessera/ops/bf16.h"
#include "tessera/ops/blockwise.h"
#include "tessera/ops/eight_bit.h"
#include "tessera/ops/half.h"

namespace tessera::device {
namespace {

constexpr int64_t kValues = 100'003;  // two partial sums, several launches in place, a short last block

/// Counts what LibTorch asks for.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes ? open().table->take(static_cast<int64_t>(bytes)) : nullptr;
    if (data) ++live;
    return {data, data, give, c10::Device(open().table->type, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return give; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    open().table->copy(to, from, static_cast<int64_t>(bytes));
  }

  static inline int live = 0;

 private:
  static void give(void* data) {
    if (!data) return;
    --live;
    open().table->give(data);
  }
};

/// The library comes before LibTorch is asked for anything, and the allocator before the first tensor.
class FirstThings final : public ::testing::Environment {
  void SetUp() override {
    static CountingAllocator allocator;
    if (!open().table) return;
    open().table->place(0);
    open().table->allocate_by(&allocator);
  }
};
[[maybe_unused]] const auto* const first_things = ::testing::AddGlobalTestEnvironment(new FirstThings);

class Table : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!open().table) GTEST_SKIP() << open().absence;
    gpu = open().table;
    gpu->place(0);
  }
  const Backend* gpu = nullptr;
};

/// Values on the device.
template <class T>
class Range {
 public:
  explicit Range(size_t n) : n_(n), data_(static_cast<T*>(open().table->take(static_cast<int64_t>(n * sizeof(T))))) {
    if (!data_) throw std::bad_alloc();
  }
  explicit Range(const std::vector<T>& values) : Range(values.size()) {
    open().table->copy(data_, values.data(), static_cast<int64_t>(n_ * sizeof(T)));
  }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  ~Range() { open().table->give(data_); }

  T* data() { return data_; }
  std::vector<T> values() {
    std::vector<T> values(n_);
    open().table->copy(values.data(), data_, static_cast<int64_t>(n_ * sizeof(T)));
    return values;
  }

 private:
  size_t n_;
  T* data_;
};

std::vector<float> numbers(uint64_t seed, int64_t n = kValues) {
  std::vector<float> x(static_cast<size_t>(n));
  RandomKey(seed, Purpose::test).normal(x.data(), 0, x.size());
  return x;
}

std::vector<uint16_t> narrowed(const std::vector<float>& x, at::ScalarType half) {
  std::vector<uint16_t> out(x.size());
  ops::narrow(out.data(), x.data(), half, static_cast<int64_t>(x.size()));
  return out;
}

std::vector<float> widened(const std::vector<uint16_t>& x, at::ScalarType half) {
  std::vector<float> out(x.size());
  ops::widen(out.data(), x.data(), half, static_cast<int64_t>(x.size()));
  return out;
}

TEST(TableOfTheLibrary, IsThereOrSaysWhyNot) {
  if (open().table)
    EXPECT_GT(open().table->count(), 0);
  else
    EXPECT_NE(open().absence, "");
}

TEST_F(Table, NamesDevicesThatCanBePlacedOn) {
  std::set<std::string> uuids;
  for (int index = 0; index < gpu->count(); ++index) {
    const Properties found = gpu->properties(index);
    EXPECT_NE(found.name, "");
    EXPECT_EQ(found.uuid.size(), 32u);
    EXPECT_EQ(found.uuid.find_first_not_of("0123456789abcdef"), std::string::npos) << found.uuid;
    EXPECT_GT(found.free, 0);
    EXPECT_LE(found.free, found.bytes);
    uuids.insert(found.uuid);
    gpu->place(index);
    EXPECT_EQ(at::empty({1}, at::kCUDA).get_device(), index);
  }
  EXPECT_EQ(uuids.size(), static_cast<size_t>(gpu->count()));
}

TEST_F(Table, TensorsComeFromTheGivenAllocator) {
  const int before = CountingAllocator::live;
  {
    const at::Tensor x = at::ones({1000}, at::kCUDA), y = x + x;
    EXPECT_EQ(CountingAllocator::live, before + 2);
    EXPECT_EQ(at::empty({0}, at::kCUDA).numel(), 0);
    EXPECT_EQ(y.sum().item<float>(), 2000.0f);
  }
  EXPECT_EQ(CountingAllocator::live, before);
}

TEST_F(Table, MemoryIsAlignedAndRefusedWhereThereIsNotSoMuch) {
  for (const int64_t bytes : {1, 513, 1 << 20}) {
    void* data = gpu->take(bytes);
    ASSERT_TRUE(data);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 512, 0u);
    gpu->give(data);
  }
  EXPECT_EQ(gpu->take(int64_t{1} << 50), nullptr);
  gpu->wait();  // the refusal is no error that a later check finds
  EXPECT_EQ((at::ones({3}, at::kCUDA) * 2).sum().item<float>(), 6.0f);
}

TEST_F(Table, CopiesAreDoneWhenTheyReturnToTheHost) {
  std::vector<float> from = numbers(1, 10'000'001), to(from.size());
  const auto bytes = static_cast<int64_t>(from.size() * sizeof(float));
  for (const bool pinned : {false, true}) {
    std::fill(to.begin(), to.end(), 0.0f);
    if (pinned) {
      ASSERT_EQ(gpu->pin(from.data(), bytes), "");
      ASSERT_EQ(gpu->pin(to.data(), bytes), "");
    }
    Range<float> first(from), second(from.size());
    gpu->copy(second.data(), first.data(), bytes);
    gpu->copy(to.data(), second.data(), bytes);
    EXPECT_EQ(to, from);
    if (pinned) gpu->unpin(from.data()), gpu->unpin(to.data());
  }
  gpu->copy(nullptr, nullptr, 0);
}

TEST_F(Table, APinThatIsRefusedLeavesNoErrorBehind) {
  std::vector<char> memory(1 << 16);
  ASSERT_EQ(gpu->pin(memory.data(), 1 << 16), "");
  EXPECT_NE(gpu->pin(memory.data(), 1 << 16).find("cudaErrorHostMemoryAlreadyRegistered"), std::string::npos);
  gpu->unpin(memory.data());
  gpu->wait();
  EXPECT_EQ(at::ones({3}, at::kCUDA).sum().item<float>(), 3.0f);
}

TEST_F(Table, WorkIsInOrderWithLibTorchs) {
  const at::Tensor x = at::full({kValues}, 3.0f, at::kCUDA);
  gpu->round(x.mutable_data_ptr<float>(), at::kHalf, kValues);
  const at::Tensor halves = at::empty({kValues}, x.options().dtype(at::kHalf));
  gpu->narrow(halves.mutable_data_ptr(), x.mul(2).const_data_ptr<float>(), at::kHalf, kValues);
  EXPECT_TRUE(halves.eq(6).all().item<bool>());
}

TEST_F(Table, ConversionsHaveTheCpusBits) {
  const std::vector<float> x = numbers(2);
  for (const at::ScalarType half : {at::kBFloat16, at::kHalf}) {
    const std::vector<uint16_t> halves = narrowed(x, half);
    const std::vector<float> back = widened(halves, half);
    Range<float> values(x), wide(x.size());
    Range<uint16_t> out(x.size());
    gpu->narrow(out.data(), values.data(), half, kValues);
    EXPECT_EQ(out.values(), halves);
    gpu->widen(wide.data(), out.data(), half, kValues);
    EXPECT_EQ(wide.values(), back);
    gpu->narrow_in_place(wide.data(), half, kValues);
    std::vector<float> packed = wide.values();
    EXPECT_EQ(std::memcmp(packed.data(), halves.data(), halves.size() * 2), 0);
    char* bytes = reinterpret_cast<char*>(packed.data());
    std::memcpy(bytes + 2 * kValues, halves.data(), halves.size() * 2);
    Range<float> in_place(packed);
    gpu->widen_in_place(in_place.data(), half, kValues);
    EXPECT_EQ(in_place.values(), back);
    gpu->round(values.data(), half, kValues);
    EXPECT_EQ(values.values(), back);
  }
  std::vector<uint16_t> high(x.size());
  ops::high_half(high.data(), x.data(), kValues);
  Range<float> values(x);
  Range<uint16_t> out(x.size());
  gpu->high_half(out.data(), values.data(), kValues);
  EXPECT_EQ(out.values(), high);
  EXPECT_THROW(gpu->round(values.data(), at::kDouble, kValues), c10::Error);
}

TEST_F(Table, SumsHaveTheCpusBits) {
  const std::vector<float> a = numbers(3), b = numbers(4), before = numbers(5);
  std::vector<float> expected(before);
  for (size_t i = 0; i < a.size(); ++i) expected[i] += a[i] + b[i];
  Range<float> first(a), second(b), out(before);
  const float* parts[] = {first.data(), second.data()};
  gpu->sum_in_order(out.data(), parts, 2, kValues, /*accumulate=*/true);
  EXPECT_EQ(out.values(), expected);
  EXPECT_THROW(gpu->sum_in_order(out.data(), parts, kMaxSummands + 1, kValues, true), c10::Error);

  for (const at::ScalarType half : {at::kBFloat16, at::kHalf}) {
    Range<uint16_t> one(narrowed(a, half)), two(narrowed(b, half));
    const std::vector<float> x = widened(one.values(), half), y = widened(two.values(), half);
    for (size_t i = 0; i < x.size(); ++i) expected[i] = x[i] + y[i];
    const void* halves[] = {one.data(), two.data()};
    gpu->sum_halves(out.data(), halves, 2, half, kValues, /*accumulate=*/false);
    EXPECT_EQ(out.values(), expected);
    gpu->sum_halves_rounded(two.data(), halves, 2, half, kValues);
    EXPECT_EQ(two.values(), narrowed(expected, half));
  }

  const std::vector<float> many = numbers(6, 300'000'007);  // more partial sums than the scratch begins with
  Range<float> on_device(many);
  Range<double> sum(1);
  for (const int64_t n : {int64_t{0}, int64_t{1}, kValues, static_cast<int64_t>(many.size())}) {
    gpu->sum_of_squares(sum.data(), on_device.data(), n);
    EXPECT_EQ(sum.values()[0], ops::sum_of_squares(many.data(), n)) << n;
  }
}

/// A long chain on one stream, and a copy on another that waits for its event alone.
TEST_F(Table, StreamsAreOrderedByTheirEvents) {
  const Stream first = gpu->make_stream(device::Priority::highest), second = gpu->make_stream(device::Priority::normal);
  const Event begun = gpu->make_event(true), summed = gpu->make_event(true);
  const std::vector<float> ones(size_t{1} << 24, 1.0f);
  Range<float> sum(std::vector<float>(ones.size(), 0.0f)), part(ones);
  std::vector<float> seen(ones.size());
  ASSERT_EQ(gpu->pin(seen.data(), static_cast<int64_t>(seen.size() * sizeof(float))), "");
  gpu->wait();
  EXPECT_TRUE(gpu->has_happened(summed)) << "it was never recorded";
  gpu->set_stream(first);
  gpu->record(begun);
  const float* parts[] = {part.data()};
  for (int i = 0; i < 200; ++i)
    gpu->sum_in_order(sum.data(), parts, 1, static_cast<int64_t>(ones.size()), /*accumulate=*/true);
  gpu->record(summed);
  gpu->set_stream(second);
  gpu->wait_for(summed);
  gpu->enqueue_copy(seen.data(), sum.data(), static_cast<int64_t>(seen.size() * sizeof(float)));
  const Event copied = gpu->make_event(false);
  gpu->record(copied);
  gpu->await(copied);
  EXPECT_TRUE(gpu->has_happened(summed));
  EXPECT_EQ(seen, std::vector<float>(ones.size(), 200.0f));
  EXPECT_GT(gpu->seconds_between(begun, summed), 0);
  gpu->set_stream(nullptr);
  gpu->unpin(seen.data());
  for (const Event event : {begun, summed, copied}) gpu->free_event(event);
  gpu->free_stream(first), gpu->free_stream(second);
}

/// Sums on two streams, joined by events, are captured and not done; each launch does them. Nothing is captured from CUDA's default
/// stream, so the first one is not that.
TEST_F(Table, AGraphRepeatsWhatItsStreamsWereGiven) {
  const Stream other = gpu->make_stream(device::Priority::normal);
  const Event fork = gpu->make_event(false), join = gpu->make_event(false), before = gpu->make_event(false);
  Range<float> first(std::vector<float>(kValues, 0.0f)), second(std::vector<float>(kValues, 0.0f)),
      ones(std::vector<float>(kValues, 1.0f));
  const float *one[] = {ones.data()}, *sum[] = {first.data()};
  gpu->wait();
  gpu->record(before);
  gpu->begin_graph();
  gpu->sum_in_order(first.data(), one, 1, kValues, /*accumulate=*/true);
  gpu->record(fork);
  gpu->set_stream(other);
  gpu->wait_for(fork);
  gpu->sum_in_order(second.data(), sum, 1, kValues, /*accumulate=*/true);
  gpu->record(join);
  gpu->set_stream(nullptr);
  gpu->wait_for(join);
  const device::Graph graph = gpu->end_graph();
  EXPECT_EQ(gpu->graph_nodes(graph), 2);
  EXPECT_EQ(first.values(), std::vector<float>(kValues, 0.0f)) << "captured work is not done";
  for (int i = 0; i < 3; ++i) gpu->launch(graph);
  EXPECT_EQ(first.values(), std::vector<float>(kValues, 3.0f));
  EXPECT_EQ(second.values(), std::vector<float>(kValues, 6.0f)) << "1 + 2 + 3";
  gpu->free_graph(graph);
  gpu->begin_graph();
  EXPECT_THROW(gpu->wait_for(before), c10::Error) << "an event from before a capture";
  EXPECT_THROW(gpu->free_graph(gpu->end_graph()), c10::Error);
  for (const Event event : {fork, join, before}) gpu->free_event(event);
  gpu->free_stream(other);
}

/// Behind a chain of sums the stream says that it came there.
TEST_F(Table, AStreamWritesHowFarItIs) {
  std::vector<uint32_t> words(1024, 0);
  const auto bytes = static_cast<int64_t>(words.size() * sizeof(uint32_t));
  EXPECT_FALSE(gpu->write_word(words.data(), 1)) << "memory that is not page-locked";
  ASSERT_EQ(gpu->pin(words.data(), bytes), "");
  EXPECT_TRUE(gpu->write_word(words.data() + 16, 7));
  gpu->wait();
  EXPECT_EQ(words[16], 7u);
  EXPECT_EQ(words[0], 0u);
  EXPECT_EQ(gpu->fault(), "");
  gpu->unpin(words.data());
}

TEST_F(Table, UpdatesHaveTheCpusBits) {
  const std::vector<float> zeros(kValues, 0.0f), g = numbers(8);
  const size_t blocks = (kValues + 255) / 256;
  std::vector<float> p = numbers(7), m_scales(blocks), v_scales(blocks);
  std::vector<uint8_t> m(kValues), v(kValues);
  ops::quantise_blocks(m.data(), m_scales.data(), zeros.data(), kValues, ops::DynamicMap::with_sign());
  ops::quantise_blocks(v.data(), v_scales.data(), zeros.data(), kValues, ops::DynamicMap::without_sign());
  Range<float> p_there(p), m_scales_there(m_scales), v_scales_there(v_scales), g_there(g);
  Range<uint8_t> m_there(m), v_there(v);
  Range<uint16_t> half_there(narrowed(g, at::kBFloat16));
  for (int64_t step = 1; step <= 2; ++step) {
    const bool half = step == 2;
    const ops::AdamWStep numbers_of_step{.step = step, .lr = 1e-3, .weight_decay = 0.01};
    const std::vector<float> gradient = half ? widened(half_there.values(), at::kBFloat16) : g;
    ops::adamw({.fp32 = p.data()}, {.codes = m.data(), .scales = m_scales.data()},
               {.codes = v.data(), .scales = v_scales.data()}, gradient.data(), kValues, numbers_of_step);
    const ops::GradientRange range =
        half ? ops::GradientRange{.bf16 = half_there.data()} : ops::GradientRange{.fp32 = g_there.data()};
    gpu->adamw({.fp32 = p_there.data()}, {.codes = m_there.data(), .scales = m_scales_there.data()},
               {.codes = v_there.data(), .scales = v_scales_there.data()}, range, kValues, numbers_of_step);
    EXPECT_EQ(p_there.values(), p) << step;
    EXPECT_EQ(m_there.values(), m) << step;
    EXPECT_EQ(v_there.values(), v) << step;
    EXPECT_EQ(v_scales_there.values(), v_scales) << step;
  }
}

TEST_F(Table, StochasticRoundingDrawsTheHostsNumbers) {
  const std::vector<float> zeros(kValues, 0.0f), g = numbers(10);
  const RandomKey key(5, Purpose::rounding, 1, 2);
  std::vector<uint16_t> p = narrowed(numbers(9), at::kBFloat16);
  std::vector<float> m = zeros, v = zeros;
  Range<uint16_t> p_there(p);
  Range<float> m_there(m), v_there(v), g_there(g);
  const ops::AdamWStep step{.lr = 1e-3};
  ops::adamw({.bf16 = p.data(), .rounding = {&key, 77}}, {.fp32 = m.data()}, {.fp32 = v.data()}, g.data(), kValues,
             step);
  gpu->adamw({.bf16 = p_there.data(), .rounding = {&key, 77}}, {.fp32 = m_there.data()}, {.fp32 = v_there.data()},
             {.fp32 = g_there.data()}, kValues, step);
  EXPECT_EQ(p_there.values(), p);
}

TEST_F(Table, QuantisersHaveTheCpusBits) {
  const std::vector<float> x = numbers(11);
  std::vector<int8_t> q(x.size());
  std::vector<float> scales((x.size() + 255) / 256), back(x.size());
  ops::quantise_int8(q.data(), scales.data(), x.data(), kValues);
  ops::dequantise_int8(back.data(), q.data(), scales.data(), kValues);
  Range<float> from(x), scales_there(scales.size()), out(x.size());
  Range<int8_t> q_there(x.size());
  gpu->quantise_int8(q_there.data(), scales_there.data(), from.data(), kValues);
  gpu->dequantise_int8(out.data(), q_there.data(), scales_there.data(), kValues);
  EXPECT_EQ(q_there.values(), q);
  EXPECT_EQ(scales_there.values(), scales);
  EXPECT_EQ(out.values(), back);

  for (const DType format : {DType::f8_e4m3, DType::f8_e5m2}) {
    const ops::Fp8Tiles tiles{.rows = 300, .cols = 333, .tile_rows = 128, .tile_cols = 128, .format = format};
    const auto n = static_cast<size_t>(tiles.rows * tiles.cols), count = static_cast<size_t>(tiles.count());
    std::vector<uint8_t> codes(n);
    std::vector<float> fp8_scales(count), fp8_back(n);
    ops::quantise_fp8(codes.data(), fp8_scales.data(), x.data(), tiles);
    ops::dequantise_fp8(fp8_back.data(), codes.data(), fp8_scales.data(), tiles);
    Range<uint8_t> codes_there(n);
    Range<float> fp8_scales_there(count), fp8_out(n);
    gpu->quantise_fp8(codes_there.data(), fp8_scales_there.data(), from.data(), tiles);
    gpu->dequantise_fp8(fp8_out.data(), codes_there.data(), fp8_scales_there.data(), tiles);
    EXPECT_EQ(codes_there.values(), codes);
    EXPECT_EQ(fp8_scales_there.values(), fp8_scales);
    EXPECT_EQ(fp8_out.values(), fp8_back);
  }
}

}  // namespace
}  // namespace tessera::device
