// Experts that a learned gate chooses among: every layout learns the same, ranks that disagree included; only those
// that were chosen are gathered, reduced and moved.
#include "gate_runs.h"

namespace tessera::testing::gate_runs {
namespace {

int64_t active(const nlohmann::json& step) {
  const auto samples = samples_of(step);
  return std::count_if(samples.begin(), samples.end(), [](int64_t n) { return n > 0; });
}

void expect_the_same(const Layout& layout, bool hard) {
  const auto expected = gated().metrics(alone(hard));
  const std::string run = layout.name + std::string(hard ? "" : "-soft");
  train(layout.ranks, run, gate_of(3) + Flags{"--experts.hard", hard ? "true" : "false"} + layout.flags);
  const auto steps = gated().metrics(run);
  ASSERT_EQ(steps.size(), expected.size()) << run;
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(samples_of(steps[i]), samples_of(expected[i])) << run << ", step " << i + 1;
    for (const char* key : {"loss", "grad_norm"}) {
      const double wanted = expected[i][key];
      EXPECT_NEAR(steps[i][key].get<double>(), wanted, 2e-6 * std::abs(wanted)) << run << ", step " << i + 1;
    }
    const double learned = expected[i]["gate"]["grad_norm"];
    EXPECT_NEAR(steps[i]["gate"]["grad_norm"].get<double>(), learned, 1e-4 * learned) << run << ", step " << i + 1;
  }
}

TEST(Gate, EveryLayoutLearnsAsOneRankDoes) {
  const Layout shards = {"dp_shard", 2, {"--mesh.dp_shard", "2", "--train.micro_batch", "1"}};
  for (const bool hard : {true, false}) expect_the_same(shards, hard);
  const std::vector<Layout> others = {
      {"dp_replicate", 2, {"--mesh.dp_replicate", "2", "--plan.idle", "host", "--plan.states", "host"}},
      {"both", 4, {"--mesh.dp_replicate", "2", "--mesh.dp_shard", "2", "--plan.strategy", "shard_grad_op"}},
      {"pp", 2, {"--mesh.pp", "2", "--train.micro_batch", "1"}},
      {"cp", 2, {"--mesh.cp", "2"}},
      {"sp", 2, {"--mesh.sp", "2"}},
      {"tp", 2, {"--mesh.tp", "2", "--train.micro_batch", "2"}},
      {"sp-shard", 4, {"--mesh.sp", "2", "--mesh.dp_shard", "2"}}};
  MatrixPart part("layouts of a gate", 2 * static_cast<int>(others.size()));
  for (const int i : part) expect_the_same(others[static_cast<size_t>(i / 2)], i % 2 == 0);
}

TEST(Gate, OnlyThoseThatWereChosenMove) {
  train(2, "few", gate_of(6) + Flags{"--train.global_batch", "2"}, 2);
  std::vector<int64_t> updates(6, 0);
  for (const auto& step : gated().metrics("few")) {
    double squares = 0;
    for (size_t e = 0; e < 6; ++e) {
      const auto& own = step["gate"]["experts"][e];
      updates[e] += own["samples"] > 0;
      EXPECT_EQ(own["updates"], updates[e]);
      EXPECT_EQ(own["grad_norm"] > 0, own["samples"] > 0);
      squares += std::pow(own["grad_norm"].get<double>(), 2);
    }
    EXPECT_NEAR(step["grad_norm"].get<double>(), std::sqrt(squares), 1e-12);
  }
  std::map<std::string, std::vector<int64_t>> by_weights;
  for (int e = 0; e < 6; ++e) by_weights[weights("few", e)].push_back(updates[static_cast<size_t>(e)]);
  const auto untouched = static_cast<size_t>(std::count(updates.begin(), updates.end(), 0));
  ASSERT_GE(untouched, 2u);
  EXPECT_EQ(by_weights.size(), 6 - untouched + 1) << "those without an update are still the one model they began as";
}

/// docs/experts.md: a step of k experts sends k times what a step of one model sends.
TEST(Gate, SendsWhatTheFormulaSays) {
  constexpr int64_t kExperts = 5;
  for (const bool several : {false, true}) {
    const std::string name = several ? "several" : "single";
    // shard_states: each unit gathered once and reduced once a step, however many micro-batches there are
    const Flags how =
        several ? Flags{"--train.global_batch", "8", "--train.micro_batch", "1", "--plan.strategy", "shard_states"}
                : Flags{"--train.global_batch", "2", "--experts.balance", "0"};
    train(2, name + "-dense", how, 3);
    train(2, name, gate_of(kExperts) + how, 16);
    const auto sent = [](const nlohmann::json& step, size_t rank) {
      return step["ranks"][rank]["sent_bytes"]["dp_shard"].get<int64_t>();
    };
    const auto steps = gated().metrics(name);
    std::set<int64_t> seen;
    if (!several)
      EXPECT_GE(std::count_if(steps.begin(), steps.end(), [](const auto& step) { return active(step) == 2; }), 10)
          << "of two samples on two ranks each has an expert that the other rank has no sample for";
    for (size_t rank = 0; rank < 2; ++rank) {
      const int64_t one = sent(gated().metrics(name + "-dense")[1], rank);
      for (size_t i = 1; i < steps.size(); ++i) {
        const int64_t k = active(steps[i]);
        seen.insert(k);
        EXPECT_EQ(sent(steps[i], rank), k * one) << name << ", step " << i + 1;
      }
    }
    EXPECT_GE(seen.size(), 2u) << name << ": steps with more and with fewer experts";
  }
}

TEST(Gate, TakesTheMemoryThatWasPredicted) {
  for (const char* hard : {"true", "false"}) {
    const std::string name = std::string("memory-") + hard;
    train(2, name, gate_of(3) + Flags{"--train.micro_batch", "1", "--experts.hard", hard}, 4);
    expect_planned_peaks(gated().metrics(name).back(), name);
  }
}

TEST(Gate, ResumesAndSamplesBitForBit) {
  const Flags flags = gate_of(3) + Flags{"--checkpoint.every", "1", "--checkpoint.keep", "0", "--plan.idle", "host",
                                         "--sample.every",     "3", "--sample.steps",    "2"};
  train(2, "whole", flags, 6);
  for (const char* step : {"step-000001", "step-000004"}) {
    const std::string name = std::string("resumed-") + step, at = std::string("/checkpoints/") + step;
    fs::create_directories(gated().out(name) + "/checkpoints");
    fs::copy(gated().out("whole") + at, gated().out(name) + at, fs::copy_options::recursive);
    fs::copy(gated().out("whole") + "/metrics.jsonl", gated().out(name) + "/metrics.jsonl");
    train(2, name, flags, 6);
    EXPECT_EQ(curve(name), curve("whole")) << step;
    for (int e = 0; e < 3; ++e) EXPECT_EQ(weights(name, e), weights("whole", e));
    EXPECT_EQ(text_of(gated().out(name) + "/model/gate.safetensors"),
              text_of(gated().out("whole") + "/model/gate.safetensors"));
  }
  const auto sample = [&](const std::string& weights, const Flags& more) {
    const std::string file = gated().out("sample.gif");
    const Result made = gated().tessera(Flags{"sample", gated().recipe(), "--weights", weights, "--out", file,
                                              "--sample.steps", "3", "--sample.prompts", "a square"} +
                                        gate_of(3) + more);
    EXPECT_EQ(made.code, 0) << made.output;
    return text_of(file);
  };
  const std::string model = gated().out("whole") + "/model", clip = sample(model, {});
  EXPECT_EQ(sample(gated().out("whole") + "/checkpoints/step-000006", {}), clip);
  EXPECT_NE(sample(model, {"--experts.hard", "false"}), clip) << "all of them answer";
  const auto seen = nlohmann::json::parse(gated().tessera({"inspect", "--json", model}).output);
  EXPECT_EQ(seen["layout"], "gate folder");
  EXPECT_EQ(seen["parts"].size(), 4u) << seen;
  const Result converted = gated().tessera({"convert", model, gated().out("converted"), "--to", "diffusers"});
  EXPECT_EQ(converted.code, 2) << converted.output;
  EXPECT_NE(converted.output.find("convert one of them"), std::string::npos) << converted.output;
  train(1, "again", gate_of(3) + Flags{"--model.path", model}, 1);
  EXPECT_NE(weights("again", 0), weights("again", 1)) << "a next run goes on with the experts as they are";
}

/// A step of which a pass overflowed moves nothing: neither the other experts' passes nor the gate.
TEST(Gate, LearnsFromWholeStepsAlone) {
  for (const char* hard : {"true", "false"}) {
    const std::string name = std::string("overflows-") + hard;
    train(1, name,
          gate_of(2) + Flags{"--experts.hard", hard, "--plan.compute_dtype", "fp16", "--train.loss_scale", "1e10",
                             "--train.loss_scale_window", "100"},
          12);
    const size_t skipped = gated().metrics(name, "skip").size(), made = gated().metrics(name).size();
    EXPECT_GT(skipped, 0u) << hard;
    EXPECT_GT(made, 0u) << hard;
    const auto manifest = json_of(gated().out(name) + "/checkpoints/step-000012/manifest.json");
    EXPECT_EQ(manifest["gate"]["updates"].get<size_t>(), made) << hard;
    EXPECT_EQ(made + skipped, 12u);
  }
}

/// The first moment after one step, with beta 0, is the gradient: held against the loss itself, with a bias moved a
/// little.
TEST(Gate, LearnsTheGradientOfTheLossThatWasBooked) {
  train(1, "source", gate_of(2) + Flags{"--train.lr", "1e-2"}, 6);  // copies of one model would have no gradient
  const Flags soft =
      gate_of(2) + Flags{"--experts.hard",    "false", "--experts.balance", "0",    "--model.path", gated().out("from"),
                         "--train.clip_norm", "0",     "--train.betas",     "0,0.9"};
  const auto loss_with = [&](float bias, const std::string& name) {
    fs::remove_all(gated().out("from"));
    fs::copy(gated().out("source") + "/model", gated().out("from"), fs::copy_options::recursive);
    const std::string file = gated().out("from") + "/gate.safetensors";
    const auto open = checkpoint::SafetensorsFile::open(file);
    std::vector<std::vector<float>> values;
    std::vector<checkpoint::TensorData> tensors;
    for (const auto& entry : open.entries()) {
      values.emplace_back(static_cast<size_t>(entry.count()));
      open.read_f32(entry.name, 0, entry.count(), values.back().data());
      if (entry.name == "gate.bias") values.back()[0] += bias;
      tensors.push_back({entry.name, entry.dtype, entry.shape, nullptr});
    }
    for (size_t i = 0; i < tensors.size(); ++i) tensors[i].data = values[i].data();
    checkpoint::write_safetensors(file, tensors);
    train(1, name, soft, 1);
    return gated().metrics(name)[0]["loss"].get<double>();
  };
  constexpr float kMove = 0.1F;
  const double slope = (loss_with(kMove, "up") - loss_with(-kMove, "down")) / (2 * kMove);
  loss_with(0, "here");
  checkpoint::TrainingCheckpoint saved(gated().out("here") + "/checkpoints/step-000001");
  float gradient[2];
  saved.read_f32({"gate.bias", "exp_avg", DType::f32, {2}}, gradient);
  EXPECT_NEAR(gradient[0], -gradient[1], 1e-6 * std::abs(gradient[0])) << "what one gains the other loses";
  ASSERT_NE(gradient[0], 0);
  EXPECT_NEAR(gradient[0], slope, 0.02 * std::abs(slope));
}

TEST(Gate, WhatDoesNotGoTogetherIsToldWithAReason) {
  const auto told = [](const Flags& flags, int code, const std::string& why) {
    const Result r = gated().train(1, "wrong", flags + Flags{"--run.steps", "1"});
    EXPECT_EQ(r.code, code) << r.output;
    EXPECT_NE(r.output.find(why), std::string::npos) << r.output;
  };
  told(gate_of(3) + Flags{"--experts.train", "both"}, 2, "a gate chooses among experts without timestep ranges");
  told(gate_of(1), 2, "experts.count");
  told(gate_of(2) + Flags{"--experts.temperature", "0"}, 2, "experts.temperature");
  told(gate_of(2) + Flags{"--experts.turn", "4", "--run.out", gated().out("turn")}, 0,
       "experts.turn = 4 has no effect");
  told({"--experts.count", "3", "--run.out", gated().out("count")}, 0, "experts.count = 3 has no effect");
  fs::create_directories(gated().out("two") + "/expert_0");
  fs::create_directories(gated().out("two") + "/expert_1");
  told(gate_of(3) + Flags{"--model.path", gated().out("two")}, 2, "set experts.count = 2");
  for (const char* wrong : {"0.5,0.5", "1,1,-1", "0,0,0", "nan,1,1"})
    told(gate_of(3) + Flags{"--experts.frequencies", wrong}, 2, "experts.frequencies");
  told(gate_of(3) + Flags{"--experts.frequencies", gated().out("no-run")}, 3, "no-run");
  told({"--experts.frequencies", "1,2", "--run.out", gated().out("frequencies")}, 0, "has no effect");
  told({"--model.path", gated().out("two")}, 2, "experts.router");
}

}  // namespace
}  // namespace tessera::testing::gate_runs
