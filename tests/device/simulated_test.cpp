#include "simulated.h"

#include <atomic>
#include <thread>

#include "memory.h"
#include "same_bits.h"

namespace tessera::testing {

namespace {

Tensor normal(at::IntArrayRef sizes, uint64_t seed = 1) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::kFloat);
}
Tensor indices(const std::vector<int64_t>& values) { return at::tensor(values, at::kLong); }

/// A function of tensors, run on the CPU and on the device.
struct Case {
  std::string name;
  Tensors inputs;
  std::function<Tensors(const Tensors& x)> run;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

Tensors list(std::initializer_list<Tensor> tensors) { return tensors; }
template <class Tuple>
Tensors both(const Tuple& pair) {
  return {std::get<0>(pair), std::get<1>(pair)};
}

std::vector<Case> operators() {
  const Tensor a = normal({6, 10}), b = normal({6, 10}, 2), w = normal({10, 7}, 3), image = normal({2, 4, 9, 8}, 4),
               clip = normal({1, 4, 3, 6, 5}, 5);
  return {
      {"sums",
       {a, b},
       [](auto& x) {
         return list({x[0] + x[1], x[0] * 2.5, 1 - x[0], x[0].add(x[1], 0.3)});
       }},
      {"types",
       {a},
       [](auto& x) {
         return list({x[0].to(at::kBFloat16), x[0].to(at::kHalf).exp(), x[0].gt(0)});
       }},
      {"products",
       {a, w, b},
       [](auto& x) {
         return list({x[0].matmul(x[1]), x[0].mm(x[2].t()), x[0].t().mm(x[2])});
       }},
      {"linear",
       {a, w, b},
       [](auto& x) {
         return list({at::linear(x[0], x[1].t()), at::mv(x[0], x[2][0])});
       }},
      {"batches", {image, image}, [](auto& x) { return list({x[0].matmul(x[1].transpose(2, 3))}); }},
      {"views",
       {image},
       [](auto& x) {
         const Tensor y = x[0].permute({0, 2, 3, 1});
         return list({y, y.select(1, 2), y.slice(2, 1, 8, 3), y.reshape({-1, 4}), x[0].view({2, -1}), y.flatten(0, 2),
                      x[0].expand({3, 2, 4, 9, 8}), x[0].unfold(3, 3, 2), x[0].view(at::kInt), x[0].narrow(1, 1, 2),
                      x[0].squeeze(0).unsqueeze(2), x[0].chunk(2, 1)[1], x[0].diagonal(0, 2, 3), x[0].detach()});
       }},
      {"in_place",
       {a.clone(), b},
       [](auto& x) {
         x[0].slice(1, 2, 5).add_(1).mul_(x[1].slice(1, 0, 3));
         x[0].t().select(0, 9).zero_();
         x[0].select(0, 1).copy_(x[1].select(0, 3).to(at::kBFloat16));
         x[0].narrow(0, 4, 2).fill_(7).sub_(x[1].narrow(0, 0, 2)).clamp_max_(6.5);
         return list({x[0]});
       }},
      {"overlapping_storage",
       {a.clone()},
       [](auto& x) {
         x[0].slice(1, 0, 5).add_(x[0].slice(1, 5, 10));
         x[0].slice(1, 5, 10).mul_(x[0].slice(1, 0, 5));
         return list({x[0]});
       }},
      {"results_given",
       {a, b},
       [](auto& x) {
         Tensor sum = at::empty_like(x[0]), grown = at::empty({0}, x[0].options()), part = at::zeros_like(x[0]);
         Tensor rows = part.slice(0, 1, 4);
         at::add_out(sum, x[0], x[1]);
         at::mul_out(grown, x[0], x[1]);
         at::addcmul_out(rows, x[0].slice(0, 0, 3), x[1].slice(0, 1, 4), x[1].slice(0, 2, 5));
         return list({sum, grown, part});
       }},
      {"lists",
       {a, b},
       [](auto& x) {
         Tensors out = {at::cat({x[0], x[1].slice(0, 0, 2)}), at::stack({x[0], x[1]}, 1)};
         for (const Tensor& t : x[0].split(4)) out.push_back(t);
         for (const Tensor& t : at::unbind(x[1], 1)) out.push_back(t);
         return out;
       }},
      {"indices",
       {a, b},
       [](auto& x) {
         const Tensor rows = indices({4, 0, 4, 2}).to(x[0].device());
         Tensor added = x[0].clone(), put = x[0].clone();
         added.index_add_(0, rows, x[1].slice(0, 0, 4));
         put.index_put_({rows}, x[1].slice(0, 1, 5), /*accumulate=*/true);
         return list({x[0].index({rows}), x[0].index_select(1, rows), added, put, x[0].index({indices({1, 1})}),
                      x[0].gather(1, rows.unsqueeze(0)), x[0].masked_select(x[1].gt(0)), x[1].gt(0).nonzero(),
                      at::embedding(x[0], rows), x[0].masked_fill(x[1].gt(0), 3)});
       }},
      {"reductions",
       {image},
       [](auto& x) {
         return list({x[0].sum(), x[0].sum({1, 3}), x[0].mean(2), x[0].amax({2}), x[0].square().sum(-1, true).sqrt(),
                      x[0].softmax(-1), x[0].log_softmax(1), x[0].std(3), at::norm(x[0]), x[0].cumsum(2)});
       }},
      {"several_results",
       {a},
       [](auto& x) {
         Tensors out = both(x[0].sort(1)), top = both(x[0].topk(3)), most = both(x[0].max(1));
         out.insert(out.end(), {top[0], top[1], most[0], most[1]});
         return out;
       }},
      {"norms",
       {image, normal({4}, 6), normal({4}, 7), normal({8}, 8)},
       [](auto& x) {
         return list({at::layer_norm(x[0], {8}, x[3], x[3]), at::group_norm(x[0], 2, x[1], x[2]),
                      at::rms_norm(x[0], {8}, x[3])});
       }},
      {"activations",
       {image},
       [](auto& x) {
         return list({at::gelu(x[0], "tanh"), at::silu(x[0]), at::elu(x[0]), x[0].sigmoid(), x[0].tanh()});
       }},
      {"convolutions",
       {image, normal({6, 4, 3, 3}, 9), normal({6}, 10), clip, normal({6, 4, 3, 3, 3}, 11), normal({4, 5, 2, 2}, 12)},
       [](auto& x) {
         return list({at::conv2d(x[0], x[1], x[2], 2, 1), at::conv3d(x[3], x[4], x[2], 1, 1),
                      at::conv_transpose2d(x[0], x[5], {}, 2),
                      at::conv1d(x[0].select(2, 0), x[1].select(3, 0), x[2], 1, 2),
                      at::conv2d(x[0].contiguous(at::MemoryFormat::ChannelsLast), x[1])});
       }},
      {"pictures",
       {image},
       [](auto& x) {
         return list({at::upsample_nearest2d(x[0], {18, 16}), at::upsample_bilinear2d(x[0], {5, 5}, false),
                      at::constant_pad_nd(x[0], {1, 2}, 0.5), at::reflection_pad2d(x[0], {1, 1, 2, 0}),
                      at::avg_pool2d(x[0], 2), at::pixel_shuffle(x[0], 2)});
       }},
      {"attention",
       {normal({1, 2, 20, 8}, 13), normal({1, 2, 20, 8}, 14), normal({1, 2, 20, 8}, 15)},
       [](auto& x) { return list({at::scaled_dot_product_attention(x[0], x[1], x[2])}); }},
      {"new_tensors",
       {a},
       [](auto& x) {
         const auto like = x[0].options();
         return list({at::zeros({2, 3}, like), at::ones_like(x[0]), at::full({3}, 2.5, like), at::arange(7, like),
                      at::linspace(0, 1, 5, like), at::eye(3, like), x[0].new_zeros({4}), x[0].clone(),
                      at::scalar_tensor(3, like), at::tril_indices(3, 4, 0, like.dtype(at::kLong)),
                      at::zeros({2, 3, 4, 5}, like.memory_format(at::MemoryFormat::ChannelsLast))});
       }},
      {"storage",
       {a.clone(), b},
       [](auto& x) {
         Tensor shared = at::empty({0}, x[0].options()), larger = x[1].clone();
         shared.set_(x[0].storage(), 3, {2, 4}, {10, 1});
         shared.add_(1);
         larger.resize_({60});
         larger.resize_({2, 5});
         return list({x[0], shared, larger});
       }},
      {"choices",
       {a, b},
       [](auto& x) {
         return list({at::where(x[0].gt(0), x[0], x[1]), at::lerp(x[0], x[1], 0.3), x[0].clamp(-1, 1)});
       }},
  };
}

class Operators : public ::testing::TestWithParam<Case> {};

TEST_P(Operators, HaveTheBitsOfTheCpu) {
  const Case& c = GetParam();
  const Tensors device = on_device(c.inputs);  // before the CPU's run, which may write its inputs
  Tensors cpu;
  for (const Tensor& t : c.inputs) cpu.push_back(t.clone());
  const Tensors expected = c.run(cpu), found = c.run(device);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) expect_same_bits(found[i], expected[i], "result " + std::to_string(i));
  for (size_t i = 0; i < cpu.size(); ++i) expect_same_bits(device[i], cpu[i], "input " + std::to_string(i));
}

INSTANTIATE_TEST_SUITE_P(, Operators, ::testing::ValuesIn(operators()),
                         [](const auto& info) { return info.param.name; });

/// What is differentiable of them, and its gradients.
std::vector<Case> differentiable() {
  std::vector<Case> out;
  for (const Case& c : operators())
    for (const char* name : {"sums", "products", "linear", "batches", "norms", "activations", "convolutions",
                             "pictures", "attention", "choices", "lists", "reductions"})
      if (c.name == name) out.push_back(c);
  const Tensor a = normal({6, 10});
  out.push_back({"views_of_views", {a}, [](auto& x) {
                   const Tensor y = (x[0] * 2).view({3, 2, 10}).permute({2, 0, 1});
                   return list({y.slice(0, 2, 9, 2).exp(), y.select(1, 1).reshape({-1}), y.unfold(0, 4, 3) * 3});
                 }});
  out.push_back({"in_place_on_a_view", {a}, [](auto& x) {
                   Tensor y = x[0] * 3;
                   y.slice(1, 0, 4).mul_(x[0].slice(1, 4, 8));
                   return list({y});
                 }});
  return out;
}

class Gradients : public ::testing::TestWithParam<Case> {};

TEST_P(Gradients, HaveTheBitsOfTheCpu) {
  const Case& c = GetParam();
  const auto gradients = [&](Tensors inputs) {
    for (Tensor& t : inputs) t = t.detach().clone().requires_grad_();
    Tensors results, ups;
    for (const Tensor& y : c.run(inputs)) {
      results.push_back(y);
      const Tensor up = normal(y.sizes(), results.size());
      ups.push_back(y.is_cpu() ? up : on_device(up));
    }
    return torch::autograd::grad(results, inputs, ups, {}, false, /*allow_unused=*/true);
  };
  const Tensors expected = gradients(c.inputs), found = gradients(on_device(c.inputs));
  for (size_t i = 0; i < expected.size(); ++i) expect_same_bits(found[i], expected[i], "gradient " + std::to_string(i));
}

INSTANTIATE_TEST_SUITE_P(, Gradients, ::testing::ValuesIn(differentiable()),
                         [](const auto& info) { return info.param.name; });

std::string refusal(const std::function<void()>& run) {
  try {
    run();
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  }
  return "it was not refused";
}

}  // namespace

TEST(SimulatedDeviceDeathTest, HostCodeThatTouchesItsMemoryDies) {
  const Tensor x = on_device(normal({5}));
  auto* data = static_cast<volatile float*>(x.mutable_data_ptr());
  EXPECT_DEATH((void)data[2], "host code touched memory of the simulated device");
  EXPECT_DEATH(data[2] = 1, "host code touched memory of the simulated device");
  const auto* kernel = static_cast<volatile float*>(memory().shadow_bytes(x.const_data_ptr(), 20));
  (void)kernel[4];
  EXPECT_DEATH((void)kernel[512 / sizeof(float)], "outside of all allocations");
}

TEST(SimulatedDeviceDeathTest, MemoryThatWasGivenBackIsGone) {
  const device::Backend& backend = simulated_device();
  void* data = backend.take(64);
  const auto* kernel = static_cast<volatile char*>(memory().shadow_bytes(data, 64));
  backend.give(data);
  EXPECT_DEATH((void)kernel[0], "outside of all allocations");
  EXPECT_THROW(backend.give(data), c10::Error);
  EXPECT_THROW(backend.narrow_in_place(static_cast<float*>(data), at::kHalf, 4), c10::Error);
}

TEST(SimulatedDevice, IsKnownToLibTorchByItsName) {
  const Tensor x = on_device(normal({2, 3}), 1);
  EXPECT_EQ(x.device().str(), "simulated:1");
  EXPECT_TRUE(x.is_privateuseone());
  EXPECT_EQ((x + 1).device(), x.device()) << "also where another device is current";
  EXPECT_EQ(x.sum().item<float>(), x.cpu().sum().item<float>());
}

TEST(SimulatedDevice, NewMemoryIsNaN) {
  simulated_device();
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const auto options = at::TensorOptions(at::kPrivateUse1).dtype(type);
    EXPECT_TRUE(at::empty({70, 33}, options).isnan().all().item<bool>()) << type;
    EXPECT_TRUE(at::empty_strided({4, 5}, {5, 1}, options).isnan().all().item<bool>()) << type;
  }
  void* data = simulated_device().take(3 << 20);  // several pieces of the pattern
  std::vector<unsigned char> bytes(3 << 20);
  simulated_device().copy(bytes.data(), data, 3 << 20);
  EXPECT_EQ(std::count(bytes.begin(), bytes.end(), 0xff), 3 << 20);
  simulated_device().give(data);
}

TEST(SimulatedDevice, EachTimeThatAThreadAsksForMemoryIsCounted) {
  device::use(simulated_device(), 0);
  std::thread([] {
    const int64_t before = device::memory_requests();
    ASSERT_NE(device::scratch(0, 4096), nullptr);
    EXPECT_EQ(device::memory_requests(), before + 1);
    device::scratch(0, 4096), device::scratch(0, 512);
    EXPECT_EQ(device::memory_requests(), before + 1) << "it was there";
    device::scratch(0, 8192), device::scratch(1, 512);
    EXPECT_EQ(device::memory_requests(), before + 3);
  }).join();
}

TEST(SimulatedDevice, CopiesConvertAndFollowStrides) {
  const Tensor x = normal({7, 6});
  expect_same_bits(on_device(x.t()), x.t(), "transposed");
  expect_same_bits(on_device(x).to(at::kBFloat16), x.to(at::kBFloat16), "on the device");
  Tensor half = on_device(at::zeros({7, 6}, at::kHalf)), wide = at::zeros({6, 7});
  half.slice(1, 1, 5).copy_(x.slice(1, 0, 4));
  EXPECT_TRUE(at::equal(half.cpu().slice(1, 1, 5), x.slice(1, 0, 4).to(at::kHalf))) << "from the host";
  wide.t().copy_(half);
  EXPECT_TRUE(at::equal(wide.t(), half.cpu().to(at::kFloat))) << "to the host";
  EXPECT_TRUE(at::equal(on_device(on_device(x), 1).cpu(), x)) << "between devices";
}

TEST(SimulatedDevice, ViewsShareTheirStorage) {
  const Tensor x = on_device(normal({4, 6})), part = x.view({2, 12}).slice(1, 3, 9);
  EXPECT_TRUE(part.is_alias_of(x));
  EXPECT_EQ(part.const_data_ptr(), static_cast<const float*>(x.const_data_ptr()) + 3);
  part.zero_();
  EXPECT_EQ(x.eq(0).sum().item<int64_t>(), 12);
  EXPECT_FALSE(x.clone().is_alias_of(x));
}

TEST(SimulatedDevice, HasTensorsOverMemoryThatWasTaken) {
  const device::Backend& backend = simulated_device();
  backend.place(1);
  void* data = backend.take(400);
  backend.place(0);
  {
    const Tensor whole = at::from_blob(data, {100}, at::TensorOptions(at::kPrivateUse1).dtype(at::kFloat));
    EXPECT_EQ(whole.device().str(), "simulated:1") << "where the memory is";
    const Tensor part = at::from_blob(static_cast<float*>(data) + 10, {5, 4}, whole.options());
    part.fill_(2);
    EXPECT_TRUE(whole.isnan().slice(0, 30).all().item<bool>());
    EXPECT_EQ(whole.slice(0, 10, 30).sum().item<float>(), 40);
  }
  backend.give(data);
}

TEST(SimulatedDevice, RefusesOperandsOfTheCpuAsCudaDoes) {
  const Tensor cpu = normal({4, 4}), x = on_device(cpu), other = on_device(cpu, 1);
  const Tensors devices = {cpu, other};
  for (const Tensor& y : devices) {
    EXPECT_NE(refusal([&] { x + y; }).find("Expected all tensors to be on the same device"), std::string::npos);
    EXPECT_NE(refusal([&] { y.mm(x); }).find("at least two devices"), std::string::npos);
    EXPECT_NE(refusal([&] { at::cat({x, y}); }).find("at least two devices"), std::string::npos);
    EXPECT_NE(refusal([&] { y.clone().mul_(x); }).find("at least two devices"), std::string::npos);
    EXPECT_NE(refusal([&] { at::conv1d(x.unsqueeze(0), y.unsqueeze(2)); }).find("at least two devices"),
              std::string::npos);
    EXPECT_NE(refusal([&] { at::equal(x, y); }).find("at least two devices"), std::string::npos);
  }
  Tensor number = at::scalar_tensor(2.0);
  EXPECT_TRUE(at::equal((x * number).cpu(), cpu * 2)) << "a number may be on the CPU";
  EXPECT_NE(refusal([&] { number.add_(x.sum()); }).find("at least two devices"), std::string::npos) << "but no result";
  EXPECT_TRUE(at::equal(x.index({indices({2, 0})}).cpu(), cpu.index({indices({2, 0})}))) << "and indices may";
  EXPECT_NE(refusal([&] { x.index_select(0, indices({2, 0})); }).find("at least two devices"), std::string::npos);
  EXPECT_NE(refusal([&] { at::randn({3}, at::detail::createCPUGenerator(1), x.options()); }).find("generator"),
            std::string::npos);
}

TEST(SimulatedDevice, DrawsWhatTheCpuDraws) {
  const at::TensorOptions options(at::kPrivateUse1);
  simulated_device();
  at::manual_seed(5);
  const Tensor x = at::randn({40}, options.dtype(at::kFloat));
  at::manual_seed(5);
  expect_same_bits(x, at::randn({40}), "numbers");
}

TEST(SimulatedDevice, ServesSeveralThreads) {
  const Tensor a = normal({40, 30}), b = on_device(a);
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) right += at::equal((b + i).mm(b.t()).cpu(), (a + i).mm(a.t()));
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(right, 200);
}

}  // namespace tessera::testing
