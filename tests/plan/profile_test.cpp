#include "tessera/plan/simulate/profile.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tessera/base/check.h"
#include "tessera/plan/simulate/reserve.h"

namespace tessera::plan {
namespace {

std::string refusal(const std::string& text) {
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
  EXPECT_NE(refusal("[device]\nsteam = 1").find("device.steam: unknown key; did you mean device.stream?"),
            std::string::npos);
  EXPECT_NE(refusal("[device]\nstream = -1").find("p.toml: device.stream: expected a number"), std::string::npos);
  EXPECT_NE(refusal("[device]\nstream = 1").find("gemm: no rate of any dtype"), std::string::npos);
  EXPECT_NE(refusal("[gemm]\nbf16 = 5").find("gemm.bf16: expected [FLOP/s"), std::string::npos);
  EXPECT_NE(refusal("a = = 1").find("p.toml: line 1"), std::string::npos);
}

TEST(Profile, AnUnknownNameAnswersWithTheNearest) {
  try {
    find_profile("h20");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    EXPECT_NE(std::string(error.what()).find("did you mean h200"), std::string::npos) << error.what();
  }
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
  const std::string tables = "[starts]\nforward = 5e-05\nnorm = 0.002\n[waits]\nring = [0.0014, 0.0011]\n";
  std::string text(kMeasured);
  text.replace(text.find("stream"), 0, "kept_write = 8e9\nkept_read = 5e9\n");
  const Profile p = parse_profile(text + tables + "[node]\ncopy_beside = 0.5\n", "p.toml");
  EXPECT_EQ(parse_profile(p.to_toml(), "p.toml"), p);
  EXPECT_EQ(p.starts, (decltype(p.starts){{"forward", 5e-5}, {"norm", 2e-3}}));
  EXPECT_EQ(p.waits, (decltype(p.waits){{"ring", {1.4e-3, 1.1e-3}}}));
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
  const auto with = [](const std::string& more) { return refusal(std::string(kMeasured) + more); };
  EXPECT_NE(with("[starts]\nforwards = 1").find("starts.forwards: no instruction has this name; did you mean forward?"),
            std::string::npos);
  EXPECT_NE(with("[starts]\nforward = -1").find("starts.forward: expected a number, zero or more"), std::string::npos);
  EXPECT_NE(with("[starts.forward]\nblock = 1").find("starts.forward"), std::string::npos);
  EXPECT_NE(with("[waits]\nring = 1").find("waits.ring: expected [seconds"), std::string::npos);
  EXPECT_NE(with("[waits]\nring = [1, -1]").find("waits.ring: expected [seconds"), std::string::npos);
  EXPECT_NE(with("[wait]\nring = [1, 1]").find("wait.ring: unknown key"), std::string::npos);
}

TEST(Profile, TimesThatDoNotFitTheirSizesAreRefusedByKey) {
  const auto with = [](const std::string& from, const std::string& to) {
    std::string text(kMeasured);
    text.replace(text.find(from), from.size(), to);
    return refusal(text);
  };
  EXPECT_NE(with("[1, 2, 10, 20]", "[1, 2, 10]").find("products.fp32.forward: expected 4 times"), std::string::npos);
  EXPECT_NE(with("[10, 1000]", "[10, 10]").find("products.fp32.rows: expected ascending sizes"), std::string::npos);
  EXPECT_NE(with("[3, 3, 3, 3]", "[3, 0, 3, 3]").find("weight_gradient: expected a list of numbers above zero"),
            std::string::npos);
  EXPECT_NE(with("[2e9, 10, 1e9, 20]", "[2e9]").find("operators.norm: expected [bytes/s"), std::string::npos);
  EXPECT_NE(with("in = [4]", "inn = [4]").find("products.fp32.in: expected a list"), std::string::npos);
}

TEST(Profile, ANumberOfGpusIsToldWithTheMeshThatMeansThem) {
  try {
    find_profile("2xrtx4090");
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    EXPECT_NE(std::string(error.what()).find("--gpu rtx4090 --mesh dp_shard=2"), std::string::npos) << error.what();
  }
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
    EXPECT_NE(refusal(std::string(kMeasured) + "[node]\nboth_ways = " + share + "\n")
                  .find("node.both_ways: expected a share"),
              std::string::npos);
}

}  // namespace
}  // namespace tessera::plan
