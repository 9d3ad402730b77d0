// Targets that are made of what the model predicts before a step. What adapters are to leave as it is: twins of clips whose
// target is the prediction without adapters, and sets that have that target. Targets that are moved away from the prediction
// without a caption. The same on every layout, over a stop, as planned.
#include <gtest/gtest.h>

#include <cmath>

#include "planned_memory.h"
#include "program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Flags = std::vector<std::string>;

Flags with(Flags flags, const Flags& more) {
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

const TinyRun& tiny() {
  static const TinyRun run("preserve");
  return run;
}
/// Over a model that was trained a little: the head of a new one is zero, and adapters say nothing.
Flags lora(const Flags& more = {}) {
  static const std::string base = [] {
    const Result r = tiny().train(1, "base", {"--run.steps", "4", "--train.lr", "3e-3"});
    EXPECT_EQ(r.code, 0) << r.output;
    return tiny().out("base") + "/model";
  }();
  return with({"--train.mode", "lora", "--model.path", base, "--lora.rank", "4", "--train.lr", "1e-2",
               "--train.global_batch", "4", "--run.steps", "4"},
              more);
}
/// Of a model that was trained a little, without adapters.
Flags whole(const Flags& more = {}) { return with(lora({"--train.mode", "full", "--train.lr", "1e-3"}), more); }
const Flags kGuided = {"--train.guidance_target", "2:4", "--train.guidance_schedule", "sigma",
                       "--train.guidance_zero",   "true"};
const Flags kClass = {"--train.preserve", "class", "--data.trigger", "sks", "--train.preserve_class", "dog"},
            kBlank = {"--train.preserve", "blank"};
/// The second set, of the same clips, has the base as its target.
Flags prior() {
  const std::string data = (tiny().folder() / "data").string();
  return {"--data.path", "", "--data.set.0.path", data, "--data.set.1.path", data, "--data.set.1.role", "prior"};
}

std::vector<double> trained(const std::string& name, const Flags& flags, int ranks = 1) {
  const Result r = tiny().train(ranks, name, flags);
  EXPECT_EQ(r.code, 0) << name << "\n" << r.output;
  return tiny().losses(name);
}

TEST(Preserve, TwinsCostNothingUntilAdaptersSaySomethingElse) {
  // Without a rate the adapters stay zero: the loss is that of the clips alone, in batches of half as many.
  const Flags still = {"--train.lr", "0"};
  const std::vector<double> clips = trained("clips", lora(with({"--train.global_batch", "2"}, still)));
  const std::vector<double> blank = trained("still", lora(with(kBlank, still)));
  ASSERT_EQ(blank.size(), clips.size());
  for (const auto& step : tiny().metrics("still")) {
    if (step.value("type", "") != "step") continue;
    ASSERT_TRUE(step.contains("preserved")) << step;
    EXPECT_LT(step["preserved"]["loss"].get<double>(), 1e-9);
    EXPECT_EQ(step["preserved"]["samples"], 2);
  }
  for (size_t s = 0; s < clips.size(); ++s) EXPECT_NEAR(blank[s], clips[s], 1e-6 * clips[s]);
  // With one they are what keeps adapters from it.
  const std::vector<double> kept = trained("kept", lora(kBlank)),
                            free = trained("free", lora({"--train.global_batch", "2"})),
                            weightless = trained("weightless", lora(with(kBlank, {"--train.preserve_weight", "0"})));
  for (size_t s = 0; s < free.size(); ++s) EXPECT_NEAR(weightless[s], free[s], 1e-4 * free[s]) << "step " << s + 1;
  EXPECT_GT(std::abs(kept[3] - free[3]), 1e-5 * free[3]);
  EXPECT_GT(tiny().metrics("weightless").back()["preserved"]["loss"].get<double>(),
            tiny().metrics("kept").back()["preserved"]["loss"].get<double>())
      << "adapters that nothing keeps from it change more";
  EXPECT_FALSE(tiny().metrics("free").back().contains("preserved"));
  const std::vector<double> strict = trained("strict", lora(with(kBlank, {"--train.preserve_weight", "1000"})));
  EXPECT_GT(strict[3], kept[3]) << "they learn less of the clips, and what is left of the twins counts more";
  // Another class is another caption of the twins.
  const std::vector<double> dog = trained("dog", lora(kClass));
  const Flags cat = {"--train.preserve",       "class",           "--data.trigger", "sks",
                     "--train.preserve_class", "a striped animal"};
  EXPECT_NE(trained("cat", lora(cat))[3], dog[3]);
}

TEST(Preserve, IsTheSameOnEveryLayoutAndTakesThePlannedMemory) {
  for (const auto& [kind, flags] : {std::pair("class", kClass), {"blank", kBlank}, {"prior", prior()}}) {
    const std::vector<double> one = trained(kind, lora(flags));
    ASSERT_EQ(one.size(), 4u);
    const auto kept = [](const std::string& name) {
      const auto last = tiny().metrics(name).back();
      return last.contains("preserved") ? last["preserved"]["loss"].get<double>() : 0.0;
    };
    expect_planned_peaks(tiny().metrics(kind).back(), kind);
    for (const auto& [mesh, ranks] :
         {std::pair("dp_shard=2", 2), {"dp_replicate=3", 3}, {"tp=2", 2}, {"pp=2", 2}, {"sp=2", 2}, {"cp=2", 2}}) {
      const std::string name = std::string(kind) + mesh;
      const std::vector<double> other = trained(name, lora(with(flags, {"--mesh", mesh})), ranks);
      ASSERT_EQ(other.size(), one.size()) << name;
      for (size_t s = 0; s < one.size(); ++s) EXPECT_NEAR(other[s], one[s], 1e-4 * one[s]) << name << " step " << s + 1;
      EXPECT_NEAR(kept(name), kept(kind), 1e-3 * kept(kind) + 1e-12) << name;
      expect_planned_peaks(tiny().metrics(name).back(), name);
    }
    const std::vector<double> small =
        trained(std::string(kind) + "-micro", lora(with(flags, {"--train.micro_batch", "1"})));
    for (size_t s = 0; s < one.size(); ++s) EXPECT_NEAR(small[s], one[s], 1e-4 * one[s]) << kind;
    EXPECT_EQ(trained(std::string(kind) + "-online", lora(with(flags, {"--data.cache", "online"}))), one) << kind;
  }
}

TEST(Preserve, GoesOnToTheBitWithEveryKindOfAdapter) {
  for (const Flags& kind : {Flags{"--lora.kind", "lora", "--lora.dropout", "0.2"},
                            {"--lora.kind", "loha"},
                            {"--lora.kind", "lokr"},
                            {"--lora.dora", "true"}}) {
    const std::string name = kind[1] + kind[0].substr(7);
    const Flags flags = lora(with(kClass, kind));
    const std::vector<double> whole = trained(name, flags);
    trained(name + "-parts", with(flags, {"--run.steps", "2"}));
    EXPECT_EQ(trained(name + "-parts", flags), whole) << name;
  }
}

TEST(Preserve, RunsThePassesThatArePlanned) {
  for (const auto& [mesh, ranks, more] :
       {std::tuple("dp_shard=2", 2, Flags{}),
        {"pp=2", 2, {"--train.micro_batch", "2"}},
        {"dp_shard=1", 1, {"--train.micro_batch", "1"}},
        {"tp=2", 2, {"--lora.dora", "true"}},  // whose pass without adapters sums no lengths of rows
        {"dp_shard=2,cp=1", 2, {"--plan.update", "in_backward", "--train.clip_norm", "0"}}}) {
    const std::string planned = tiny().out("planned.jsonl"), executed = tiny().out("executed.jsonl");
    const Flags flags =
        lora(with(with(kBlank, {"--mesh", mesh, "--run.out", tiny().out(std::string("run-") + mesh)}), more));
    const Result p = tiny().tessera(with({"plan", tiny().recipe(), "--schedule", planned}, flags));
    ASSERT_EQ(p.code, 0) << p.output;
    EXPECT_NE(p.output.find("without adapters"), std::string::npos) << p.output;
    const Result t = tiny().tessera(
        with({"launch", "-n", std::to_string(ranks), "train", tiny().recipe(), "--trace-schedule", executed}, flags));
    ASSERT_EQ(t.code, 0) << t.output;
    const auto a = lines_of(planned), b = lines_of(executed);
    ASSERT_EQ(a.size(), b.size()) << mesh;
    int64_t base = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(a[i], b[i].substr(0, b[i].find(",\"t0\":")) + "}") << mesh << " line " << i + 1;
      base += a[i].find("\"phase\":\"base\"") != std::string::npos;
    }
    EXPECT_GT(base, 0) << mesh;
    EXPECT_EQ(tiny().tessera({"plan", "--check", executed}).code, 0);
  }
}

TEST(Guided, LossesAreOfTargetsThatLieSoFarFromWhatIsPredictedWithoutACaption) {
  // |p - u - s (v - u)|^2 is a square of s: where nothing is learnt, its third difference is 0.
  std::vector<std::vector<double>> loss;
  for (const char* target : {"1", "2", "3", "4"})
    loss.push_back(trained(std::string("far") + target,
                           whole({"--train.lr", "0", "--train.clip_norm", "0", "--train.guidance_target", target})));
  for (size_t s = 0; s < loss[0].size(); ++s) {
    EXPECT_NEAR(loss[3][s] - 3 * loss[2][s] + 3 * loss[1][s], loss[0][s], 1e-5 * loss[3][s]) << "step " << s + 1;
    EXPECT_GT(loss[2][s], 1.2 * loss[0][s]);
  }
  const std::vector<double> drawn = trained("drawn", whole({"--train.lr", "0", "--train.guidance_target", "2:4"}));
  for (size_t s = 0; s < drawn.size(); ++s) {
    EXPECT_GT(drawn[s], loss[1][s]) << "the least of all draws";
    EXPECT_LT(drawn[s], loss[3][s]);
  }
  // Its weight is that of gradients too.
  const Flags three = {"--train.lr", "0", "--train.guidance_target", "3"};
  trained("three", whole(three)), trained("half", whole(with(three, {"--train.guidance_weight", "0.5"})));
  const auto one = tiny().metrics("three").back(), half = tiny().metrics("half").back();
  for (const char* number : {"loss", "grad_norm"})
    EXPECT_NEAR(half[number].get<double>(), 0.5 * one[number].get<double>(), 1e-6 * one[number].get<double>());
}

TEST(Guided, TrainsTheSameOnEveryLayoutTakesThePlannedMemoryAndGoesOnToTheBit) {
  for (const auto& [kind, flags] :
       {std::pair("whole", whole(kGuided)), {"adapters", lora(kGuided)}, {"twins", lora(with(kGuided, kBlank))}}) {
    const std::string name = std::string("guided-") + kind;
    const std::vector<double> one = trained(name, flags);
    ASSERT_EQ(one.size(), 4u);
    expect_planned_peaks(tiny().metrics(name).back(), name);
    for (const auto& [mesh, ranks] :
         {std::pair("dp_shard=2", 2), {"dp_replicate=3", 3}, {"tp=2", 2}, {"pp=2", 2}, {"cp=2", 2}}) {
      const std::vector<double> other = trained(name + mesh, with(flags, {"--mesh", mesh}), ranks);
      ASSERT_EQ(other.size(), one.size()) << name << mesh;
      for (size_t s = 0; s < one.size(); ++s)
        EXPECT_NEAR(other[s], one[s], 1e-4 * one[s]) << name << mesh << " step " << s + 1;
      expect_planned_peaks(tiny().metrics(name + mesh).back(), name + mesh);
    }
    const std::vector<double> small = trained(name + "-micro", with(flags, {"--train.micro_batch", "1"}));
    for (size_t s = 0; s < one.size(); ++s) EXPECT_NEAR(small[s], one[s], 1e-4 * one[s]) << kind;
    trained(name + "-parts", with(flags, {"--run.steps", "2"}));
    EXPECT_EQ(trained(name + "-parts", flags), one) << kind;
  }
}

TEST(Guided, RunsThePassesThatArePlanned) {
  for (const auto& [more, label, passes] : {std::tuple(Flags{"--train.micro_batch", "2"}, "without captions", 2),
                                            {with(kBlank, {"--train.micro_batch", "2"}), "for targets", 4}}) {
    const std::string planned = tiny().out("guided-planned.jsonl"), executed = tiny().out("guided-executed.jsonl");
    const Flags flags = lora(with(with(kGuided, more), {"--run.steps", "2", "--run.out", tiny().out(label)}));
    const Result p = tiny().tessera(with({"plan", tiny().recipe(), "--schedule", planned}, flags));
    ASSERT_EQ(p.code, 0) << p.output;
    EXPECT_NE(p.output.find(label), std::string::npos) << p.output;
    const Result t = tiny().tessera(with({"train", tiny().recipe(), "--trace-schedule", executed}, flags));
    ASSERT_EQ(t.code, 0) << t.output;
    const auto a = lines_of(planned), b = lines_of(executed);
    ASSERT_EQ(a.size(), b.size()) << label;
    int64_t first = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(a[i], b[i].substr(0, b[i].find(",\"t0\":")) + "}") << label << " line " << i + 1;
      first += a[i].find("\"step\":1,") != std::string::npos && a[i].find("\"phase\":\"base\"") != std::string::npos &&
               a[i].find("\"op\":\"forward\",\"unit\":\"stem\"") != std::string::npos;
    }
    EXPECT_EQ(first, passes) << label;
  }
  for (const auto& [flags, text] :
       {std::pair(whole(with(kGuided, {"--plan.update", "just_in_time"})), "passes without captions come before it"),
        {whole(with(kGuided, {"--experts.router", "gate"})), "a gate sums the predictions"},
        {whole({"--train.guidance_target", "4:2"}), "a number over 0, or LOW:HIGH"},
        {whole({"--train.guidance_target", "0"}), "a number over 0, or LOW:HIGH"}}) {
    const Result r = tiny().train(1, "refused", flags);
    EXPECT_EQ(r.code, 2) << r.output;
    EXPECT_NE(r.output.find(text), std::string::npos) << r.output;
  }
}

TEST(Preserve, IsRefusedWhereThereIsNoBase) {
  for (const auto& [flags, text] :
       {std::pair(with(lora(kBlank), {"--train.mode", "full"}), "train.mode = \"full\" has none"),
        {lora(with(kBlank, {"--train.global_batch", "3"})), "a batch has 3 samples"},
        {lora(with(kClass, {"--data.trigger", ""})), "without data.trigger"},
        {lora(with(kBlank, {"--plan.update", "just_in_time"})), "passes without adapters come before it"},
        {lora(with(kClass, {"--train.preserve_class", ""})), "without train.preserve_class"}}) {
    const Result r = tiny().train(1, "refused", flags);
    EXPECT_EQ(r.code, 2) << r.output;
    EXPECT_NE(r.output.find(text), std::string::npos) << r.output;
  }
}

}  // namespace
}  // namespace tessera::testing
