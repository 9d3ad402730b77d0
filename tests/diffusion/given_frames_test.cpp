#include "tessera/diffusion/given_frames.h"

#include "golden.h"
#include "tessera/base/check.h"

namespace tessera::diffusion {

using families::chosen;
using families::fitting;
using families::given_frames;

namespace {

using Json = nlohmann::ordered_json;

std::vector<families::Weighted> weights_of(const Json& config) {
  std::vector<families::Weighted> weights;
  for (const auto& [kind, weight] : config.items()) weights.push_back({kind, weight.get<double>()});
  return weights;
}

/// The draws of a run, doubles.
std::vector<double> draws(const std::filesystem::path& file, const std::string& name) {
  const auto set = checkpoint::SafetensorsFile::open(file);
  if (!set.find(name)) return {};
  std::vector<double> values(static_cast<size_t>(set.at(name).count()));
  set.read(name, 0, set.at(name).count(), values.data());
  return values;
}

struct Run {
  std::string name;
  Json about;
  std::vector<double> u;
};

/// What was encoded of which frames of a sample, in the order of the trainer's calls.
void compare(const Run& run, const TensorMap& file) {
  SCOPED_TRACE(run.name);
  const auto in = [&](const std::string& name) { return file.at("in." + run.name + "." + name); };
  const auto out = [&](const std::string& name) { return file.at("out." + run.name + "." + name); };
  const bool causal = run.about.at("causal");
  const int64_t frames = run.about.at("frames");
  const auto weights = weights_of(run.about.at("config_before"));
  size_t next = 0;
  const auto encoded = [&] { return in("enc" + std::to_string(next++))[0]; };
  for (int64_t s = 0; s < out("x0").size(0); ++s) {
    const at::Tensor latent = run.u.empty() ? in("enc0")[s] : encoded();
    EXPECT_TRUE(latent.equal(out("x0")[s]));
    const auto fit = fitting(weights, latent.size(1), causal);
    const std::string kind = run.u.empty() ? "t2v" : chosen(fit, run.u[static_cast<size_t>(s)]);
    if (!run.u.empty()) EXPECT_EQ(kind, run.about.at("chosen").at(static_cast<size_t>(s)));
    const auto given = given_frames(kind, frames, latent.size(1), causal);
    std::vector<at::Tensor> pieces;
    for (const families::GivenFrames& one : given) {
      if (one.count == 0) continue;
      EXPECT_EQ(run.about.at("encodes").at(next).at("frames"), (Json{one.begin, one.begin + one.count})) << kind;
      pieces.push_back(encoded());
    }
    const at::Tensor cond = condition(latent, given, pieces);
    EXPECT_TRUE(cond.equal(out("cond")[s])) << kind;
  }
  if (!run.u.empty()) EXPECT_EQ(next, run.about.at("encodes").size());
}

}  // namespace

TEST(GivenFrames, ATrainersChoicesGivenFramesAndMasksAreTheRecordedOnes) {
  TESSERA_NEED_GOLDENS();
  const Golden golden("opensora_condition");
  const TensorMap file = golden.tensors("case.safetensors");
  const Json config = Json::parse(golden.text("config.json"));
  for (const auto& [name, about] : config.at("runs").items())
    if (!about.at("pad").get<bool>())  // of frames repeated at the ends, which no trainer asks for
      compare({name, about, draws(golden.path("case.safetensors"), "in." + name + ".u")}, file);
}

TEST(GivenFrames, ASamplersReferencesAreGivenWhereTheRecordedOnesAre) {
  TESSERA_NEED_GOLDENS();
  const Golden golden("opensora_condition");
  const TensorMap file = golden.tensors("case.safetensors");
  const Json config = Json::parse(golden.text("config.json"));
  for (const auto& [name, about] : config.at("inference").items()) {
    const at::Tensor masks = file.at("out." + name + ".masks"), masked = file.at("out." + name + ".masked");
    std::vector<at::Tensor> references;
    for (size_t i = 0; i < about.at("ref_latent_frames").size(); ++i)
      references.push_back(file.at("in." + name + ".ref" + std::to_string(i)));
    const bool causal = about.at("causal");
    for (int64_t s = 0; s < 2; ++s) {  // the second sample has no reference
      const at::Tensor cond = reference_condition(about.at("condition"), masked[s].sizes(),
                                                  s == 0 ? references : std::vector<at::Tensor>(), causal);
      EXPECT_TRUE(cond.equal(at::cat({masks[s], masked[s]}))) << name << " " << s;
    }
  }
}

TEST(GivenFrames, UnknownKindsAndNoWeightsAreRefused) {
  EXPECT_THROW(given_frames("i2v_middle", 33, 9, true), UserError);
  EXPECT_THROW(chosen({{"t2v", 0}}, 0.5), UserError);
}

}  // namespace tessera::diffusion
