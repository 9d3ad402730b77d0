// Samples that go to the ranks by the experts that a gate chose for them, experts side by side, and plans that suit how often an
// expert is chosen.
#include "gate_runs.h"

namespace tessera::testing::gate_runs {
namespace {

/// The folder of a model whose gate chooses with these frequencies, whatever the sample is.
std::string chosen_with(const std::vector<double>& frequencies) {
  const std::string count = std::to_string(frequencies.size()), source = "chosen-from-" + count;
  std::string name = "chosen";
  for (const double frequency : frequencies) name += "-" + std::to_string(static_cast<int>(1000 * frequency));
  if (fs::exists(gated().out(name))) return gated().out(name);
  if (!fs::exists(gated().out(source))) train(1, source, gate_of(static_cast<int>(frequencies.size())), 1);
  fs::copy(gated().out(source) + "/model", gated().out(name), fs::copy_options::recursive);
  const std::string file = gated().out(name) + "/gate.safetensors";
  const auto open = checkpoint::SafetensorsFile::open(file);
  std::vector<std::vector<float>> values;
  std::vector<checkpoint::TensorData> tensors;
  for (const auto& entry : open.entries()) {
    values.emplace_back(static_cast<size_t>(entry.count()), 0.0F);  // no weights, and a temperature of 1
    for (size_t e = 0; entry.name == "gate.bias" && e < frequencies.size(); ++e)
      values.back()[e] = static_cast<float>(std::log(frequencies[e]));
    tensors.push_back({entry.name, entry.dtype, entry.shape, nullptr});
  }
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].data = values[i].data();
  checkpoint::write_safetensors(file, tensors);
  return gated().out(name);
}

Flags frequent(const std::vector<double>& frequencies, const char* deal = "auto", const char* share = "off") {
  return gate_of(static_cast<int>(frequencies.size())) + Flags{"--model.path",         chosen_with(frequencies),
                                                               "--experts.balance",    "0",
                                                               "--train.global_batch", "8",
                                                               "--experts.deal",       deal,
                                                               "--experts.share",      share,
                                                               "--train.micro_batch",  "1"};
}

/// What the instructions of a run say that its ranks ran.
struct Traced {
  plan::ExpertShares shares;                // micro-batches with a sample, which are samples here
  std::map<int, int64_t> sent;              // bytes of the deal, by rank
  std::map<size_t, int64_t> micros, slots;  // by expert: of a rank; of all of them
  int64_t dummies = 0;
};
std::map<int64_t, Traced> traced(const std::string& file, const Mesh& mesh, size_t experts) {
  std::map<int64_t, std::map<std::pair<int, size_t>, std::map<int, bool>>> ran;  // whether a sample was there
  std::map<int64_t, Traced> steps;
  for (const std::string& line : lines_of(file)) {
    const auto in = nlohmann::json::parse(line);
    const std::string phase = in["phase"], op = in["op"];
    const int64_t step = in["step"];
    const int rank = in["rank"];
    if (phase == "deal") steps[step].sent[rank] += in["bytes"].get<int64_t>();
    if (!phase.starts_with("train expert_") || (op != "backward" && op != "idle")) continue;
    bool& there = ran[step][{rank, std::stoul(phase.substr(13))}][in["micro"].get<int>()];
    there = there || op == "backward";
  }
  for (const auto& [step, of_step] : ran) {
    Traced& seen = steps[step];
    seen.shares.assign(experts, std::vector<int64_t>(static_cast<size_t>(mesh.dp_size()), 0));
    for (const auto& [who, micros] : of_step) {
      const auto& [rank, expert] = who;
      const auto with = std::ranges::count_if(micros, [](const auto& micro) { return micro.second; });
      int64_t& samples = seen.shares[expert][static_cast<size_t>(mesh.dp_rank(rank))];
      EXPECT_TRUE(samples == 0 || samples == with) << "ranks that share samples run the same";
      samples = with;
      seen.dummies += std::ssize(micros) - with, seen.slots[expert] += std::ssize(micros);
    }
  }
  return steps;
}

/// The curve is that of one rank; what moved is what the counts say, to the byte; nothing idles that need not.
void expect_dealt(const Layout& layout, const std::vector<double>& frequencies) {
  std::string name = std::to_string(frequencies.size());
  for (const double f : frequencies) name += "-" + std::to_string(static_cast<int>(1000 * f));
  const std::string one = "dealt-alone-" + name;
  if (!fs::exists(gated().out(one))) train(1, one, frequent(frequencies));
  const auto expected = gated().metrics(one);
  Mesh mesh;
  for (size_t f = 0; f + 1 < layout.flags.size(); f += 2)
    for (const Axis axis : kAllAxes)
      if (layout.flags[f] == "--mesh." + std::string(axis_name(axis))) mesh[axis] = std::stoi(layout.flags[f + 1]);
  ASSERT_EQ(mesh.world(), layout.ranks) << layout.name;
  std::map<std::string, std::map<int64_t, Traced>> ran;
  std::map<std::string, std::vector<nlohmann::json>> steps;
  for (const char* deal : {"off", "auto"}) {
    const std::string run = "dealt-" + std::string(layout.name) + "-" + name + "-" + deal,
                      trace = gated().out(run + ".jsonl");
    train(layout.ranks, run, frequent(frequencies, deal) + layout.flags + Flags{"--trace-schedule", trace});
    ran[deal] = traced(trace, mesh, frequencies.size());
    steps[deal] = gated().metrics(run);
    ASSERT_EQ(steps[deal].size(), expected.size()) << run;
    const Result check = gated().tessera({"plan", "--check", trace});
    EXPECT_EQ(check.code, 0) << run << "\n" << check.output;
  }
  std::set<int64_t> message_bytes;
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto number = static_cast<int64_t>(i + 1);
    const std::string where = std::string(layout.name) + ", " + name + ", step " + std::to_string(number);
    const plan::Deal deal = plan::deal(ran["off"][number].shares);
    EXPECT_EQ(ran["auto"][number].shares, deal.shares) << where;
    for (const char* how : {"off", "auto"}) {
      const auto& step = steps[how][i];
      EXPECT_EQ(samples_of(step), samples_of(expected[i])) << where << how;
      for (const char* key : {"loss", "grad_norm"}) {
        const double wanted = expected[i][key];
        EXPECT_NEAR(step[key].get<double>(), wanted, 2e-6 * std::abs(wanted)) << where << ", " << key << ", " << how;
      }
      const double learned = expected[i]["gate"]["grad_norm"];
      EXPECT_NEAR(step["gate"]["grad_norm"].get<double>(), learned, 1e-4 * learned + 1e-9) << where << how;
      const Traced& seen = ran[how][number];
      const plan::StepUse use = plan::step_use(seen.shares, {1});
      EXPECT_DOUBLE_EQ(step["gate"]["idle_share"].get<double>(), use.idle()) << where << how;
      int64_t slots = 0;
      for (const auto& [expert, of_expert] : seen.slots) slots += of_expert;
      EXPECT_DOUBLE_EQ(step["gate"]["dummy_share"].get<double>(),
                       static_cast<double>(seen.dummies) / static_cast<double>(slots))
          << where << how;
      EXPECT_DOUBLE_EQ(step["gate"]["undealt_idle_share"].get<double>(),
                       plan::step_use(ran["off"][number].shares, {1}).idle())
          << where << how;
    }
    int64_t moved = 0;
    for (int rank = 0; rank < layout.ranks; ++rank) {
      const int64_t samples = deal.sent(mesh.dp_rank(rank));
      const auto& own = steps["auto"][i]["ranks"][static_cast<size_t>(rank)];
      const int64_t sent = own["sent_bytes"].value("deal", int64_t{0});
      EXPECT_EQ(ran["auto"][number].sent[rank], sent) << where << ", rank " << rank;
      EXPECT_EQ(steps["off"][i]["ranks"][static_cast<size_t>(rank)]["sent_bytes"].count("deal"), 0u) << where;
      if (samples == 0) {
        EXPECT_EQ(sent, 0) << where << ", rank " << rank;
        continue;
      }
      EXPECT_EQ(sent % samples, 0) << where << ", rank " << rank;
      message_bytes.insert(sent / samples);
      moved += samples;
    }
    EXPECT_EQ(steps["auto"][i]["gate"]["moved_samples"].get<int64_t>(), moved / (mesh.world() / mesh.dp_size()))
        << where;
    // Each tensor of a sample, the number that says how long it is, and its head.
    const int64_t own = steps["auto"][i]["ranks"][0]["samples_bytes"], count = 8 / mesh.dp_size();
    for (const int64_t bytes : message_bytes) EXPECT_NEAR(bytes, own / count + 1024 + 8, 3 * 64) << where;
  }
  EXPECT_LE(message_bytes.size(), 1u) << layout.name << ": samples are alike";
}

TEST(DealtSamples, TrainTheCurveOfOneRankAndMoveWhatTheCountsSay) {
  const std::vector<Layout> layouts = {{"shard-2", 2, {"--mesh.dp_shard", "2"}},
                                       {"shard-3", 3, {"--mesh.dp_shard", "3"}},
                                       {"shard-4", 4, {"--mesh.dp_shard", "4"}},
                                       {"replicas", 4, {"--mesh.dp_replicate", "2", "--mesh.dp_shard", "2"}},
                                       {"shard-tp", 4, {"--mesh.dp_shard", "2", "--mesh.tp", "2"}},
                                       {"shard-pp", 4, {"--mesh.dp_shard", "2", "--mesh.pp", "2"}},
                                       {"shard-sp", 4, {"--mesh.dp_shard", "2", "--mesh.sp", "2"}},
                                       {"shard-cp", 4, {"--mesh.dp_shard", "2", "--mesh.cp", "2"}}};
  const std::vector<std::vector<double>> frequencies = {{0.9, 0.1}, {0.6, 0.3, 0.1}, {0.2, 0.2, 0.2, 0.2, 0.2}};
  const auto count = static_cast<int>(frequencies.size());
  MatrixPart part("dealt samples", count * static_cast<int>(layouts.size()));
  for (const int i : part)
    expect_dealt(layouts[static_cast<size_t>(i / count)], frequencies[static_cast<size_t>(i % count)]);
}

TEST(DealtSamples, AreSpreadOverRanksThatDoNotDivideThem) {
  const std::vector<double> frequencies = {0.6, 0.3, 0.1};
  const std::string one = "thirds-alone";
  train(1, one, frequent(frequencies));
  train(3, "thirds", frequent(frequencies) + Flags{"--mesh.dp_shard", "3"});
  const auto expected = gated().metrics(one), steps = gated().metrics("thirds");
  ASSERT_EQ(steps.size(), expected.size());
  int64_t moved = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    const double wanted = expected[i]["loss"];
    EXPECT_NEAR(steps[i]["loss"].get<double>(), wanted, 2e-6 * std::abs(wanted)) << i;
    EXPECT_EQ(samples_of(steps[i]), samples_of(expected[i])) << i;
    int64_t room = 0;
    for (const int64_t samples : samples_of(steps[i])) room += 3 * ((samples + 2) / 3);
    EXPECT_DOUBLE_EQ(steps[i]["gate"]["idle_share"].get<double>(), 1 - 8 / static_cast<double>(room)) << i;
    moved += steps[i]["gate"]["moved_samples"].get<int64_t>();
  }
  EXPECT_GT(moved, 0);
}

/// Of `plan --json`.
nlohmann::json planned(const Flags& flags) {
  const Result r = gated().tessera(Flags{"plan", gated().recipe(), "--json"} + flags);
  EXPECT_EQ(r.code, 0) << r.output;
  const size_t first = r.output.find("{\n"), last = r.output.rfind("\n}");
  if (first == std::string::npos || last == std::string::npos) return nlohmann::json::object();
  return nlohmann::json::parse(r.output.substr(first, last + 2 - first))["experts"];
}

/// The plan says how long ranks will idle, of frequencies that are given or that a run has measured.
TEST(DealtSamples, LeaveRanksIdleAsThePlanSays) {
  for (const std::vector<double>& frequencies : {std::vector<double>{0.9, 0.1}, {0.6, 0.3, 0.1}}) {
    std::string list;
    for (const double f : frequencies) list += (list.empty() ? "" : ",") + std::to_string(f);
    const Flags flags = frequent(frequencies) + Flags{"--mesh.dp_shard", "2"};
    const auto said = planned(flags + Flags{"--experts.frequencies", list});
    ASSERT_EQ(said["deal"], "on") << said;
    const auto& mean = said["by_frequency"];
    const std::string run = "idle-" + std::to_string(frequencies.size());
    constexpr int kSteps = 20;
    train(2, run, flags, kSteps);
    double idle = 0, undealt = 0, dummies = 0, moved = 0;
    for (const auto& step : gated().metrics(run)) {
      const auto& gate = step["gate"];
      idle += gate["idle_share"].get<double>() / kSteps, undealt += gate["undealt_idle_share"].get<double>() / kSteps;
      dummies += gate["dummy_share"].get<double>() / kSteps, moved += gate["moved_samples"].get<double>() / kSteps;
      EXPECT_LE(gate["idle_share"], gate["undealt_idle_share"]);
      for (const auto& rank : step["ranks"])
        EXPECT_LE(rank["sent_bytes"].value("deal", int64_t{0}), mean["worst_bytes"].get<int64_t>());
    }
    EXPECT_NEAR(idle, mean["idle_share"].get<double>(), 0.06) << run;
    EXPECT_NEAR(undealt, mean["undealt_idle_share"].get<double>(), 0.09) << run;
    EXPECT_NEAR(dummies, mean["dummy_share"].get<double>(), 0.06) << run;
    EXPECT_NEAR(moved, mean["moved_samples"].get<double>(), 0.5) << run;
    EXPECT_LT(mean["idle_share"], mean["undealt_idle_share"]);
    EXPECT_GT(mean["mean_bytes"], 0);
    EXPECT_LE(mean["mean_bytes"], mean["worst_bytes"]);
    EXPECT_LE(mean["mean_seconds"], mean["worst_seconds"]);
    EXPECT_GT(mean["mean_step_seconds"], 0);
    const auto measured = planned(flags + Flags{"--experts.frequencies", gated().out(run)})["by_frequency"];
    std::vector<double> share(frequencies.size(), 0);
    for (const auto& step : gated().metrics(run))
      for (size_t e = 0; e < share.size(); ++e)
        share[e] += static_cast<double>(samples_of(step)[e]) / static_cast<double>(8 * kSteps);
    for (size_t e = 0; e < share.size(); ++e)
      EXPECT_NEAR(measured["frequencies"][e].get<double>(), share[e], 1e-9) << e;
    EXPECT_EQ(measured["frequencies_from"], gated().out(run));
  }
  EXPECT_EQ(planned(gate_of(4))["by_frequency"]["frequencies"], nlohmann::json({0.25, 0.25, 0.25, 0.25}));
}

/// A pass with a sample on each rank takes as long as one sample does, however many a micro-batch may have.
TEST(DealtSamples, ArePricedAsManyAsAPassHas) {
  const auto mean = [](const char* micro_batch) {
    const auto said =
        planned(gate_of(5) + Flags{"--mesh.dp_shard", "2", "--train.global_batch", "8", "--data.size", "128,128",
                                   "--experts.share", "off", "--train.micro_batch", micro_batch});
    return said["by_frequency"]["mean_step_seconds"].get<double>();
  };
  const double one = mean("1");
  for (const char* more : {"2", "4"}) {
    EXPECT_LT(mean(more), 1.01 * one) << more << ": no more gathers, and the same samples";
    EXPECT_GT(mean(more), 0.5 * one) << more;
  }
}

/// Of the traced passes of ranks, by step, rank and expert: when the last gradient was there, and when the norm began.
std::map<std::array<int64_t, 3>, std::array<double, 2>> ends_of(const std::string& file) {
  std::map<std::array<int64_t, 3>, std::array<double, 2>> ends;
  for (const std::string& line : lines_of(file)) {
    const auto in = nlohmann::json::parse(line);
    const std::string phase = in["phase"], op = in["op"];
    if (!phase.starts_with("train expert_")) continue;
    auto& [computed, norm] = ends[{in["step"], in["rank"], std::stoll(phase.substr(13))}];
    if (op == "backward" || op == "idle") computed = std::max(computed, in["t1"].get<double>());
    if (op == "norm") norm = std::max(norm, in["t0"].get<double>());
  }
  return ends;
}

/// The curve is that of one rank, and idle is what the counts say; what passes side by side leave open comes together.
void expect_side_by_side(const Layout& layout, const std::vector<double>& frequencies, int64_t& pairs) {
  std::string name = std::to_string(frequencies.size());
  for (const double f : frequencies) name += "-" + std::to_string(static_cast<int>(1000 * f));
  const std::string one = "dealt-alone-" + name, run = "beside-" + std::string(layout.name) + "-" + name,
                    trace = gated().out(run + ".jsonl");
  if (!fs::exists(gated().out(one))) train(1, one, frequent(frequencies));
  const Flags flags = frequent(frequencies, "auto", "auto") + layout.flags;
  ASSERT_EQ(planned(flags)["side_by_side"], "on") << run;
  train(layout.ranks, run, flags + Flags{"--trace-schedule", trace});
  const Result check = gated().tessera({"plan", "--check", trace});
  EXPECT_EQ(check.code, 0) << run << "\n" << check.output;
  Mesh mesh;
  for (size_t f = 0; f + 1 < layout.flags.size(); f += 2)
    for (const Axis axis : kAllAxes)
      if (layout.flags[f] == "--mesh." + std::string(axis_name(axis))) mesh[axis] = std::stoi(layout.flags[f + 1]);
  auto ran = traced(trace, mesh, frequencies.size());
  const auto ends = ends_of(trace);
  const auto steps = gated().metrics(run), expected = gated().metrics(one);
  ASSERT_EQ(steps.size(), expected.size()) << run;
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto number = static_cast<int64_t>(i + 1);
    const std::string where = run + ", step " + std::to_string(number);
    EXPECT_EQ(samples_of(steps[i]), samples_of(expected[i])) << where;
    for (const char* key : {"loss", "grad_norm"}) {
      const double wanted = expected[i][key];
      EXPECT_NEAR(steps[i][key].get<double>(), wanted, 2e-6 * std::abs(wanted)) << where << ", " << key;
    }
    const plan::ExpertShares& shares = ran[number].shares;
    const plan::ExpertPairs found = plan::expert_pairs(shares, {1});
    EXPECT_EQ(plan::deal(shares, found).shares, shares) << where;
    EXPECT_DOUBLE_EQ(steps[i]["gate"]["idle_share"].get<double>(), plan::step_use(shares, {1}, found).idle()) << where;
    pairs += std::ssize(found);
    for (const auto& [first, second] : found)
      for (int rank = 0; rank < layout.ranks; ++rank) {
        const auto a = ends.at({number, rank, static_cast<int64_t>(first)}),
                   b = ends.at({number, rank, static_cast<int64_t>(second)});
        constexpr double kBegun = 1e-3;  // between the two, of whose begins the times are
        EXPECT_LT(std::max(a[0], b[0]), std::min(a[1], b[1]) + kBegun)
            << where << ", rank " << rank << ": both are computed before either exchanges its norm";
      }
  }
  expect_planned_peaks(steps.back(), run);
}

TEST(SideBySide, TrainsTheCurveOfOneRankInLessTimeOfTheRanks) {
  const std::vector<Layout> layouts = {{"shard-2", 2, {"--mesh.dp_shard", "2"}},
                                       {"shard-3", 3, {"--mesh.dp_shard", "3"}},
                                       {"shard-4", 4, {"--mesh.dp_shard", "4"}},
                                       {"kept", 2, {"--mesh.dp_shard", "2", "--plan.strategy", "shard_states"}},
                                       {"whole", 2, {"--mesh.dp_replicate", "2"}},
                                       {"replicas", 4, {"--mesh.dp_replicate", "2", "--mesh.dp_shard", "2"}},
                                       {"shard-tp", 4, {"--mesh.dp_shard", "2", "--mesh.tp", "2"}},
                                       {"shard-sp", 4, {"--mesh.dp_shard", "2", "--mesh.sp", "2"}},
                                       {"shard-cp", 4, {"--mesh.dp_shard", "2", "--mesh.cp", "2"}}};
  const std::vector<std::vector<double>> frequencies = {{0.6, 0.3, 0.1}, {0.2, 0.2, 0.2, 0.2, 0.2}};
  const auto count = static_cast<int>(frequencies.size());
  MatrixPart part("experts side by side", count * static_cast<int>(layouts.size()));
  int64_t pairs = 0;
  for (const int i : part)
    expect_side_by_side(layouts[static_cast<size_t>(i / count)], frequencies[static_cast<size_t>(i % count)], pairs);
  EXPECT_GT(pairs, 0);
}

/// What the plan says of the idle share is what steps have; and it is less than one expert after the other.
TEST(SideBySide, LeavesRanksIdleAsThePlanSays) {
  const std::vector<double> frequencies = {0.6, 0.3, 0.1};
  const Flags more = {"--mesh.dp_shard", "2", "--experts.frequencies", "0.6,0.3,0.1"};
  const auto said = planned(frequent(frequencies, "auto", "auto") + more)["by_frequency"],
             apart = planned(frequent(frequencies) + more)["by_frequency"];
  EXPECT_LT(said["idle_share"], apart["idle_share"]);
  EXPECT_LT(said["mean_step_seconds"].get<double>(), 0.99 * apart["mean_step_seconds"].get<double>());
  EXPECT_EQ(apart["pairs"], 0);
  constexpr int kSteps = 20;
  train(2, "idle-beside", frequent(frequencies, "auto", "auto") + more, kSteps);
  double idle = 0;
  for (const auto& step : gated().metrics("idle-beside")) idle += step["gate"]["idle_share"].get<double>() / kSteps;
  EXPECT_NEAR(idle, said["idle_share"].get<double>(), 0.06);
}

/// Two runs have the same bits, also one that was cut; others go on with it.
TEST(SideBySide, GoesOnToTheBitAndOnOtherLayouts) {
  const std::vector<double> frequencies = {0.2, 0.2, 0.2, 0.2, 0.2};
  const Flags flags =
                  frequent(frequencies, "auto", "auto") + Flags{"--checkpoint.every", "1", "--checkpoint.keep", "0"},
              shards = {"--mesh.dp_shard", "2"};
  train(2, "beside-first", flags + shards, 5);
  train(2, "beside-again", flags + shards, 5);
  EXPECT_EQ(curve("beside-first"), curve("beside-again"));
  for (int e = 0; e < 5; ++e) EXPECT_EQ(weights("beside-first", e), weights("beside-again", e)) << e;
  const std::vector<Layout> others = {{"same", 2, shards},
                                      {"three", 3, {"--mesh.dp_shard", "3"}},
                                      {"stages", 4, {"--mesh.dp_shard", "2", "--mesh.pp", "2"}}};
  for (const Layout& other : others) {
    const std::string name = std::string("beside-on-") + other.name, at = "/checkpoints/step-000002";
    fs::create_directories(gated().out(name) + "/checkpoints");
    fs::copy(gated().out("beside-first") + at, gated().out(name) + at, fs::copy_options::recursive);
    fs::copy(gated().out("beside-first") + "/metrics.jsonl", gated().out(name) + "/metrics.jsonl");
    train(other.ranks, name, flags + other.flags, 5);
    const auto steps = gated().metrics(name), expected = gated().metrics("beside-first");
    ASSERT_EQ(steps.size(), expected.size()) << name;
    for (size_t i = 0; i < steps.size(); ++i) {
      const double wanted = expected[i]["loss"];
      EXPECT_NEAR(steps[i]["loss"].get<double>(), wanted, 2e-6 * std::abs(wanted)) << name << ", step " << i + 1;
    }
    if (std::string(other.name) == "same") EXPECT_EQ(curve(name), curve("beside-first"));
  }
}

TEST(SideBySide, IsOffAndSaysWhyWhereItCannotBe) {
  const Flags all = frequent({0.6, 0.3, 0.1}, "auto", "auto"), two = {"--mesh.dp_shard", "2"};
  const auto why = [&](const Flags& more) { return planned(all + more)["side_by_side"].get<std::string>(); };
  EXPECT_EQ(why(two), "on");
  EXPECT_EQ(why({}), "off: one rank has all samples");
  EXPECT_EQ(why(two + Flags{"--mesh.pp", "2"}), "off: ranks of a pipeline have stages of one expert at a time");
  EXPECT_EQ(why(two + Flags{"--plan.idle", "host"}), "off: an inactive expert is not on the device");
  EXPECT_EQ(why(two + Flags{"--plan.states", "host"}), "off: the plan offloads");
  EXPECT_EQ(why(two + Flags{"--plan.compute_dtype", "fp16"}),
            "off: the loss scale of a pass depends on the one before it");
  EXPECT_EQ(why(two + Flags{"--train.optimizer", "prodigy", "--train.lr", "1"}),
            "off: the optimizer finds a step size from pass to pass");
  EXPECT_EQ(planned(frequent({0.6, 0.3, 0.1}) + two)["side_by_side"], "off: experts.share = off");
  EXPECT_EQ(planned(gate_of(2) + two + Flags{"--experts.frequencies", "1,0"})["side_by_side"],
            "off: it would save less than a per cent");
  const std::string file = gated().out("together.toml");
  EXPECT_EQ(gated().tessera(Flags{"plan", gated().recipe(), "--write", file} + all + two).code, 0);
  EXPECT_NE(text_of(file).find("together = 2"), std::string::npos) << text_of(file);
  EXPECT_EQ(why(two + Flags{"--plan.file", file}), "on");
  const Result refused =
      gated().tessera(Flags{"plan", gated().recipe(), "--plan.file", file} + frequent({0.6, 0.3, 0.1}) + two);
  EXPECT_EQ(refused.code, 2) << refused.output;
  EXPECT_NE(refused.output.find("experts.share = auto"), std::string::npos) << refused.output;
  for (const Flags& of : {gate_of(2) + Flags{"--experts.hard", "false"}, gate_of(2) + Flags{"--experts.deal", "off"},
                          Flags{"--experts.train", "both"}}) {
    const Result r = gated().tessera(Flags{"plan", gated().recipe(), "--experts.share", "off"} + of);
    EXPECT_EQ(r.code, 0) << r.output;
    EXPECT_NE(r.output.find("experts.share = off has no effect"), std::string::npos) << r.output;
  }
}

/// A run that is cut goes on on other layouts, and again to the bit on its own, whatever frequencies are planned for.
TEST(DealtSamples, GoOnOnOtherLayouts) {
  const Flags flags = frequent({0.6, 0.3, 0.1}) + Flags{"--checkpoint.every", "1", "--checkpoint.keep", "0"},
              shards = {"--mesh.dp_shard", "2"};
  train(2, "dealt-whole", flags + shards, 5);
  const auto expected = gated().metrics("dealt-whole");
  const std::vector<Layout> others = {{"same", 2, shards + Flags{"--experts.frequencies", "1,2,3"}},
                                      {"three", 3, {"--mesh.dp_shard", "3"}},
                                      {"off", 2, shards + Flags{"--experts.deal", "off"}},
                                      {"tp", 4, {"--mesh.dp_shard", "2", "--mesh.tp", "2"}}};
  for (const Layout& other : others) {
    const std::string name = std::string("dealt-again-") + other.name, at = "/checkpoints/step-000002";
    fs::create_directories(gated().out(name) + "/checkpoints");
    fs::copy(gated().out("dealt-whole") + at, gated().out(name) + at, fs::copy_options::recursive);
    fs::copy(gated().out("dealt-whole") + "/metrics.jsonl", gated().out(name) + "/metrics.jsonl");
    train(other.ranks, name, flags + other.flags, 5);
    const auto steps = gated().metrics(name);
    ASSERT_EQ(steps.size(), expected.size()) << name;
    for (size_t i = 0; i < steps.size(); ++i) {
      const double wanted = expected[i]["loss"];
      EXPECT_NEAR(steps[i]["loss"].get<double>(), wanted, 2e-6 * std::abs(wanted)) << name << ", step " << i + 1;
      EXPECT_EQ(samples_of(steps[i]), samples_of(expected[i])) << name << ", step " << i + 1;
    }
    if (std::string(other.name) == "same") EXPECT_EQ(curve(name), curve("dealt-whole"));
  }
}

TEST(DealtSamples, StayWhereTheyAreAndSaySoWithoutAHardGate) {
  const Flags soft = gate_of(2) + Flags{"--experts.hard", "false"}, both = {"--experts.train", "both"},
              two = {"--mesh.dp_shard", "2"};
  EXPECT_EQ(planned(soft + two)["deal"], "off: all experts run every sample, on the rank that has it");
  EXPECT_EQ(planned(both + two)["deal"], "off: each step trains one expert, on all ranks");
  EXPECT_EQ(planned(gate_of(2))["deal"], "off: one rank has all samples");
  EXPECT_EQ(planned(gate_of(2) + two + Flags{"--experts.deal", "off"})["deal"], "off: experts.deal = off");
  for (const auto& [name, flags] : {std::pair("soft-stays", soft), {"turns-stay", both}}) {
    const Result r = gated().train(2, name, flags + two + Flags{"--experts.deal", "off", "--run.steps", "2"});
    EXPECT_EQ(r.code, 0) << r.output;
    EXPECT_NE(r.output.find("experts.deal = off has no effect"), std::string::npos) << name << "\n" << r.output;
    for (const auto& step : gated().metrics(name))
      for (const auto& rank : step["ranks"]) EXPECT_EQ(rank["sent_bytes"].count("deal"), 0u) << name;
  }
}

TEST(DealtSamples, AreCountedByExpertAndTimestep) {
  train(2, "counted", frequent({0.6, 0.3, 0.1}) + Flags{"--mesh.dp_shard", "2"}, 3);
  for (const auto& step : gated().metrics("counted")) {
    std::vector<int64_t> all(10, 0);
    for (const auto& e : step["gate"]["experts"]) {
      int64_t own = 0;
      for (size_t b = 0; b < 10; ++b) {
        const int64_t count = e["by_timestep"][b]["count"];
        own += count, all[b] += count;
      }
      EXPECT_EQ(own, e["samples"]);
      EXPECT_EQ(e["seconds"] > 0, e["samples"] > 0);
    }
    for (size_t b = 0; b < 10; ++b) EXPECT_EQ(step["loss_by_timestep"][b]["count"], all[b]) << b;
    EXPECT_GE(step["gate"]["deal_seconds"], 0);
  }
}

/// Under a budget in which the plan recomputes activations, and a pass with a sample or two on a rank need not.
Flags tight(const std::vector<double>& frequencies) {
  return gate_of(static_cast<int>(frequencies.size())) + Flags{"--model.path",         chosen_with(frequencies),
                                                               "--experts.balance",    "0",
                                                               "--train.global_batch", "8",
                                                               "--experts.by_use",     "auto",
                                                               "--plan.budget",        "7500KiB",
                                                               "--data.size",          "128,128"};
}

std::vector<int64_t> micro_batches_of(const nlohmann::json& step) {
  std::vector<int64_t> all;
  for (const auto& e : step["gate"]["experts"]) all.push_back(e["micro_batch"]);
  return all;
}

void expect_losses(const std::string& run, const std::string& expected) {
  const auto steps = gated().metrics(run), wanted = gated().metrics(expected);
  ASSERT_EQ(steps.size(), wanted.size()) << run;
  for (size_t i = 0; i < steps.size(); ++i) {
    const double loss = wanted[i]["loss"];
    EXPECT_NEAR(steps[i]["loss"].get<double>(), loss, 2e-6 * std::abs(loss)) << run << ", step " << i + 1;
    EXPECT_EQ(samples_of(steps[i]), samples_of(wanted[i])) << run << ", step " << i + 1;
  }
}

TEST(ByUse, RunsEachExpertByThePlanThatSuitsIt) {
  const Flags flags = tight({0.95, 0.05}) + Flags{"--experts.frequencies", "0.95,0.05"}, two = {"--mesh.dp_shard", "2"};
  const auto said = planned(flags + two)["by_use"];
  ASSERT_EQ(said.size(), 2u);
  const std::vector<int64_t> micro_batches = {said[0]["micro_batch"], said[1]["micro_batch"]};
  EXPECT_GT(micro_batches[0], micro_batches[1]) << said;
  EXPECT_EQ(said[0]["plan"].get<std::string>().find("keep 5 of 5"), std::string::npos) << said;
  EXPECT_NE(said[1]["plan"].get<std::string>().find("keep 5 of 5"), std::string::npos) << said;
  EXPECT_LT(said[1]["mean_seconds"], said[1]["alike_mean_seconds"]);
  EXPECT_EQ(said[0]["mean_seconds"], said[0]["alike_mean_seconds"]);
  const std::string trace = gated().out("by-use.jsonl");
  train(1, "by-use-alone", flags + Flags{"--experts.by_use", "off", "--plan.budget", "1GiB"});
  const Result ran = train(2, "by-use", flags + two + Flags{"--trace-schedule", trace});
  EXPECT_NE(ran.output.find("experts by use: expert_0, chosen by 95 %"), std::string::npos) << ran.output;
  expect_losses("by-use", "by-use-alone");
  const Result check = gated().tessera({"plan", "--check", trace});
  EXPECT_EQ(check.code, 0) << check.output;
  const auto steps = gated().metrics("by-use");
  expect_planned_peaks(steps.back(), "by-use");
  std::map<std::pair<int64_t, size_t>, std::set<int>> micros;  // of rank 0, by step and expert
  for (const std::string& line : lines_of(trace)) {
    const auto in = nlohmann::json::parse(line);
    const std::string phase = in["phase"];
    if (!phase.starts_with("train expert_") || in["rank"] != 0) continue;
    const size_t expert = std::stoul(phase.substr(13));
    if (in["micro"].is_number() && in["micro"] >= 0)
      micros[{in["step"].get<int64_t>(), expert}].insert(in["micro"].get<int>());
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(micro_batches_of(steps[i]), micro_batches) << i + 1;
    for (size_t e = 0; e < 2; ++e) {
      const int64_t most = (samples_of(steps[i])[e] + 1) / 2;  // dealt to two ranks
      EXPECT_EQ(std::ssize(micros[{static_cast<int64_t>(i + 1), e}]), (most + micro_batches[e] - 1) / micro_batches[e])
          << "step " << i + 1 << ", expert " << e;
    }
  }
}

/// The recipe says that the other expert is chosen often; from the first checkpoint on the run knows better.
TEST(ByUse, GoesOnToTheBitAcrossAChangeOfFrequencies) {
  const Flags flags = tight({0.95, 0.05}) + Flags{"--checkpoint.every", "4", "--checkpoint.keep", "0"},
              wrong = {"--experts.frequencies", "0.05,0.95"}, two = {"--mesh.dp_shard", "2"};
  const Result whole = train(2, "use-whole", flags + wrong + two, 8);
  EXPECT_NE(whole.output.find("experts by use from step 5 on"), std::string::npos) << whole.output;
  const auto steps = gated().metrics("use-whole");
  ASSERT_EQ(steps.size(), 8u);
  const std::vector<int64_t> before = micro_batches_of(steps[3]), after = micro_batches_of(steps[4]);
  EXPECT_LT(before[0], before[1]);
  EXPECT_GT(after[0], after[1]);
  EXPECT_EQ(micro_batches_of(steps[0]), before) << "nothing changes between checkpoints";
  EXPECT_EQ(micro_batches_of(steps[7]), after);
  const auto use_at = [](const std::string& run, const char* step) {
    return json_of(gated().out(run) + "/checkpoints/" + step + "/manifest.json")["experts_by_use"];
  };
  std::vector<double> counted = {0.05 / 2, 0.95 / 2};  // what the recipe says weighs as one sample
  for (size_t i = 0; i < 4; ++i)
    for (size_t e = 0; e < 2; ++e) counted[e] += static_cast<double>(samples_of(steps[i])[e]);
  const auto saved = use_at("use-whole", "step-000004");
  for (size_t e = 0; e < 2; ++e) EXPECT_NEAR(saved["frequencies"][e].get<double>(), counted[e], 1e-9) << saved;
  EXPECT_EQ(saved["since"], nlohmann::json({0, 0}));
  // Cut at the change, with frequencies in the recipe that say otherwise; and between two changes.
  const auto go_on = [&](const std::string& name, int ranks, const Flags& more) {
    const std::string at = "/checkpoints/step-000004";
    fs::create_directories(gated().out(name) + "/checkpoints");
    fs::copy(gated().out("use-whole") + at, gated().out(name) + at, fs::copy_options::recursive);
    fs::copy(gated().out("use-whole") + "/metrics.jsonl", gated().out(name) + "/metrics.jsonl");
    return train(ranks, name, flags + more, 8);
  };
  go_on("use-resumed", 2, two + Flags{"--experts.frequencies", "0.5,0.5"});
  train(2, "use-cut", flags + wrong + two, 6);
  EXPECT_NE(use_at("use-cut", "step-000006")["since"], nlohmann::json({0, 0}));
  train(2, "use-cut", flags + wrong + two, 8);
  for (const char* name : {"use-resumed", "use-cut"}) {
    EXPECT_EQ(curve(name), curve("use-whole")) << name;
    for (int e = 0; e < 2; ++e) EXPECT_EQ(weights(name, e), weights("use-whole", e)) << name;
    EXPECT_EQ(use_at(name, "step-000008"), use_at("use-whole", "step-000008")) << name;
  }
  go_on("use-four", 4, Flags{"--mesh.dp_shard", "2", "--mesh.tp", "2"});
  expect_losses("use-four", "use-whole");
  EXPECT_EQ(use_at("use-four", "step-000008"), use_at("use-whole", "step-000008"));
}

TEST(ByUse, LeavesWhatTheUserHasSet) {
  const Flags flags = tight({0.95, 0.05}) + Flags{"--experts.frequencies", "0.95,0.05", "--mesh.dp_shard", "2"};
  const auto said = planned(flags + Flags{"--plan.activations", "recompute"})["by_use"];
  ASSERT_EQ(said.size(), 2u);
  for (const auto& expert : said)
    EXPECT_NE(expert["plan"].get<std::string>().find("recompute 3"), std::string::npos) << expert;
  for (const Flags& of : {flags + Flags{"--train.micro_batch", "2"}, gate_of(2) + Flags{"--experts.hard", "false"},
                          Flags{"--experts.train", "both"}}) {
    const Flags asked = of + Flags{"--experts.by_use", "auto"};
    const Result r = gated().tessera(Flags{"plan", gated().recipe()} + asked);
    EXPECT_EQ(r.code, 0) << r.output;
    EXPECT_NE(r.output.find("experts.by_use = auto has no effect"), std::string::npos) << r.output;
    EXPECT_TRUE(planned(asked).value("by_use", nlohmann::json()).is_null());
  }
  EXPECT_TRUE(planned(flags + Flags{"--experts.by_use", "off"}).value("by_use", nlohmann::json()).is_null());
}

}  // namespace
}  // namespace tessera::testing::gate_runs
