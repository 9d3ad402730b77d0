// What adapters are to leave as it is: twins of clips whose target is the prediction without adapters, and sets that have
// that target. The same on every layout, over a stop, as planned.
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
  for (size_t s = 0; s < clips.size(); ++s) EXPECT_NEAR(blank[s], clips[s], 1e-6 * clips[s]);
  // With one they are what keeps adapters from it.
  const std::vector<double> kept = trained("kept", lora(kBlank)),
                            free = trained("free", lora({"--train.global_batch", "2"})),
                            weightless = trained("weightless", lora(with(kBlank, {"--train.preserve_weight", "0"})));
  for (size_t s = 0; s < free.size(); ++s) EXPECT_NEAR(weightless[s], free[s], 1e-4 * free[s]) << "step " << s + 1;
  EXPECT_GT(std::abs(kept[3] - free[3]), 1e-5 * free[3]);
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
    expect_planned_peaks(tiny().metrics(kind).back(), kind);
    for (const auto& [mesh, ranks] :
         {std::pair("dp_shard=2", 2), {"dp_replicate=3", 3}, {"tp=2", 2}, {"pp=2", 2}, {"sp=2", 2}, {"cp=2", 2}}) {
      const std::string name = std::string(kind) + mesh;
      const std::vector<double> other = trained(name, lora(with(flags, {"--mesh", mesh})), ranks);
      ASSERT_EQ(other.size(), one.size()) << name;
      for (size_t s = 0; s < one.size(); ++s) EXPECT_NEAR(other[s], one[s], 1e-4 * one[s]) << name << " step " << s + 1;
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
