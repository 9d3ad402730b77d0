// `tessera probe` and `tessera bench` on a device, which here is simulated (tests/device/simulated.h): a profile that plans are made
// by, and steps that are predicted by it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <set>

#include "program.h"
#include "tessera/plan/simulate/profile.h"

namespace tessera::testing {
namespace {

const std::map<std::string, std::string> kH100 = {
    {"OMP_NUM_THREADS", "1"}, {"TESSERA_SIMULATED_BYTES", "1073741824"}, {"TESSERA_SIMULATED_CHIP", "sm_90"}};

Result on_device(const std::vector<std::string>& words, std::map<std::string, std::string> more = {},
                 double timeout = 300) {
  std::vector<std::string> command = {ON_DEVICE};
  command.insert(command.end(), words.begin(), words.end());
  more.insert(kH100.begin(), kH100.end());
  return run_program(command, more, timeout);
}

/// The profile of so many ranks, on devices that are compared for order.
std::string probed(const TinyRun& run, int ranks) {
  const std::string file = run.out("gpu-" + std::to_string(ranks) + ".toml");
  if (std::filesystem::exists(file)) return file;
  const Result r = on_device({"launch", "-n", std::to_string(ranks), "probe", "--device", "cuda", "--small",
                              "--seconds", "0.001", "--folder", run.folder().string(), "--out", file},
                             {{"TESSERA_SIMULATED_RECORD", "1"}});
  EXPECT_EQ(r.code, 0) << r.output;
  return file;
}

const TinyRun& shared() {
  static const TinyRun run("device-probe");
  return run;
}

void expect_between(double value, double low, double high, const char* what) {
  EXPECT_TRUE(std::isfinite(value) && value > low && value < high) << what << " " << value;
}

void expect_whole(const plan::Profile& p) {
  EXPECT_EQ(p.target, "sm_90");
  EXPECT_EQ(p.machine, "simulated (sm_90)");
  EXPECT_EQ(p.device.memory, 1073741824);
  expect_between(p.device.gemm.at("fp8").top, 1e6, 1e16, "fp8");
  for (const char* type : {"bf16", "fp32"}) {
    expect_between(p.device.gemm.at(type).top, 1e6, 1e16, type);
    expect_between(p.device.attention.at(type).top, 1e6, 1e16, type);
    expect_between(p.device.attention_backward.at(type).top, 1e6, 1e16, type);
    for (const auto* grids : {&p.device.products, &p.device.attentions})
      for (const auto& [kind, times] : grids->at(type).seconds)
        for (const double seconds : times) expect_between(seconds, 0, 10, kind.c_str());
  }
  EXPECT_TRUE(p.device.uncached_products.empty());
  EXPECT_EQ(p.device.cached + p.device.kept_write + p.device.kept_read, 0);
  for (const char* kind : {"norm", "residual", "rms_norm", "rms_norm_rope", "gelu"})
    expect_between(p.device.operators.at(kind).forward.top, 1e5, 1e14, kind);
  for (const double rate : {p.device.bandwidth.top, p.device.norm.top, p.device.stream.top, p.host_link,
                            p.host_link_back, p.host_bandwidth, p.disk_read, p.disk_write})
    expect_between(rate, 1e5, 1e14, "bytes/s");
  for (const double share : {p.both_ways, p.copy_beside, p.beside}) EXPECT_TRUE(share > 0 && share <= 1) << share;
  expect_between(p.device.dispatch, 0, 0.1, "dispatch");
  EXPECT_GT(p.host_memory, 0);
  for (const char* op : {"forward", "recompute", "backward", "loss", "norm", "update", "release"})
    ASSERT_TRUE(p.starts.contains(op)) << op;
  for (const auto& [op, seconds] : p.starts) EXPECT_TRUE(seconds >= 0 && seconds < 10) << op << " " << seconds;
}

TEST(ProbeOfADevice, HasItsTargetMemoryAndRates) {
  const plan::Profile p = plan::find_profile(probed(shared(), 1));
  expect_whole(p);
  EXPECT_EQ(p.devices, 1);
  EXPECT_TRUE(p.waits.empty()) << "one rank shares no tokens";
  EXPECT_EQ(plan::parse_profile(p.to_toml(), "again"), p);
}

TEST(ProbeOfADevice, OfTwoHasTheRatesOfMessagesBetweenThem) {
  const plan::Profile p = plan::find_profile(probed(shared(), 2));
  expect_whole(p);
  EXPECT_EQ(p.devices, 2);
  for (const double rate : {p.link.gather, p.link.reduce, p.link.exchange, p.link.send})
    expect_between(rate, 1e4, 1e14, "link");
  for (const char* purpose : {"tensor", "norms", "sequence", "ring"}) EXPECT_TRUE(p.waits.contains(purpose)) << purpose;
}

TEST(ProbeOfADevice, APlanIsMadeByItsFileOnAnyMachine) {
  const std::string file = probed(shared(), 1);
  const Result r = shared().tessera({"plan", shared().recipe(), "--gpu", file, "--mesh", "dp_shard=1"});
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("predicted with profile probed"), std::string::npos) << r.output;
  EXPECT_NE(r.output.find("for sm_90"), std::string::npos) << r.output;
  const Result by_key = shared().tessera({"plan", shared().recipe(), "--plan.profile", file, "--mesh", "dp_shard=1"});
  EXPECT_EQ(by_key.code, 0) << by_key.output;
}

TEST(ProbeOfADevice, ARunOnAnotherChipOrOnTheCpuRefusesItsProfile) {
  const std::string file = probed(shared(), 1);
  const std::vector<std::string> words = {"train", shared().recipe(), "--run.steps", "1", "--run.device",
                                          "cuda",  "--plan.profile",  file};
  const auto with_out = [&](const char* name) {
    std::vector<std::string> all = words;
    all.insert(all.end(), {"--run.out", shared().out(name)});
    return all;
  };
  const Result same = on_device(with_out("same"));
  EXPECT_EQ(same.code, 0) << same.output;
  const Result other = on_device(with_out("other"), {{"TESSERA_SIMULATED_CHIP", "sm_80"}});
  EXPECT_EQ(other.code, 2) << other.output;
  EXPECT_NE(other.output.find("measured on another machine (simulated (sm_90)), this is simulated (sm_80)"),
            std::string::npos)
      << other.output;
  std::vector<std::string> on_cpu = with_out("cpu");
  on_cpu.insert(on_cpu.end(), {"--run.device", "cpu"});
  const Result cpu = on_device(on_cpu);
  EXPECT_EQ(cpu.code, 2) << cpu.output;
  EXPECT_NE(cpu.output.find("measured on another machine (simulated (sm_90))"), std::string::npos) << cpu.output;
}

/// By the profile of one rank a second one is on another node: two links with 512 MiB each, 128 MiB of batches on their way, of 1 GiB.
TEST(ProbeOfADevice, WithoutRoomBesideDriverAndLinksARunIsRefused) {
  const Result r = on_device({"launch", "-n", "2", "train", shared().recipe(), "--run.steps", "1", "--run.device",
                              "cuda", "--plan.profile", probed(shared(), 1), "--run.out", shared().out("beside")});
  EXPECT_EQ(r.code, 4) << r.output;
  EXPECT_NE(r.output.find("gives a rank 1.00 GiB, but 1.91 GiB lie beside"), std::string::npos) << r.output;
  EXPECT_NE(r.output.find("tessera launch -n RANKS probe"), std::string::npos) << r.output;
}

/// What a plan can be made for is a target; of another chip the profile says that it has none.
TEST(ProbeOfADevice, OfAnUnknownChipHasNoTargetAndSaysSo) {
  const std::string file = shared().out("unknown.toml");
  const Result r = on_device({"probe", "--device", "cuda", "--small", "--seconds", "0.001", "--folder",
                              shared().folder().string(), "--out", file},
                             {{"TESSERA_SIMULATED_CHIP", "sm_103"}});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("plans are made for no chip like this (sm_103)"), std::string::npos) << r.output;
  EXPECT_EQ(plan::find_profile(file).target, "");
}

/// The shapes are those of a recipe's step; a profile of another library's version, or with words that are no algorithm, is warned of.
TEST(ProbeOfADevice, ChoosesAlgorithmsForARecipeAndARunTakesThem) {
  const auto on_ranks = [](int ranks, std::vector<std::string> words, const char* version) {
    if (ranks > 1) words.insert(words.begin(), {"launch", "-n", std::to_string(ranks)});
    return on_device(words, {{"TESSERA_SIMULATED_PRODUCTS", version}, {"TESSERA_SIMULATED_BYTES", "4294967296"}});
  };
  const auto train = [&](int ranks, const std::string& by, const std::string& name, const char* version) {
    return on_ranks(ranks,
                    {"train", shared().recipe(), "--run.steps", "2", "--run.device", "cuda", "--plan.profile", by,
                     "--run.out", shared().out(name)},
                    version);
  };
  const std::string file = shared().out("products.toml"), of_two = shared().out("products-of-two.toml");
  const Result measured = on_ranks(1,
                                   {"probe", "--device", "cuda", "--small", "--seconds", "0.001", "--folder",
                                    shared().folder().string(), "--recipe", shared().recipe(), "--out", file},
                                   "products 7");
  ASSERT_EQ(measured.code, 0) << measured.output;
  plan::Profile profile = plan::find_profile(file), two = plan::find_profile(probed(shared(), 2));
  EXPECT_EQ(profile.algorithms.library, "products 7");
  const size_t shapes = profile.algorithms.chosen.size();
  ASSERT_GT(shapes, 5U) << "a step has more kinds of products";
  two.algorithms = profile.algorithms;
  std::ofstream(of_two) << two.to_toml();
  const std::string used = "products of " + std::to_string(shapes) + " shapes are computed by the algorithms";
  for (const int ranks : {1, 2}) {
    const Result taken = train(ranks, ranks == 1 ? file : of_two, "on-" + std::to_string(ranks), "products 7");
    ASSERT_EQ(taken.code, 0) << taken.output;
    EXPECT_NE(taken.output.find(used), std::string::npos) << taken.output;
  }
  const Result newer = train(1, file, "newer", "products 8");
  EXPECT_EQ(newer.code, 0) << newer.output;
  EXPECT_EQ(newer.output.find(used), std::string::npos) << newer.output;
  EXPECT_NE(newer.output.find("they are of products 7, this is products 8"), std::string::npos) << newer.output;

  profile.algorithms.chosen.begin()->second.back() = 'x';
  const std::string broken = shared().out("broken.toml");
  std::ofstream(broken) << profile.to_toml();
  const Result refused = train(1, broken, "broken", "products 7");
  EXPECT_EQ(refused.code, 0) << refused.output;
  EXPECT_EQ(refused.output.find(used), std::string::npos) << refused.output;
  EXPECT_NE(refused.output.find("is not 128 digits of 0 to f"), std::string::npos) << refused.output;
}

TEST(ProbeOfADevice, WithoutOneIsAnErrorWithTheReason) {
  const Result r = shared().tessera({"probe", "--device", "cuda"});
  EXPECT_EQ(r.code, 2) << r.output;
  EXPECT_NE(r.output.find("run.device"), std::string::npos) << r.output;
}

TEST(DtypeOfADevice, IsDecidedByItsChipAndKeptWhereTheRunGoesOn) {
  const auto words = [](const char* name, const char* device, const char* steps) {
    return std::vector<std::string>{"train",
                                    shared().recipe(),
                                    "--run.out",
                                    shared().out(name),
                                    "--run.steps",
                                    steps,
                                    "--run.device",
                                    device,
                                    "--plan.compute_dtype",
                                    "auto",
                                    "--checkpoint.every",
                                    "1"};
  };
  const auto expect = [](const Result& r, int code, const std::string& words) {
    EXPECT_EQ(r.code, code) << r.output;
    EXPECT_NE(r.output.find(words), std::string::npos) << r.output;
  };
  expect(on_device(words("open", "auto", "1")), 0, "plan.compute_dtype = bf16: simulated is of sm_90");
  EXPECT_NE(text_of(shared().out("open") + "/recipe.toml").find("compute_dtype = \"bf16\""), std::string::npos);
  expect(on_device(words("open", "cpu", "2")), 0, "plan.compute_dtype = bf16: the run computed so");
  expect(on_device(words("begun-on-cpu", "cpu", "1")), 0, "plan.compute_dtype = fp32: a CPU computes");
  expect(on_device(words("begun-on-cpu", "auto", "2")), 0, "plan.compute_dtype = fp32: the run computed so");
}

TEST(DtypeOfADevice, ThatIsTooOldIsRefusedInOneSentence) {
  for (const char* chip : {"sm_75", "sm_70"}) {
    const auto train = [&](const char* device) {
      return on_device({"train", shared().recipe(), "--run.out", shared().out(std::string(chip) + device),
                        "--run.steps", "1", "--run.device", device},
                       {{"TESSERA_SIMULATED_CHIP", chip}});
    };
    const std::string why = std::string("simulated is of ") + chip +
                            ": LibTorch 2.11 or our kernels have no code for GPUs older than sm_80";
    const Result wanted = train("cuda"), free = train("auto");
    EXPECT_EQ(wanted.code, 2) << wanted.output;
    EXPECT_NE(wanted.output.find(why), std::string::npos) << wanted.output;
    EXPECT_EQ(free.code, 0) << free.output;
    EXPECT_NE(free.output.find(why + " (A100, RTX 30); the CPU computes"), std::string::npos) << free.output;
  }
}

/// The last line of a bench that is a JSON object.
nlohmann::json line_of(const Result& r) {
  nlohmann::json found;
  std::istringstream lines(r.output);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("{")) found = nlohmann::json::parse(line);
  return found;
}

/// A bench of two blocks in bf16, nothing recomputed.
std::vector<std::string> small_bench(std::vector<std::string> more) {
  std::vector<std::string> words = {
      "bench",     "--device",  "cuda",
      "--compute", "bf16",      "--latent",
      "16,1,8,8",  "--config",  R"({"dim":64,"num_heads":1,"num_layers":2,"ffn_dim":128,"in_dim":16,"out_dim":16})",
      "--steps",   "2",         "--warmup",
      "1",         "--profile", probed(shared(), 1)};
  if (!std::ranges::count(more, "--recompute")) more.insert(more.end(), {"--recompute", "none"});
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(BenchOnADevice, MayMultiplyIn8Bits) {
  std::map<std::string, int64_t> in_16_bits, peak;
  for (const std::string compute : {"fp8", "bf16"}) {
    const std::string file = shared().out("kernels-" + compute + ".json");
    const Result r = on_device(small_bench({"--compute", compute, "--kernels", file}));
    ASSERT_EQ(r.code, 0) << r.output;
    peak[compute] = line_of(r).at("predicted_peak_bytes").get<int64_t>();
    for (const auto& kernel : nlohmann::json::parse(text_of(file)))
      if (kernel.at("kernel") == "aten::addmm") in_16_bits[compute] += kernel.at("count").get<int64_t>();
  }
  EXPECT_GT(in_16_bits["fp8"], 0) << "embeddings and head";
  EXPECT_LT(2 * in_16_bits["fp8"], in_16_bits["bf16"]) << "the blocks' linears";
  EXPECT_NE(peak["fp8"], peak["bf16"]) << "codes of operands";
  const Result other = shared().tessera({"bench", "--config", "{}", "--compute", "fp4"});
  EXPECT_EQ(other.code, 2) << other.output;
  EXPECT_NE(other.output.find("bench: --compute"), std::string::npos) << other.output;
}

TEST(BenchOnADevice, ComparesItsStepsWithTheProfileOfTheDevice) {
  const Result r = on_device(small_bench({}), {{"TESSERA_SIMULATED_RECORD", "1"}});
  ASSERT_EQ(r.code, 0) << r.output;
  const nlohmann::json line = line_of(r);
  EXPECT_EQ(line.at("seconds").size(), 2U);
  EXPECT_GT(line.at("predicted_seconds").get<double>(), 0);
  EXPECT_GT(line.at("predicted_driver_bytes").get<int64_t>(),
            line.at("predicted_peak_bytes").get<int64_t>() + (512 << 20))
      << "the whole block, and a context beside it";
  EXPECT_LE(line.at("peak_bytes").get<int64_t>(), line.at("predicted_peak_bytes").get<int64_t>());
}

/// A frozen base in 16 bits without gradients or states is what an adapter is trained for; what it needs is in its plan.
TEST(BenchOnADevice, TrainsAdaptersOfAFrozenModelWithinItsPlan) {
  const Result full = on_device(small_bench({}));
  ASSERT_EQ(full.code, 0) << full.output;
  int64_t smaller = 0;
  for (const char* rank : {"2", "16"}) {
    const Result r = on_device(small_bench({"--lora", rank}), {{"TESSERA_SIMULATED_RECORD", "1"}});
    ASSERT_EQ(r.code, 0) << r.output;
    const nlohmann::json line = line_of(r);
    EXPECT_LE(line.at("peak_bytes").get<int64_t>(), line.at("predicted_peak_bytes").get<int64_t>());
    const auto persistent = line.at("persistent_bytes").get<int64_t>();
    EXPECT_GT(persistent, smaller) << "a higher rank has more parameters";
    EXPECT_LT(persistent, line_of(full).at("persistent_bytes").get<int64_t>() / 2);
    smaller = persistent;
  }
  const Result none = on_device(small_bench({"--lora", "0"}));
  EXPECT_EQ(none.code, 2) << none.output;
  EXPECT_NE(none.output.find("lora.rank"), std::string::npos) << none.output;
}

/// Longest first, each once. The simulated device launches nothing, so LibTorch's operators stand for kernels; a kept block has
/// fewer than a recomputed one, and the step that is recorded is none of those that are timed.
TEST(BenchOnADevice, WritesWhatAStepLaunches) {
  std::map<std::string, int64_t> products;
  for (const std::string recompute : {"none", "all"}) {
    const std::string file = shared().out("kernels-" + recompute + ".json");
    const Result r = on_device(small_bench({"--kernels", file, "--recompute", recompute}));
    ASSERT_EQ(r.code, 0) << r.output;
    EXPECT_EQ(line_of(r).at("seconds").size(), 2U);
    double last = std::numeric_limits<double>::infinity();
    std::set<std::string> names;
    for (const auto& kernel : nlohmann::json::parse(text_of(file))) {
      const auto name = kernel.at("kernel").get<std::string>();
      EXPECT_TRUE(names.insert(name).second) << name;
      EXPECT_GT(kernel.at("count").get<int64_t>(), 0) << name;
      EXPECT_LE(kernel.at("us").get<double>(), last) << name;
      last = kernel.at("us").get<double>();
      if (name == "aten::mm" || name == "aten::addmm") products[recompute] += kernel.at("count").get<int64_t>();
    }
  }
  EXPECT_GT(products["none"], 0);
  EXPECT_GT(products["all"], products["none"]);
}

}  // namespace
}  // namespace tessera::testing
