#include "tessera/train/sampler.h"

#include "tessera/base/log.h"
#include "tessera/sample/expert_passes.h"

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
