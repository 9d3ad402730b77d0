// The functions of the table beside their twins of CPUs, and what they refuse.
#include <thread>

#include "memory.h"
#include "same_bits.h"
#include "tessera/base/check.h"
#include "tessera/ops/adamw.h"
#include "tessera/ops/bf16.h"
#include "tessera/ops/eight_bit.h"
#include "tessera/ops/half.h"
#include "torch_device.h"

namespace tessera::testing {

namespace {

/// Values on the device, taken from the table.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values) : size_(values.size()), data_(backend().take(bytes())) {
    backend().copy(data_, values.data(), bytes());
  }
  ~OnDevice() { backend().give(data_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  operator T*() const { return static_cast<T*>(data_); }
  std::vector<T> values() const {
    std::vector<T> out(size_);
    backend().copy(out.data(), data_, bytes());
    return out;
  }

 private:
  static const device::Backend& backend() { return simulated_device(); }
  int64_t bytes() const { return static_cast<int64_t>(size_ * sizeof(T)); }
  size_t size_;
  void* data_;
};

constexpr int64_t kCount = 2 * 65536 + 391;  // several blocks of everything, and a part of one

std::vector<float> normal(uint64_t seed, int64_t n = kCount) {
  const Tensor x = at::randn({n}, at::detail::createCPUGenerator(seed), at::kFloat);
  return {x.const_data_ptr<float>(), x.const_data_ptr<float>() + n};
}
std::vector<uint16_t> halves_of(const std::vector<float>& x, at::ScalarType half) {
  std::vector<uint16_t> out(x.size());
  ops::narrow(out.data(), x.data(), half, static_cast<int64_t>(x.size()));
  return out;
}

const device::Backend& backend() { return simulated_device(); }

/// Memory of the table, and how many tensors have it.
class Counting final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes ? backend().take(static_cast<int64_t>(bytes)) : nullptr;
    live += data != nullptr;
    const int index = data ? memory().device_of(data) : 0;
    return {data, data, raw_deleter(), c10::Device(at::kPrivateUse1, static_cast<c10::DeviceIndex>(index))};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return [](void* data) { backend().give(data), live -= data != nullptr; };
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    backend().copy(to, from, static_cast<int64_t>(bytes));
  }
  static inline int live = 0;
};

class Halves : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(Halves, AreConvertedAsOnTheCpu) {
  const at::ScalarType half = GetParam();
  const std::vector<float> x = normal(1);
  const std::vector<uint16_t> narrow = halves_of(x, half);
  std::vector<float> wide(x.size());
  ops::widen(wide.data(), narrow.data(), half, kCount);

  const OnDevice<float> from(x), back(wide), rounded(x), in_place(x);
  const OnDevice<uint16_t> to(std::vector<uint16_t>(x.size()));
  backend().narrow(to, from, half, kCount);
  EXPECT_EQ(to.values(), narrow);
  backend().widen(back, to, half, kCount);
  EXPECT_EQ(back.values(), wide);
  backend().round(rounded, half, kCount);
  EXPECT_EQ(rounded.values(), wide);

  std::vector<float> expected = x;
  ops::narrow_in_place(expected.data(), half, kCount);
  backend().narrow_in_place(in_place, half, kCount);
  EXPECT_EQ(std::memcmp(in_place.values().data(), expected.data(), 2 * kCount), 0);
  std::memmove(reinterpret_cast<uint16_t*>(expected.data()) + kCount, narrow.data(), 2 * kCount);
  const OnDevice<float> packed(expected);
  backend().widen_in_place(packed, half, kCount);
  EXPECT_EQ(packed.values(), wide);
}

TEST_P(Halves, AreAddedInRankOrder) {
  const at::ScalarType half = GetParam();
  std::vector<std::vector<float>> wide;
  std::vector<std::unique_ptr<OnDevice<uint16_t>>> parts;
  std::vector<const void*> pointers;
  for (uint64_t p = 0; p < 3; ++p) {
    const auto narrow = halves_of(normal(p), half);
    wide.emplace_back(narrow.size());
    ops::widen(wide.back().data(), narrow.data(), half, kCount);
    parts.push_back(std::make_unique<OnDevice<uint16_t>>(narrow));
    pointers.push_back(static_cast<uint16_t*>(*parts.back()));
  }
  std::vector<float> sum(wide[0]), twice(sum.size());
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = (wide[0][i] + wide[1][i]) + wide[2][i], twice[i] = sum[i] + sum[i];

  const OnDevice<float> out(normal(9));
  backend().sum_halves(out, pointers.data(), 3, half, kCount, /*accumulate=*/false);
  EXPECT_EQ(out.values(), sum);
  backend().sum_halves(out, pointers.data(), 3, half, kCount, /*accumulate=*/true);
  EXPECT_EQ(out.values(), twice);
  backend().sum_halves_rounded(*parts[1], pointers.data(), 3, half, kCount);  // into one of the parts
  EXPECT_EQ(parts[1]->values(), halves_of(sum, half));
}

INSTANTIATE_TEST_SUITE_P(, Halves, ::testing::Values(at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

}  // namespace

TEST(SimulatedTable, HasDevicesWithMemoryOfTheirOwn) {
  const device::Backend& table = backend();
  ASSERT_EQ(table.count(), 8);
  EXPECT_EQ(table.version, device::kBackendVersion);
  EXPECT_EQ(table.type, at::kPrivateUse1);
  EXPECT_NE(table.properties(0).uuid, table.properties(1).uuid);
  const int64_t free[] = {table.properties(0).free, table.properties(1).free};
  table.place(1);
  void* data = table.take(1000);
  EXPECT_EQ(memory().device_of(data), 1);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 512, 0);
  EXPECT_EQ(table.properties(1).free, free[1] - 1000);
  EXPECT_EQ(table.properties(0).free, free[0]);
  table.give(data);
  EXPECT_EQ(table.take(table.properties(1).bytes + 1), nullptr) << "more than there is";
  table.place(0);
  EXPECT_THROW(table.place(8), c10::Error);
}

TEST(SimulatedTable, GivesItsAllocatorEveryNewTensor) {
  const Tensor before = on_device(at::ones({3}));
  static Counting allocator;
  backend().allocate_by(&allocator);
  {
    const Tensor x = on_device(at::ones({3})), y = x + before, part = y.slice(0, 1);
    EXPECT_EQ(Counting::live, 2) << "of the host's values and of the sum; a view has none";
    EXPECT_EQ(part.sum().item<float>(), 4);
    EXPECT_TRUE(at::empty({5}, x.options()).isnan().all().item<bool>());
  }
  EXPECT_EQ(Counting::live, 0);
}

TEST(SimulatedTable, IsWhatTheProcessComputesOnOnceItIsUsed) {
  if (device::used()) GTEST_SKIP() << "a test before it, in another order, began to use it";
  EXPECT_EQ(device::here().type(), at::kCPU);
  device::enter_thread();  // of a process on the CPU: does nothing
  device::use(backend(), 1);
  EXPECT_EQ(device::used(), &backend());
  EXPECT_EQ(device::here().type(), at::kPrivateUse1);
  const auto place = [] { return at::empty({1}, at::TensorOptions(device::here().type())).device().index(); };
  EXPECT_EQ(place(), 1);
  int before = -1, after = -1;
  std::thread([&] { before = current_device(), device::enter_thread(), after = place(); }).join();
  EXPECT_EQ(before, 0) << "threads begin on the first device";
  EXPECT_EQ(after, 1);
  device::use(backend(), 0);  // for the tests that follow
}

/// With CUDA it would get a context on device 0, half a GiB of another rank's GPU, and be answered by that one.
TEST(SimulatedTable, AThreadThatWasNotPlacedEndsTheProcess) {
  const auto ask = [](bool placed) {
    std::thread([&] {
      if (placed) device::enter_thread();
      EXPECT_EQ(backend().fault(), "");
    }).join();
  };
  device::use(backend(), 1);
  ask(true);
  EXPECT_DEATH(ask(false), "a thread that computes on device 1 was not placed there: it is on device 0");
  device::use(backend(), 0);
  ask(false);
}

TEST(SimulatedTable, CopiesStayWithinAnAllocation) {
  const std::vector<float> x = normal(1, 100);
  const OnDevice<float> a(x), b(std::vector<float>(100));
  float *from = a, *to = b;
  backend().copy(to + 50, from, 200);
  EXPECT_EQ(b.values()[99], x[49]);
  EXPECT_THROW(backend().copy(to + 60, from, 200), c10::Error) << "beyond its end";
  EXPECT_THROW(backend().copy(from + 10, from, 100), c10::Error) << "overlapping";
  const OnDevice<double> sum({0.0});
  EXPECT_THROW(backend().sum_of_squares(sum, x.data(), 100), c10::Error) << "host memory";
  EXPECT_THROW(backend().sum_of_squares(sum, reinterpret_cast<float*>(reinterpret_cast<char*>(from) + 2), 9),
               c10::Error);
  std::vector<float> host(100);
  EXPECT_THROW(backend().copy(host.data(), memory().shadow(from, 100), 400), c10::Error) << "a kernel's address";
}

TEST(SimulatedTable, RemembersWhatIsPinned) {
  std::vector<char> block(4096);
  ASSERT_EQ(backend().pin(block.data(), 3000), "");
  EXPECT_EQ(pinned_bytes(), 3000);
  EXPECT_TRUE(is_pinned(block.data() + 100, 2900));
  EXPECT_FALSE(is_pinned(block.data() + 100, 2901));
  EXPECT_NE(backend().pin(block.data() + 2999, 10), "") << "twice";
  backend().unpin(block.data());
  EXPECT_EQ(pinned_bytes(), 0);
  EXPECT_THROW(backend().unpin(block.data()), c10::Error);
}

/// As CUDA's driver does with 512 GiB, and CUDA with a copy that two registrations share.
TEST(SimulatedTable, RefusesToPinTooMuchAtOnceAndCopiesThatTwoPinsShare) {
  EXPECT_EQ(backend().most_pinned(), int64_t{64} << 30);
  setenv("TESSERA_SIMULATED_PIN", "4096", 1);
  std::vector<char> block(3 * 4096);
  EXPECT_NE(backend().pin(block.data(), 4097), "");
  ASSERT_EQ(backend().pin(block.data(), 4096), "");
  ASSERT_EQ(backend().pin(block.data() + 4096, 4096), "");
  EXPECT_TRUE(is_pinned(block.data() + 4000, 200)) << "in two pieces";
  EXPECT_FALSE(is_pinned(block.data() + 8000, 200));
  const OnDevice<char> there(std::vector<char>(200));
  EXPECT_THROW(backend().copy(there, block.data() + 4000, 200), c10::Error) << "of two registrations";
  EXPECT_THROW(backend().enqueue_copy(block.data() + 4000, there, 200), c10::Error);
  EXPECT_THROW(backend().copy(there, block.data() + 8100, 200), c10::Error) << "of one, and of none";
  backend().copy(there, block.data() + 4096, 200);
  backend().copy(there, block.data() + 8192, 200);
  backend().unpin(block.data()), backend().unpin(block.data() + 4096);
  unsetenv("TESSERA_SIMULATED_PIN");
}

TEST(SimulatedTable, FillsBytes) {
  const OnDevice<char> there(std::vector<char>(100, 'a'));
  backend().fill(static_cast<char*>(there) + 10, 'b', 80);
  const std::vector<char> found = there.values();
  EXPECT_EQ(std::string(found.begin(), found.end()),
            std::string(10, 'a') + std::string(80, 'b') + std::string(10, 'a'));
  EXPECT_THROW(backend().fill(there, 0, 101), c10::Error) << "beyond its end";
}

TEST(SimulatedTable, AddsInOrderAndSquaresAsTheCpu) {
  std::vector<float> x = normal(1), y = normal(2), sum(x.size());
  for (size_t i = 0; i < x.size(); ++i) sum[i] = x[i] + y[i];
  const OnDevice<float> a(x), b(y), out(normal(3));
  const float* parts[] = {a, b};
  backend().sum_in_order(out, parts, 2, kCount, /*accumulate=*/false);
  EXPECT_EQ(out.values(), sum);
  for (float& value : sum) value += value;
  backend().sum_in_order(out, parts, 2, kCount, /*accumulate=*/true);
  EXPECT_EQ(out.values(), sum);
  const OnDevice<double> squares({0.0});
  backend().sum_of_squares(squares, a, kCount);
  EXPECT_EQ(squares.values()[0], ops::sum_of_squares(x.data(), kCount));
  EXPECT_THROW(backend().sum_in_order(out, parts, device::kMaxSummands + 1, kCount, false), c10::Error);

  std::vector<uint16_t> high(x.size());
  ops::high_half(high.data(), x.data(), kCount);
  const OnDevice<uint16_t> halves(std::vector<uint16_t>(x.size()));
  backend().high_half(halves, a, kCount);
  EXPECT_EQ(halves.values(), high);
}

TEST(SimulatedTable, UpdatesParametersAsTheCpu) {
  const ops::AdamWStep step{.step = 3, .lr = 1e-3, .weight_decay = 0.01, .grad_scale = 0.5};
  const auto blocks = static_cast<size_t>(div_up(kCount, 256));
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    std::vector<float> p = normal(1), g = normal(2), first_scales(blocks, 0.1f), second_scales(blocks, 0.2f);
    std::vector<uint8_t> first(p.size(), 140), second(p.size(), 90);
    const std::vector<uint16_t> narrow = halves_of(g, type == at::kFloat ? at::kHalf : type);
    const OnDevice<float> dp(p), dg(g), dm_scales(first_scales), dv_scales(second_scales);
    const OnDevice<uint8_t> dm(first), dv(second);
    const OnDevice<uint16_t> dn(narrow);
    ops::GradientRange gradient;
    if (type == at::kFloat) gradient.fp32 = dg;
    if (type == at::kBFloat16) gradient.bf16 = dn;
    if (type == at::kHalf) gradient.fp16 = dn;
    if (type != at::kFloat) ops::widen(g.data(), narrow.data(), type, kCount);

    ops::adamw({.fp32 = p.data()}, {.codes = first.data(), .scales = first_scales.data()},
               {.codes = second.data(), .scales = second_scales.data()}, g.data(), kCount, step);
    backend().adamw({.fp32 = dp}, {.codes = dm, .scales = dm_scales}, {.codes = dv, .scales = dv_scales}, gradient,
                    kCount, step);
    EXPECT_EQ(dp.values(), p) << type;
    EXPECT_EQ(dm.values(), first) << type;
    EXPECT_EQ(dv_scales.values(), second_scales) << type;
  }
}

TEST(SimulatedTable, RoundsParametersAtRandomAsTheCpu) {
  const RandomKey key(5, Purpose::rounding, 1, 0);
  const ops::AdamWStep step{.lr = 1e-2};
  const std::vector<float> x = normal(1), g = normal(2);
  std::vector<uint16_t> p = halves_of(x, at::kBFloat16), m(p.size()), low(p.size());
  std::vector<float> v(p.size());
  const OnDevice<uint16_t> dp(p), dm(m);
  const OnDevice<float> dv(v), dg(g);
  const ops::Rounding rounding{&key, 77};
  ops::adamw({.bf16 = p.data(), .rounding = rounding}, {.bf16 = m.data(), .rounding = rounding}, {.fp32 = v.data()},
             g.data(), kCount, step);
  backend().adamw({.bf16 = dp, .rounding = rounding}, {.bf16 = dm, .rounding = rounding}, {.fp32 = dv}, {.fp32 = dg},
                  kCount, step);
  EXPECT_EQ(dp.values(), p);
  EXPECT_EQ(dm.values(), m);
  EXPECT_EQ(dv.values(), v);
}

TEST(SimulatedTable, QuantisesAsTheCpu) {
  const std::vector<float> x = normal(1);
  const auto blocks = static_cast<size_t>(div_up(kCount, 256));
  std::vector<int8_t> q(x.size());
  std::vector<float> scales(blocks), back(x.size());
  ops::quantise_int8(q.data(), scales.data(), x.data(), kCount);
  ops::dequantise_int8(back.data(), q.data(), scales.data(), kCount);
  const OnDevice<float> dx(x), d_scales(std::vector<float>(blocks, 0.0f)), d_back(normal(2));
  const OnDevice<int8_t> dq(std::vector<int8_t>(x.size()));
  backend().quantise_int8(dq, d_scales, dx, kCount);
  backend().dequantise_int8(d_back, dq, d_scales, kCount);
  EXPECT_EQ(dq.values(), q);
  EXPECT_EQ(d_scales.values(), scales);
  EXPECT_EQ(d_back.values(), back);

  const ops::Fp8Tiles tiles{.rows = 65, .cols = 97, .tile_rows = 8, .tile_cols = 32};
  const int64_t n = tiles.rows * tiles.cols;
  const auto tile_count = static_cast<size_t>(tiles.count());
  std::vector<uint8_t> codes(static_cast<size_t>(n));
  std::vector<float> tile_scales(tile_count), tile_back(static_cast<size_t>(n));
  ops::quantise_fp8(codes.data(), tile_scales.data(), x.data(), tiles);
  ops::dequantise_fp8(tile_back.data(), codes.data(), tile_scales.data(), tiles);
  const OnDevice<uint8_t> d_codes(std::vector<uint8_t>(static_cast<size_t>(n)));
  const OnDevice<float> d_tile_scales(std::vector<float>(tile_count, 0.0f)), d_tile_back(normal(3, n));
  backend().quantise_fp8(d_codes, d_tile_scales, dx, tiles);
  backend().dequantise_fp8(d_tile_back, d_codes, d_tile_scales, tiles);
  EXPECT_EQ(d_codes.values(), codes);
  EXPECT_EQ(d_tile_scales.values(), tile_scales);
  EXPECT_EQ(d_tile_back.values(), tile_back);
}

}  // namespace tessera::testing
