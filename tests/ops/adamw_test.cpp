#include "tessera/ops/adamw.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "need_goldens.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

namespace {

/// The tensors of a golden case; trusted, so read without the checks of the checkpoint room (which lies above this
/// one).
std::map<std::string, at::Tensor> read_case(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  uint64_t header_bytes = 0;
  in.read(reinterpret_cast<char*>(&header_bytes), sizeof(header_bytes));
  std::string header(header_bytes, '\0');
  in.read(header.data(), static_cast<std::streamsize>(header_bytes));
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  std::map<std::string, at::Tensor> out;
  const auto entries = nlohmann::json::parse(header);
  for (const auto& [name, entry] : entries.items()) {
    if (name == "__metadata__") continue;
    const auto dtype = entry["dtype"] == "F64" ? at::kDouble : entry["dtype"] == "I64" ? at::kLong : at::kFloat;
    at::Tensor t = at::empty(entry["shape"].get<std::vector<int64_t>>(), dtype);
    std::memcpy(t.mutable_data_ptr(), bytes.data() + entry["data_offsets"][0].get<size_t>(), t.nbytes());
    out[name] = t;
  }
  return out;
}

}  // namespace

TEST(AdamW, FollowsTheGoldenRunsOfFiftySteps) {
  TESSERA_NEED_GOLDENS();
  const std::filesystem::path folder = std::filesystem::path(TESSERA_GOLDENS) / "adamw";
  auto golden = read_case(folder / "case.safetensors");
  const auto config = nlohmann::json::parse(std::ifstream(folder / "config.json"));
  for (const std::string run : {"sched", "sched_clip", "const", "const_clip", "const_bigeps_nowd"}) {
    const bool scheduled = run.starts_with("sched"), big_eps = run == "const_bigeps_nowd", clip = run.ends_with("clip");
    AdamWStep step;
    if (big_eps)
      step.beta1 = 0.9, step.beta2 = 0.95, step.eps = 1e-2, step.weight_decay = 0;
    else
      step.beta1 = config["betas"][0], step.beta2 = config["betas"][1], step.eps = config["eps"],
      step.weight_decay = config["wd"];
    std::map<std::string, at::Tensor> p, m, v;
    for (const auto& [name, t] : golden)
      if (name.starts_with("in.param.")) p[name.substr(9)] = t.clone();
    for (const auto& [name, t] : p) m[name] = at::zeros_like(t), v[name] = at::zeros_like(t);
    for (int i = 0; i < 50; ++i) {
      double squares = 0;
      for (const auto& [name, t] : p)
        squares += sum_of_squares(golden["in.grad." + name][i].const_data_ptr<float>(), t.numel());
      const double max_norm = config["clip"];
      step.grad_scale = clip ? std::min(1.0, max_norm / (std::sqrt(squares) + 1e-6)) : 1;
      step.lr = scheduled ? golden["out.lr"][i].item<double>() : config["lr_big"].get<double>();
      step.step = i + 1;
      for (auto& [name, t] : p)
        adamw(t.mutable_data_ptr<float>(), m[name].mutable_data_ptr<float>(), v[name].mutable_data_ptr<float>(),
              golden["in.grad." + name][i].const_data_ptr<float>(), t.numel(), step);
      if (i % 10 != 9) continue;
      for (const auto& [name, t] : p) {
        const at::Tensor all = golden.at("out." + run + ".param." + name);
        const double move = (all[4] - golden["in.param." + name]).abs().max().item<double>(),
                     size = all.abs().max().item<double>();
        EXPECT_LE((t - all[i / 10]).abs().max().item<double>(), 2e-4 * move + 4e-6 * size)
            << run << " " << name << " step " << i + 1;
      }
    }
    for (const auto& [name, t] : p)
      for (const auto& [key, state] : {std::pair{"exp_avg", m[name]}, std::pair{"exp_avg_sq", v[name]}}) {
        const at::Tensor expected = golden.at("out." + run + ".state." + key + "." + name);
        EXPECT_LE((state - expected).abs().max().item<double>(), 1e-4 * expected.abs().max().item<double>())
            << run << " " << name << " " << key;
      }
  }
}

TEST(SumOfSquares, IsADoubleSumInAFixedOrder) {
  const at::Tensor x = at::randn({200001});
  const double expected = x.to(at::kDouble).square().sum().item<double>();
  const double got = sum_of_squares(x.const_data_ptr<float>(), x.numel());
  EXPECT_NEAR(got, expected, 1e-10 * expected);
  EXPECT_EQ(got, sum_of_squares(x.const_data_ptr<float>(), x.numel()));
  EXPECT_EQ(sum_of_squares(nullptr, 0), 0);
}

TEST(Add, AddsElementByElement) {
  const at::Tensor a = at::randn({1001}), b = at::randn({1001}), expected = a + b;
  add(a.mutable_data_ptr<float>(), b.const_data_ptr<float>(), a.numel());
  EXPECT_TRUE(at::equal(a, expected));
}

TEST(SumOfSquares, HasTheSameOrderOnEveryProcessor) {
  for (const int64_t n : {1, 31, 32, 63, 1000, 65536}) {
    const at::Tensor x = at::randn({n}) * at::exp(at::randn({n}) * 5);
    const auto square = [&](int64_t i) { return std::pow(static_cast<double>(x.const_data_ptr<float>()[i]), 2.0); };
    double turns[32] = {}, expected = 0;
    const int64_t whole = n / 32 * 32;
    for (int64_t i = 0; i < whole; ++i) turns[i % 32] += square(i);
    for (int t = 0; t < 8; ++t) expected += (turns[t] + turns[t + 8]) + (turns[t + 16] + turns[t + 24]);
    for (int64_t i = whole; i < n; ++i) expected += square(i);
    EXPECT_EQ(sum_of_squares(x.const_data_ptr<float>(), n), expected) << n;
  }
}

}  // namespace tessera::ops
