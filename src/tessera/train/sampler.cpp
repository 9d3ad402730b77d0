#include "tessera/train/sampler.h"

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/engine/store/average.h"
#include "tessera/job/experts.h"
#include "tessera/sample/sampling.h"

namespace tessera::train {

namespace fs = std::filesystem;

Sampler::Sampler(const RunFolder& folder, const job::Job& job, const ExpertSchedule& experts, engine::Engine& engine,
                 Loader& loader)
    : folder_(folder), job_(job), experts_(experts), engine_(engine), loader_(loader) {}

void Sampler::begin_part(const planning::PartPlan& part, const prepare::PreparedData& data) {
  recipe_ = &part.part.recipe;
  validation_ = std::make_unique<sample::Validation>(*recipe_, job_, part.shapes, data, folder_.out);
}

void Sampler::pass(const plan::ProgramPtr& program, int64_t step) {
  const Loader::Pause pause(loader_);  // the autoencoder is one
  if (!weights_)
    weights_ = std::make_unique<sample::SamplerWeights>(recipe_->sample, job_, engine_.store(), folder_.ranks.comm);
  validation_->pass(step, sample::expert_passes(job_, experts_.router(), engine_, program, step));
  const auto finished = validation_->take_finished();
  if (!finished) return;
  folder_.ranks.first_acts(step, "decoding and writing a sample", "waiting for a sample", [&] {
    std::optional<report::RunLog::Sample> written;
    folder_.attempt(step, "sample", "the run continues without it, and resuming from this step generates it",
                    [&] { written = validation_->write(step, *finished); });
    if (written)
      folder_.log()->sample(*written);  // a history that cannot be written ends the run, as for a step's line
  });
  if (!finished->last) validation_->go_on(folder_.ranks.all());
}

namespace {

constexpr int kQuantiles = recipe::Recipe::Eval::kQuantiles;  // 0.1 to 0.9
constexpr const char* kHeldOutLosses = "held_out_losses";     // a field of Manifest::extra

/// Samples that one forward pass of the sampler's program takes: a guidance branch each, on every dp rank.
int64_t samples_of_pass(int branches, const Mesh& mesh) { return int64_t{branches} * mesh.dp_size(); }

}  // namespace

struct HeldOut::Point {
  double quantile = 0;  ///< 0: `sigma` is given
  double sigma = 0;
  bool given() const { return quantile == 0; }
};

HeldOut::HeldOut(const RunFolder& folder, const job::Job& job, const ExpertSchedule& experts, engine::Engine& engine,
                 Loader& loader)
    : folder_(folder), job_(job), experts_(experts), engine_(engine), loader_(loader) {}

void HeldOut::begin_part(const planning::PartPlan& part, const prepare::PreparedData* data) {
  part_ = &part, data_ = data;
}

/// What training draws from, all experts together.
diffusion::NoiseSettings HeldOut::settings() const {
  const recipe::Recipe& recipe = part_->part.recipe;
  diffusion::NoiseSettings settings = experts_.noise(0);
  settings.timesteps =
      job::timestep_options(recipe, job_.experts.list.size() > 1 ? job::Expert{} : job_.experts.list[0]);
  settings.seed = static_cast<uint64_t>(recipe.eval.seed);
  return settings;
}

std::vector<HeldOut::Point> HeldOut::points() const {
  std::vector<Point> points;
  for (int q = 1; q <= kQuantiles; ++q) points.push_back({.quantile = static_cast<double>(q) / (kQuantiles + 1)});
  for (const double sigma : part_->part.recipe.eval.sigmas) points.push_back({.sigma = sigma});
  return points;
}

/// Of each held-out sample the sum of its values' errors at a point, and then of each how many values those are. This rank
/// computes those of its dp rank.
std::vector<double> HeldOut::errors(const plan::ProgramPtr& program, const Point& point, int64_t step) const {
  const Mesh& mesh = folder_.ranks.mesh;
  diffusion::NoiseSettings settings = this->settings();
  const net::Conditions takes = job_.model->conditions();
  const int64_t count = data_->size(), branches = program->schedule.micros, dp = mesh.dp_rank(folder_.ranks.rank());
  std::vector<double> errors(static_cast<size_t>(2 * count), 0.0);
  for (int64_t first = 0; first < count; first += samples_of_pass(static_cast<int>(branches), mesh)) {
    std::vector<net::Batch> batches;
    std::vector<diffusion::TrainingSample> samples;
    // Without a sample of its own a rank runs the last one once more.
    const auto number_of = [&](int64_t rank, int64_t b) { return std::min(first + rank * branches + b, count - 1); };
    std::vector<std::vector<prepare::PreparedData::Place>> places(static_cast<size_t>(mesh.dp_size()));
    for (int64_t rank = 0; rank < mesh.dp_size(); ++rank)
      for (int64_t b = 0; b < branches; ++b) places[static_cast<size_t>(rank)].emplace_back(number_of(rank, b), 0);
    data_->encode_captions(places, static_cast<size_t>(dp));
    for (int64_t b = 0; b < branches; ++b) {
      const int64_t number = number_of(dp, b);
      prepare::PreparedSample clean = data_->sample(number);
      const recipe::Recipe& recipe = part_->part.recipe;
      const bool of_share = recipe.eval.paths.empty() && !recipe.sets.empty();
      settings.loss.masks =
          job::mask_rule(recipe.masked(), recipe.diffusion,
                         of_share ? recipe.sets.at(static_cast<size_t>(data_->set_of(number))).data : recipe.data);
      const double sigma =
          point.given()
              ? point.sigma
              : diffusion::quantile(diffusion::of_size(settings.timesteps, clean.latent.sizes()), point.quantile);
      samples.push_back(diffusion::held_out(settings, takes,
                                            {.latent = std::move(clean.latent),
                                             .context = std::move(clean.context),
                                             .extra = std::move(clean.extra),
                                             .mask = std::move(clean.mask)},
                                            sigma, number));
      samples.back().index = number;
      batches.push_back(job_.model->pack({samples.back().input}));
    }
    engine_.swap(job_.experts.serving(samples.front().input.t));
    const std::vector<at::Tensor> predicted = engine_.forward(program, batches, step);
    for (int64_t b = 0; b < branches; ++b) {
      if (first + dp * branches + b >= count) continue;
      const diffusion::TrainingSample& sample = samples[static_cast<size_t>(b)];
      const at::Tensor target = sample.velocity.contiguous(),
                       found = job_.model->unpack(predicted[static_cast<size_t>(b)], batches[static_cast<size_t>(b)])[0]
                                   .to(at::kCPU)
                                   .to(at::kFloat)
                                   .contiguous();
      double& sum = errors[static_cast<size_t>(sample.index)];
      errors[static_cast<size_t>(count + sample.index)] = static_cast<double>(target.numel());
      const at::Tensor weights = sample.weights.defined() ? sample.weights.contiguous() : at::Tensor();
      for (int64_t i = 0; i < target.numel(); ++i) {
        const double difference =
            static_cast<double>(found.const_data_ptr<float>()[i]) - target.const_data_ptr<float>()[i];
        const double weight = weights.defined() ? weights.const_data_ptr<float>()[i % weights.numel()] : 1;
        sum += weight * ops::error_of(sample.form, difference).error;
      }
    }
  }
  return errors;
}

void HeldOut::measure(const plan::ProgramPtr& program, int64_t step) {
  const Loader::Pause pause(loader_);  // the autoencoder is one
  const recipe::Recipe& recipe = part_->part.recipe;
  const engine::AveragedWeights averaged(engine_.store(), folder_.ranks.comm, recipe.eval.weights == "ema");
  const Mesh& mesh = folder_.ranks.mesh;
  const int64_t count = data_->size(), branches = program->schedule.micros;
  report::EvalMetrics metrics;
  metrics.step = step, metrics.samples = count;
  metrics.set = recipe.eval.paths.empty() ? "share" : recipe.values.at("eval.path");
  std::vector<int> speaks(static_cast<size_t>(mesh.dp_size()), -1);  // the first rank of each dp rank
  for (int rank = folder_.ranks.place.world - 1; rank >= 0; --rank)
    speaks[static_cast<size_t>(mesh.dp_rank(rank))] = rank;
  for (const Point& point : points()) {
    const auto ranks = folder_.ranks.gather(errors(program, point, step));
    double sum = 0, values = 0;  // in the order of the samples, whoever computed them
    for (int64_t i = 0; i < count; ++i) {
      const auto& of = ranks[static_cast<size_t>(speaks[static_cast<size_t>(i / branches % mesh.dp_size())])];
      sum += of[static_cast<size_t>(i)], values += of[static_cast<size_t>(count + i)];
    }
    const double loss = sum / values,
                 sigma = point.given()
                             ? point.sigma
                             : diffusion::quantile(diffusion::of_size(settings().timesteps, part_->shapes.latent),
                                                   point.quantile);
    (point.given() ? metrics.by_sigma : metrics.by_timestep).emplace_back(sigma, loss);
    if (!point.given()) metrics.loss += loss / kQuantiles;
  }
  losses_[step] = metrics.loss;
  if (!folder_.ranks.first()) return;
  log::info("step " + std::to_string(step) + ": held-out loss " + std::to_string(metrics.loss));
  folder_.log()->eval(metrics);
}

void HeldOut::save(checkpoint::Manifest& manifest) const {
  if (losses_.empty()) return;
  checkpoint::Json all = checkpoint::Json::array();
  for (const auto& [step, loss] : losses_) all.push_back({step, loss});
  manifest.extra[kHeldOutLosses] = all;
}

void HeldOut::restore(const checkpoint::Manifest& manifest) {
  const auto saved = manifest.extra.find(kHeldOutLosses);
  if (saved == manifest.extra.end() || !saved->is_array()) return;
  for (const auto& row : *saved)
    if (row.is_array() && row.size() == 2 && row[0].is_number_integer() && row[1].is_number())
      losses_[row[0].get<int64_t>()] = row[1].get<double>();
}

bool owes_samples(const RunFolder& folder, const plan::RunShape& run) {
  const int64_t done = folder.step();
  if (!folder.own_checkpoint() || run.sample_every == 0 || (done % run.sample_every != 0 && done != run.steps))
    return false;
  bool missing = false;  // as rank 0 sees the folder
  for (int prompt = 0; folder.ranks.first() && prompt < run.sample_prompts; ++prompt) {
    const fs::path file = sample::Validation::file(folder.out, done, prompt);
    missing = missing || !fs::is_regular_file(file) || !folder.log()->found().samples.contains(file.filename());
  }
  const bool owes = folder.ranks.of_first(missing);
  if (owes && folder.ranks.first())
    log::info("samples of step " + std::to_string(done) + " are missing: generating them now");
  return owes;
}

}  // namespace tessera::train
