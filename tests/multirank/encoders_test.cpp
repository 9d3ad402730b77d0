// data.encoders: wherever clips and captions are encoded, beside the steps or before them, a run trains on the same bits.
#include <gtest/gtest.h>

#include <filesystem>

#include "program.h"
#include "tessera/data/video.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Flags = std::vector<std::string>;

constexpr const char* kSana = R"(preset = "sana-tiny-norms"
config = { num_cross_attention_heads = 4, num_layers = 2, caption_channels = 64, caption_length = 12, in_channels = 12 })";

struct Family {
  const char *name, *model;
  Flags flags;
};
const std::vector<Family>& families() {
  static const std::vector<Family> all = {
      {"wan", "", {"--diffusion.caption_dropout", "0.2"}},
      {"sana", kSana, {"--data.frames", "1", "--data.text_encoder", "gemma-2-demo"}}};
  return all;
}

/// Loss and norm of each step as they are written, to the last digit.
std::vector<std::string> numbers(const TinyRun& run, const std::string& name) {
  std::vector<std::string> lines;
  for (const auto& step : run.metrics(name)) lines.push_back(step["loss"].dump() + " " + step["grad_norm"].dump());
  return lines;
}

Flags with(const Family& family, const std::string& encoders, const Flags& more = {}) {
  Flags all = family.flags;
  all.insert(all.end(), {"--data.encoders", encoders, "--train.micro_batch", "1", "--run.steps", "5"});
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

class Encoders : public ::testing::TestWithParam<size_t> {
 protected:
  const Family& family() const { return families()[GetParam()]; }
  void train(int ranks, const std::string& name, const std::string& encoders, const Flags& more = {}) const {
    const Result r = run_.train(ranks, name, with(family(), encoders, more), 300);
    ASSERT_EQ(r.code, 0) << r.output;
  }
  const TinyRun run_{"encoders", TESSERA_BINARY, family().model};
};

TEST_P(Encoders, GiveTheSameStepsWhereverTheyAre) {
  for (const auto& [ranks, mesh] : {std::pair(1, "dp_shard=1"), {2, "dp_shard=2"}, {2, "tp=2"}, {2, "pp=2"}}) {
    const std::string own = mesh;
    train(ranks, "cached-" + own, "cached", {"--mesh", mesh});
    const std::vector<std::string> cached = numbers(run_, "cached-" + own);
    ASSERT_EQ(cached.size(), 5u);
    fs::remove_all(run_.folder() / "cache");
    for (const std::string place : {"host", "device", "sharded"}) {
      if (ranks == 1 && place == "sharded") continue;  // the same as on the device
      SCOPED_TRACE(place + " on " + own);
      // by one plan: the planner knows what encoders take beside a step, and may choose other stages
      train(ranks, place + "-" + own, place, {"--mesh", mesh, "--plan.file", run_.out("cached-" + own) + "/plan.toml"});
      EXPECT_EQ(numbers(run_, place + "-" + own), cached);
      EXPECT_FALSE(fs::exists(run_.folder() / "cache")) << "nothing is cached";
    }
    fs::remove_all(run_.folder() / "cache");
  }
}

TEST_P(Encoders, ResumeInAnotherPlaceAndOnAnotherLayout) {
  train(1, "whole", "cached");
  const Flags halves = {"--checkpoint.every", "2", "--mesh", "dp_shard=2"};
  train(2, "parts", "host", {"--checkpoint.every", "2", "--mesh", "dp_shard=2", "--run.steps", "2"});
  train(2, "parts", "sharded", {"--checkpoint.every", "2", "--mesh", "dp_replicate=2", "--run.steps", "4"});
  train(2, "parts", "device", halves);
  const auto whole = run_.metrics("whole"), parts = run_.metrics("parts");
  ASSERT_EQ(parts.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i)
    EXPECT_NEAR(parts[i]["loss"].get<double>(), whole[i]["loss"].get<double>(), 1e-5 * whole[i]["loss"].get<double>());
}

INSTANTIATE_TEST_SUITE_P(Families, Encoders, ::testing::Range(size_t{0}, families().size()),
                         [](const auto& info) { return families()[info.param].name; });

/// Bytes of each place in the plan and as they were measured.
TEST(EncodersBytes, ArePlannedWhereTheyAre) {
  const TinyRun run("encoders-bytes", TESSERA_BINARY, kSana);
  std::map<std::string, nlohmann::json> plans;
  std::map<std::string, int64_t> peaks, hosts;
  for (const std::string place : {"cached", "host", "device", "sharded"}) {
    const Result r = run.train(2, place, with(families()[1], place, {"--mesh", "dp_shard=2"}), 300);
    ASSERT_EQ(r.code, 0) << r.output;
    const nlohmann::json plan = json_of(run.out(place) + "/plan.json");
    plans[place] = plan.is_array() ? plan[0] : plan;
    const auto steps = run.metrics(place);
    ASSERT_EQ(steps.size(), 5u);
    int64_t predicted = 0;
    for (const auto& rank : steps.back()["ranks"]) {
      predicted = std::max(predicted, rank["predicted_peak_bytes"].get<int64_t>());
      peaks[place] = std::max(peaks[place], rank["peak_bytes"].get<int64_t>());
      hosts[place] = std::max(hosts[place], rank["bytes"]["host"].get<int64_t>());
      EXPECT_LE(rank["peak_bytes"].get<int64_t>(), rank["predicted_peak_bytes"].get<int64_t>()) << place;
    }
    EXPECT_EQ(plans[place]["device"]["peak_bytes"].get<int64_t>(), predicted) << place << ": one number everywhere";
    std::printf("%s: device %ld of %ld bytes, host %ld of %ld\n", place.c_str(), static_cast<long>(peaks[place]),
                static_cast<long>(plans[place]["device"]["peak_bytes"].get<int64_t>()), static_cast<long>(hosts[place]),
                static_cast<long>(plans[place]["host"]["encoders_bytes"].get<int64_t>()));
  }
  const auto text = [&](const std::string& place) {
    return plans[place]["encoders"]["text_held_bytes"].get<int64_t>();
  };
  EXPECT_EQ(text("host"), text("device"));
  // on the host they take nothing of the device, and their weights of the host, within what the plan says
  EXPECT_EQ(plans["host"]["device"]["peak_bytes"], plans["cached"]["device"]["peak_bytes"]);
  EXPECT_EQ(peaks["host"], peaks["cached"]);
  EXPECT_GE(hosts["host"] - hosts["cached"], text("host"));
  EXPECT_LE(hosts["host"] - hosts["cached"], plans["host"]["host"]["encoders_bytes"].get<int64_t>());
  EXPECT_EQ(hosts["device"], hosts["cached"]);
  for (const std::string place : {"device", "sharded"}) {
    EXPECT_EQ(plans[place]["host"]["encoders_bytes"], 0);
    EXPECT_GE(plans[place]["device"]["peak_bytes"].get<int64_t>(),
              plans["cached"]["device"]["peak_bytes"].get<int64_t>() + text(place));
    EXPECT_GE(peaks[place], peaks["cached"] + text(place)) << place << ": the weights are there in every step";
  }
}

/// Seconds of each place in the plan: what encoding takes a step, what the step hides of it, and the step with the rest.
TEST(EncodersSeconds, ArePlannedAndLengthenTheStepThatDoesNotHideThem) {
  const TinyRun run("encoders-seconds", TESSERA_BINARY, kSana);
  const auto planned = [&](const std::string& place, const Flags& more = {}) {
    Flags all = {"plan", run.recipe(),     "--json", "--mesh", "dp_shard=2", "--train.global_batch",
                 "6",    "--plan.profile", "h200"};
    const Flags of_place = with(families()[1], place, more);
    all.insert(all.end(), of_place.begin(), of_place.end());
    const Result r = run.tessera(all);
    const size_t first = r.output.find("{\n"), last = r.output.rfind("\n}");
    if (r.code != 0 || last == std::string::npos) ADD_FAILURE() << place << "\n" << r.output;
    return r.code == 0 ? nlohmann::json::parse(r.output.substr(first, last + 2 - first)) : nlohmann::json::object();
  };
  std::map<std::string, nlohmann::json> steps;
  for (const std::string place : {"cached", "host", "device", "sharded"}) {
    const nlohmann::json plan = planned(place);
    ASSERT_TRUE(plan.contains("encoders")) << place;
    const auto& encoders = plan["encoders"];
    const auto& step = steps[place] = plan["step_seconds"];
    const auto seconds = [](const nlohmann::json& of, const char* key) { return of[key].get<double>(); };
    double parts = 0;
    for (const char* part : {"compute", "exposed_comm", "exposed_copy", "bubble", "optimizer", "encoders"})
      parts += seconds(step, part);
    EXPECT_NEAR(parts, seconds(step, "total"), 1e-9) << place;
    const double captions = seconds(encoders, "captions_seconds"), clips = seconds(encoders, "clips_seconds");
    const double hidden = seconds(encoders, "hidden_seconds");
    EXPECT_NEAR(hidden + seconds(step, "encoders"), captions + clips, 1e-9) << place;
    if (place == "cached") {
      EXPECT_EQ(captions, 0);
      EXPECT_EQ(clips, 0);
      continue;
    }
    for (const std::string what : {"caption", "clip"}) {
      EXPECT_EQ(encoders[what + "s"], 3) << what << "s of six samples on two ranks";
      const double each = seconds(encoders, (what + "_seconds").c_str());
      EXPECT_GT(each, 0) << what;
      EXPECT_NEAR(seconds(encoders, (what + "s_seconds").c_str()), 3 * each, 1e-12) << what;
    }
    const double cached = seconds(steps["cached"], "total");
    if (place == "host") EXPECT_NEAR(hidden, std::min(captions + clips, cached), 1e-12) << "behind the whole step";
    if (place == "sharded") EXPECT_GE(seconds(step, "encoders"), captions - 1e-12) << "none of the captions";
    if (place != "host") EXPECT_LT(hidden, cached) << "the step computes for a part of it";
  }
  for (const std::string place : {"host", "device", "sharded"})
    EXPECT_EQ(planned(place, {"--plan.profile", "cpu"})["encoders"]["hidden_seconds"], 0)
        << place << ": one set of cores";
  const auto total = [&](const char* place) { return steps[place]["total"].get<double>(); };
  EXPECT_GT(total("sharded"), total("cached"));
  EXPECT_GE(total("device"), total("host")) << "there they share the device with the step";
  EXPECT_GE(total("host"), total("cached"));

  const auto small = planned("sharded"), on_cpu = planned("sharded", {"--plan.profile", "cpu"}),
             large = planned("sharded", {"--data.text_encoder", "gemma-2-2b", "--model.config.caption_channels", "2304",
                                         "--plan.budget", "64GiB", "--plan.profile", "cpu"});
  EXPECT_GT(large["encoders"]["caption_seconds"].get<double>(),
            100 * on_cpu["encoders"]["caption_seconds"].get<double>())
      << "two billion parameters, gathered from two ranks";
  // clips alone where captions are encoded before the steps, none where latents are read
  const auto online = planned("cached", {"--data.cache", "online"})["encoders"];
  EXPECT_EQ(online["captions"], 0);
  EXPECT_EQ(online["clip_seconds"], small["encoders"]["clip_seconds"]);
  EXPECT_EQ(planned("device", {"--data.latents", "npy"})["encoders"]["clips"], 0);
  const auto released = planned("device", {"--data.vae", "dc-ae-f32c32", "--data.size", "32,32",
                                           "--model.config.in_channels", "32", "--plan.budget", "8GiB"});
  EXPECT_GT(released["encoders"]["clip_seconds"].get<double>(), 100 * small["encoders"]["clip_seconds"].get<double>());
  Flags text = {"plan", run.recipe(), "--mesh", "dp_shard=2"};
  const Flags sharded = with(families()[1], "sharded");
  text.insert(text.end(), sharded.begin(), sharded.end());
  const std::string said = run.tessera(text).output;
  for (const char* words : {"captions of", "clips of", "hidden behind the step", "between two steps"})
    EXPECT_NE(said.find(words), std::string::npos) << words << " in\n" << said;
}

TEST(EncodersBytes, OfALargeEncoderShardsTakeLess) {
  const TinyRun run("encoders-shards");
  const auto planned = [&](const std::string& place) {
    const Result r = run.tessera({"plan", run.recipe(), "--json", "--mesh", "dp_shard=4", "--data.encoders", place,
                                  "--data.text_encoder", "umt5-xxl", "--model.config.text_dim", "4096", "--plan.budget",
                                  "64GiB", "--plan.host_budget", "256GiB"});
    const size_t first = r.output.find("{\n"), last = r.output.rfind("\n}");
    const nlohmann::json json = last == std::string::npos
                                    ? nlohmann::json::object()
                                    : nlohmann::json::parse(r.output.substr(first, last + 2 - first), nullptr, false);
    if (!json.is_object()) ADD_FAILURE() << r.output;
    if (!json.is_object()) return std::pair(int64_t{0}, int64_t{0});
    EXPECT_TRUE(json.contains("encoders")) << r.output;
    return std::pair(json.value(nlohmann::json::json_pointer("/encoders/text_held_bytes"), int64_t{0}),
                     json.value(nlohmann::json::json_pointer("/device/peak_bytes"), int64_t{0}));
  };
  const auto [whole, on_device] = planned("device");
  const auto [shard, on_devices] = planned("sharded");
  const auto [on_host, without] = planned("host");
  EXPECT_GT(whole, int64_t{20} << 30) << "UMT5-XXL in fp32";
  EXPECT_EQ(on_host, whole);
  EXPECT_LT(shard, whole / 2) << "a quarter, and the slots of two units, of which one is the table of words";
  EXPECT_GT(on_device, without + whole);
  EXPECT_GT(on_devices, without + shard);
  EXPECT_LT(on_devices, on_device);
}

TEST(EncodersBytes, WhatIsNotThereIsRefusedByName) {
  const TinyRun run("encoders-refused");
  const auto refused = [&](const Flags& flags) {
    Flags all = {"plan", run.recipe()};
    all.insert(all.end(), flags.begin(), flags.end());
    return run.tessera(all);
  };
  const Result gate = refused({"--data.encoders", "sharded", "--experts.router", "gate"});
  EXPECT_EQ(gate.code, 2);
  EXPECT_NE(gate.output.find("data.encoders = \"sharded\" with experts.router = \"gate\""), std::string::npos)
      << gate.output;
  const Result host = refused({"--data.encoders", "host", "--plan.host_budget", "64KiB"});
  EXPECT_EQ(host.code, 4);
  EXPECT_NE(host.output.find("data.encoders"), std::string::npos) << host.output;
  const Result cache = refused({"--data.encoders", "device", "--data.cache", "elsewhere"});
  EXPECT_EQ(cache.code, 0) << cache.output;
  EXPECT_NE(cache.output.find("data.encoders caches nothing"), std::string::npos) << cache.output;
}

}  // namespace
}  // namespace tessera::testing
