#include "tessera/plan/simulate/profile.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tessera/base/check.h"
#include "tessera/plan/simulate/libraries.h"

namespace tessera::plan {
namespace {

std::string profile_refusal(const std::string& text) {
  try {
    parse_profile(text, "p.toml");
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::input);
    return error.what();
  }
  return "accepted";
}

TEST(Profile, ARateReachesHalfOfItsTopAtItsHalf) {
  const Rate rate{100, 10};
  EXPECT_DOUBLE_EQ(rate.seconds(10), 0.2);  // 50 a second
  EXPECT_DOUBLE_EQ(rate.seconds(990), 10);
  EXPECT_DOUBLE_EQ(rate.seconds(0), 0);
}

/// A block of the 14B at 32,760 tokens: 22 TF of attention forward, 2.5 times as many backward. Published rates of the two
/// kernels on an H100 make 81 ms of difference, on an H200 74.
TEST(Profile, OfHoppersHasAttentionByBothKernels) {
  for (const auto& [name, least, most] : {std::tuple("1xh100", 0.075, 0.095), {"1xh200", 0.07, 0.095}}) {
    const DeviceProfile device = find_profile(name).device;
    const auto seconds = [&](const std::string& kernel) {
      return device.attention.at("bf16" + kernel).seconds(22e12) +
             device.attention_backward.at("bf16" + kernel).seconds(55e12);
    };
    const double gain = seconds("") - seconds(std::string(kByCudnn));
    EXPECT_GT(gain, least) << name;
    EXPECT_LT(gain, most) << name;
  }
  EXPECT_LT(find_profile("a100-80").device.attention.at("bf16").top, 1e15);
  for (const Profile& p : shipped_profiles())  // a profile of two kernels is written and read
    EXPECT_EQ(parse_profile(p.to_toml(), "p.toml").device.attention.size(), p.device.attention.size()) << p.name;
}

TEST(Profile, ShippedNodesAreWholeAndNameTheirSources) {
  for (const char* name : {"8xh200", "8xh100", "8xa100-80", "4xl40s", "8xrtx4090", "4xrtx3090", "rtx5090", "1xh200",
                           "h200-128gib", "1xh100", "1xa100-80", "1xl40s", "1xrtx4090", "1xrtx3090"}) {
    const Profile p = find_profile(name);
    EXPECT_GT(p.devices, 0) << name;
    EXPECT_FALSE(p.source.empty()) << name;
    for (const char* dtype : {"fp32", "tf32", "bf16", "fp8"}) EXPECT_GT(p.device.gemm.at(dtype).top, 1e12) << name;
    EXPECT_GT(p.device.gemm.at("bf16").top, p.device.gemm.at("fp32").top) << name;
    for (double value : {p.device.stream.top, p.device.bandwidth.top, p.link.gather, p.nic.gather, p.host_link,
                         p.host_bandwidth, p.disk_read, p.disk_write, static_cast<double>(p.host_memory),
                         static_cast<double>(p.disk), static_cast<double>(p.device.memory)})
      EXPECT_GT(value, 0) << name;
  }
  EXPECT_EQ(find_profile("h200"), find_profile("8xh200"));
  EXPECT_EQ(find_profile("8xa100-80").host_memory, 1000000000000);
  EXPECT_EQ(find_profile("8xa100-80").disk, 4000000000000);
}

TEST(Profile, OneDeviceHasItsShareOfTheNode) {
  const Profile eight = find_profile("h200"), one = find_profile("1xh200");
  EXPECT_EQ(one.device, eight.device);
  EXPECT_DOUBLE_EQ(one.nic.gather * 8, eight.nic.gather);
  EXPECT_EQ(one.host_memory * 8, eight.host_memory);
}

TEST(Profile, AReserveOfEachDeviceStaysFreeAndNeverMoreThanATenth) {
  const int64_t gib = int64_t{1} << 30;
  EXPECT_EQ(without_reserve(24 * gib), 24 * gib - 24 * gib / 10);
  EXPECT_EQ(without_reserve(100 * gib), 94 * gib);
  EXPECT_EQ(without_reserve(0), 0);
  for (const Profile& profile : shipped_profiles()) {
    EXPECT_GE(without_reserve(profile.device.memory), profile.device.memory / 10 * 9) << profile.name;
    EXPECT_LE(without_reserve(profile.device.memory), profile.device.memory / 100 * 97) << profile.name;
  }
}

TEST(Profile, ReadsBackWhatItWrote) {
  for (const Profile& p : shipped_profiles()) {
    const Profile back = parse_profile(p.to_toml(), p.name);
    EXPECT_EQ(back.name, p.name);
    EXPECT_EQ(back.devices, p.devices);
    EXPECT_EQ(back.host_memory, p.host_memory);
    EXPECT_NEAR(back.steal, p.steal, 1e-9);
    EXPECT_NEAR(back.link.latency / p.link.latency, 1, 1e-3);
    for (const auto& [dtype, rate] : p.device.gemm) EXPECT_NEAR(back.device.gemm.at(dtype).top / rate.top, 1, 1e-3);
    EXPECT_EQ(back.to_toml(), p.to_toml());
  }
}

TEST(Profile, RefusalsNameFileKeyAndWhatWasExpected) {
  EXPECT_NE(profile_refusal("[device]\nsteam = 1").find("device.steam: unknown key; did you mean device.stream?"),
            std::string::npos);
  EXPECT_NE(profile_refusal("[device]\nstream = -1").find("p.toml: device.stream: expected a number"),
            std::string::npos);
  EXPECT_NE(profile_refusal("[device]\nstream = 1").find("gemm: no rate of any dtype"), std::string::npos);
  EXPECT_NE(profile_refusal("[gemm]\nbf16 = 5").find("gemm.bf16: expected [FLOP/s"), std::string::npos);
  EXPECT_NE(profile_refusal("a = = 1").find("p.toml: line 1"), std::string::npos);
}

std::string refused_name(const std::string& name) {
  try {
    return "accepted as " + find_profile(name).name;
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::usage) << name;
    return error.what();
  }
}

TEST(Profile, AnUnknownNameAnswersWithTheNearest) {
  for (const auto& [name, near] : {std::pair("h201", "h200"), {"RTX 4091", "rtx4090"}, {"5080s", "rtx5080"}})
    EXPECT_NE(refused_name(name).find(std::string("did you mean ") + near + "?"), std::string::npos)
        << refused_name(name);
}

TEST(Profile, EachGpuIsFoundByAnyUsualSpelling) {
  for (const auto& [spelling, name] : std::vector<std::pair<std::string, std::string>>{
           {"3060", "rtx3060"},
           {"RTX 3060 12GB", "rtx3060"},
           {"3090", "rtx3090"},
           {"NVIDIA GeForce RTX 3090", "rtx3090"},
           {"4060 Ti 16 GB", "rtx4060ti-16"},
           {"rtx4060ti", "rtx4060ti-16"},
           {"4070", "rtx4070"},
           {"RTX-4080", "rtx4080"},
           {"4090", "rtx4090"},
           {"RTX 4090", "rtx4090"},
           {"rtx_4090", "rtx4090"},
           {"geforce rtx 4090", "rtx4090"},
           {"GeForceRTX4090", "rtx4090"},
           {"1xrtx4090", "rtx4090"},
           {"4090D", "rtx4090d"},
           {"RTX 4090 D", "rtx4090d"},
           {"4090 48GB", "rtx4090-48"},
           {"4090-48GiB", "rtx4090-48"},
           {"5070 Ti", "rtx5070ti"},
           {"5080", "rtx5080"},
           {"NVIDIA GeForce RTX 5090", "rtx5090"},
           {"A6000", "a6000"},
           {"NVIDIA RTX A6000", "a6000"},
           {"6000 Ada", "rtx6000ada"},
           {"NVIDIA RTX 6000 Ada Generation", "rtx6000ada"},
           {"RTX PRO 6000", "rtxpro6000"},
           {"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtxpro6000"},
           {"L4", "l4"},
           {"L20", "l20"},
           {"NVIDIA L40S", "l40s"},
           {"A10", "a10"},
           {"a100", "a100-80"},
           {"A100 80GB", "a100-80"},
           {"NVIDIA A100-SXM4-80GB", "a100-80"},
           {"NVIDIA A100 80GB PCIe", "a100-80"},
           {"A100 40GB", "a100-40"},
           {"A100 SXM 40GB", "a100-40"},
           {"NVIDIA A100-PCIE-40GB", "a100-40"},
           {"A800", "a800"},
           {"H20", "h20"},
           {"H100", "h100"},
           {"NVIDIA H100 80GB HBM3", "h100"},
           {"H100 SXM5", "h100"},
           {"NVIDIA H100 PCIe", "h100-pcie"},
           {"H100-NVL", "h100-nvl"},
           {"h800", "h800"},
           {"H200 141GB", "h200"},
           {"8 x H200", "h200"},
           {"1xh200", "1xh200"},
           {"B200", "b200"},
           {"GB200", "gb200"},
           {"8x4090", "8xrtx4090"},
           {"2 X RTX 4090", "2xrtx4090"},
           {"4xh100", "4xh100"},
           {"cpu", "cpu"}})
    EXPECT_EQ(find_profile(spelling).name, name) << spelling;
}

TEST(Profile, CardsAreOneAndNamesOfDataCentresAreNodesOfEight) {
  for (const char* card : {"rtx3060", "rtx3090", "rtx4060ti-16", "rtx4070", "rtx4080", "rtx4090", "rtx4090d",
                           "rtx4090-48", "rtx5070ti", "rtx5080", "rtx5090", "a6000", "rtx6000ada", "rtxpro6000"})
    EXPECT_EQ(find_profile(card).devices, 1) << card;
  for (const char* node : {"l4", "l20", "l40s", "a10", "a100-40", "a100-80", "a800", "h20", "h100", "h100-pcie",
                           "h100-nvl", "h800", "h200", "b200", "gb200"})
    EXPECT_EQ(find_profile(node).devices, 8) << node;
  for (const Profile& p : shipped_profiles())
    if (p.devices > 0) {
      EXPECT_TRUE(p.source.ends_with("read from data sheets until probed")) << p.name;
      EXPECT_FALSE(p.target.empty()) << p.name;
      EXPECT_EQ(find_profile(p.name), p) << p.name;
      EXPECT_GT(p.device.gemm.at("bf16").top, p.device.gemm.at("fp32").top) << p.name;
    }
}

TEST(Profile, SeveralGpusOfAMachineHaveTheirShareOfIt) {
  const Profile one = find_profile("4090"), two = find_profile("2x4090"), eight = find_profile("8x4090");
  EXPECT_EQ(two.devices, 2);
  EXPECT_EQ(two.device, one.device);
  EXPECT_EQ(2 * one.host_memory, two.host_memory);
  EXPECT_EQ(4 * two.host_memory, eight.host_memory);
  EXPECT_DOUBLE_EQ(one.host_link, eight.host_link) << "each has its own";
  EXPECT_EQ(find_profile("1xh200").disk, find_profile("h200").disk / 8);
  const std::string text = refused_name("17x4090");
  EXPECT_NE(text.find("at most 16"), std::string::npos) << text;
  EXPECT_NE(text.find("--gpu 4090 --nodes N"), std::string::npos) << text;
}

TEST(Profile, AGpuMayBeDescribed) {
  for (const char* text : {"16GiB,90TFLOPs,600GB/s", "600 GB/s, 16 GiB, 90 TFLOP/s", "90tflops,0.6TB/s,16GiB"}) {
    const Profile p = find_profile(text);
    EXPECT_EQ(p.device.memory, int64_t{16} << 30) << text;
    EXPECT_DOUBLE_EQ(p.device.gemm.at("bf16").top, 90e12) << text;
    EXPECT_NEAR(p.device.stream.top, 0.87 * 600e9, 1) << text;
    EXPECT_EQ(p.devices, 1) << text;
    EXPECT_EQ(find_profile(p.name), p) << text;
  }
  EXPECT_EQ(find_profile("16GB,90TFLOPs,600GB/s").device.memory, 16'000'000'000);
  EXPECT_EQ(find_profile("2x16GiB,90TFLOPs,600GB/s").devices, 2);
  for (const auto& [text, words] : {std::pair("16GiB,90TFLOPs", "one of its three numbers is missing"),
                                    {"16GiB,90TFLOPs,600GB/s,32GiB", "'32gib' says a second time"},
                                    {"16GiB,90TFLOPs,600", "'600' has no unit"},
                                    {"16GiB,90TFLOPs,600Gbit/s", "'600gbit/s' has no unit"},
                                    {"16GiB,-90TFLOPs,600GB/s", "'-90tflops' is no amount above zero"},
                                    {"16GiB,nanTFLOPs,600GB/s", "is no amount above zero"},
                                    {"16GiB,,600GB/s", "'' is no amount above zero"}}) {
    EXPECT_NE(refused_name(text).find(words), std::string::npos) << refused_name(text);
    EXPECT_NE(refused_name(text).find("16GiB,90TFLOPs,600GB/s"), std::string::npos) << text;
  }
}

TEST(Profile, GpusWithoutCodeForThemAreRefusedInOneSentence) {
  for (const char* old :
       {"T4", "NVIDIA Tesla T4", "V100", "Tesla V100-SXM2-32GB", "2080", "RTX 2080 Ti", "2x1080ti", "P100"})
    EXPECT_NE(refused_name(old).find("no code for GPUs older than sm_80"), std::string::npos) << refused_name(old);
  for (const char* amd : {"mi300x", "AMD Instinct MI250X", "rx 7900 xtx"})
    EXPECT_NE(refused_name(amd).find("AMD's GPUs are not supported"), std::string::npos) << refused_name(amd);
  for (const char* apple : {"M3 Max", "apple m2"})
    EXPECT_NE(refused_name(apple).find("Apple's GPUs are not supported"), std::string::npos) << refused_name(apple);
}

/// The smallest profile with measured times.
constexpr std::string_view kMeasured = R"(
[device]
stream = 1e9
[gemm]
fp32 = [1e9, 0]
[operators]
norm = [2e9, 10, 1e9, 20]
[products.fp32]
rows = [10, 1000]
in = [4]
out = [8, 16]
forward = [1, 2, 10, 20]
input_gradient = [1, 1, 1, 1]
weight_gradient = [3, 3, 3, 3]
)";

TEST(Profile, TimesBySignatureAreReadBackAndInterpolated) {
  const Profile p = parse_profile(kMeasured, "p.toml");
  EXPECT_EQ(parse_profile(p.to_toml(), "p.toml").to_toml(), p.to_toml());
  EXPECT_EQ(p.device.operators.at("norm").backward, (Rate{1e9, 20}));
  const TimeGrid& grid = p.device.products.at("fp32");
  EXPECT_DOUBLE_EQ(grid.at("forward", {10, 4, 8}), 1);
  EXPECT_DOUBLE_EQ(grid.at("forward", {1000, 4, 16}), 20);
  EXPECT_NEAR(grid.at("forward", {100, 4, 8}), std::sqrt(10.0), 1e-9);  // half of the way as powers go
  EXPECT_NEAR(grid.at("forward", {100, 4, 16}), 2 * std::sqrt(10.0), 1e-9);
  EXPECT_NEAR(grid.at("forward", {2000, 8, 32}), 20 * 2 * 2 * 2, 1e-9);  // beyond all three
  EXPECT_NEAR(grid.at("input_gradient", {31, 4, 9}), 1, 1e-12);
}

TEST(Profile, ProductsOfUncachedWeightsAreReadBackBesideTheOthers) {
  const std::string measured(kMeasured), grid = measured.substr(measured.find("rows = "));
  const std::string text = measured + "[uncached_products.fp32]\n" + grid;
  const Profile p = parse_profile(text, "p.toml");
  EXPECT_EQ(p.device.uncached_products, p.device.products);
  EXPECT_EQ(parse_profile(p.to_toml(), "p.toml"), p);
  EXPECT_TRUE(parse_profile(kMeasured, "p.toml").device.uncached_products.empty());
}

TEST(Profile, WhatTheEngineAddsIsReadBackAndNothingWhereItWasNotMeasured) {
  const std::string tables =
      "[starts]\nforward = 5e-05\nnorm = 0.002\n[waits]\nring = [0.0014, 0.0011]\nheads = [1e-5, 2e-5, 0.25, 0.5]\n";
  std::string text(kMeasured);
  text.replace(text.find("stream"), 0, "kept_write = 8e9\nkept_read = 5e9\n");
  const Profile p = parse_profile(text + tables + "[node]\ncopy_beside = 0.5\n", "p.toml");
  EXPECT_EQ(parse_profile(p.to_toml(), "p.toml"), p);
  EXPECT_EQ(p.starts, (decltype(p.starts){{"forward", 5e-5}, {"norm", 2e-3}}));
  EXPECT_EQ(p.waits, (decltype(p.waits){{"heads", {{1e-5, 0.25}, {2e-5, 0.5}}}, {"ring", {{1.4e-3}, {1.1e-3}}}}));
  EXPECT_EQ(p.device.kept_write, 8e9);
  EXPECT_EQ(p.device.kept_read, 5e9);
  EXPECT_EQ(p.copy_beside, 0.5);
  const Profile without = parse_profile(kMeasured, "p.toml");
  EXPECT_TRUE(without.starts.empty() && without.waits.empty());
  EXPECT_EQ(without.device.kept_write + without.device.kept_read, 0);
  for (const Profile& shipped : shipped_profiles()) {
    EXPECT_TRUE(shipped.starts.empty() && shipped.waits.empty()) << shipped.name;
    EXPECT_EQ(shipped.device.kept_write + shipped.device.kept_read, 0) << shipped.name;
    EXPECT_EQ(shipped.copy_beside, 0) << shipped.name;
  }
}

TEST(Profile, StartsAndWaitsAreReadStrictly) {
  const auto with = [](const std::string& more) { return profile_refusal(std::string(kMeasured) + more); };
  EXPECT_NE(with("[starts]\nforwards = 1").find("starts.forwards: no instruction has this name; did you mean forward?"),
            std::string::npos);
  EXPECT_NE(with("[starts]\nforward = -1").find("starts.forward: expected a number, zero or more"), std::string::npos);
  EXPECT_NE(with("[starts.forward]\nblock = 1").find("starts.forward"), std::string::npos);
  EXPECT_NE(with("[waits]\nring = 1").find("waits.ring: expected [seconds"), std::string::npos);
  EXPECT_NE(with("[waits]\nring = [1, -1]").find("waits.ring: expected [seconds"), std::string::npos);
  EXPECT_NE(with("[waits]\nring = [1, 1, 1]").find("waits.ring: expected [seconds"), std::string::npos);
  EXPECT_NE(with("[wait]\nring = [1, 1]").find("wait.ring: unknown key"), std::string::npos);
}

TEST(Profile, WaitsOfWhateverWasMeasuredAreReadBack) {
  std::mt19937_64 random(20261129);
  std::lognormal_distribution<double> seconds(-9, 2);
  int through_zero = 0;
  for (int draw = 0; draw < 20'000; ++draw) {
    const double work = seconds(random), more = work + seconds(random), wait = seconds(random) - 1e-4;
    const WaitOf of = WaitOf::of(work, wait, more, wait + seconds(random));
    ASSERT_GE(of.start, 0) << draw;
    ASSERT_GE(of.share, 0) << draw;
    through_zero += of.start == 0 && of.share > 0;
  }
  EXPECT_GT(through_zero, 1'000);  // lines that had a start below zero, whose roundings fell on both sides of it
  Profile probed = parse_profile(std::string(kMeasured), "p.toml");
  probed.waits["ring"] = {WaitOf::of(3e-4, 1e-5, 7e-4, 3e-4), WaitOf::of(1e-4, 2e-5, 1e-4, 3e-5)};
  EXPECT_TRUE(parse_profile(probed.to_toml(), "p.toml").waits.contains("ring"));
}

TEST(Profile, TimesThatDoNotFitTheirSizesAreRefusedByKey) {
  const auto with = [](const std::string& from, const std::string& to) {
    std::string text(kMeasured);
    text.replace(text.find(from), from.size(), to);
    return profile_refusal(text);
  };
  EXPECT_NE(with("[1, 2, 10, 20]", "[1, 2, 10]").find("products.fp32.forward: expected 4 times"), std::string::npos);
  EXPECT_NE(with("[10, 1000]", "[10, 10]").find("products.fp32.rows: expected ascending sizes"), std::string::npos);
  EXPECT_NE(with("[3, 3, 3, 3]", "[3, 0, 3, 3]").find("weight_gradient: expected a list of numbers above zero"),
            std::string::npos);
  EXPECT_NE(with("[2e9, 10, 1e9, 20]", "[2e9]").find("operators.norm: expected [bytes/s"), std::string::npos);
  EXPECT_NE(with("in = [4]", "inn = [4]").find("products.fp32.in: expected a list"), std::string::npos);
}

TEST(Profile, OneOfAnotherMachineIsRefusedWithBoth) {
  Profile p = find_profile("h200");
  check_machine(p, this_machine());  // shipped ones are for planning
  p.machine = this_machine();
  check_machine(p, this_machine());
  const std::string gpu = "NVIDIA H100 80GB HBM3 (sm_90)";
  for (const auto& [measured, here] : {std::pair<std::string, std::string>("Another, 3 cores", this_machine()),
                                       {gpu, "NVIDIA A100-SXM4-80GB (sm_80)"},
                                       {gpu, this_machine()},
                                       {this_machine(), gpu}}) {
    p.machine = measured;
    try {
      check_machine(p, here);
      FAIL() << "accepted " << measured << " on " << here;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), Exit::usage);
      EXPECT_NE(std::string(error.what()).find("(" + measured + "), this is " + here), std::string::npos);
    }
  }
}

TEST(Profile, WhatACopyAndAMessageDoIsReadBack) {
  const std::string more =
      "[node]\nhost_link = 5e10\nhost_link_back = 4e10\nboth_ways = 0.8\n"
      "[link]\ngather = 3e11\nexchange = 2e11\nsend = 1e11\n";
  const Profile p = parse_profile(std::string(kMeasured) + more, "p.toml");
  EXPECT_EQ(parse_profile(p.to_toml(), "p.toml"), p);
  EXPECT_EQ(p.host_link_back, 4e10);
  EXPECT_EQ(p.both_ways, 0.8);
  EXPECT_EQ(p.link.exchange, 2e11);
  EXPECT_EQ(p.link.send, 1e11);
  for (const char* share : {"0", "1.5"})
    EXPECT_NE(profile_refusal(std::string(kMeasured) + "[node]\nboth_ways = " + share + "\n")
                  .find("node.both_ways: expected a share"),
              std::string::npos);
}

}  // namespace
}  // namespace tessera::plan
