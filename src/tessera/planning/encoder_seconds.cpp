#include "tessera/planning/encoder_seconds.h"

#include <algorithm>

#include "tessera/engine/signatures.h"
#include "tessera/job/codec.h"
#include "tessera/job/encoder_plan.h"
#include "tessera/plan/simulate/predict.h"
#include "tessera/planning/encoder_bytes.h"
#include "tessera/recipe/stages.h"

namespace tessera::planning {

namespace {

double forward_seconds(const std::vector<std::unique_ptr<net::Unit>>& units, const net::Batch& batch, const Mesh& mesh,
                       const job::HeldWeights& held, const plan::Profile& profile) {
  const EncoderForward forward = encoder_forward(units, batch, mesh, held);
  const plan::Machine machine{.profile = profile, .work = engine::count_work(units, batch)};
  const plan::CostModel cost(forward.spec, forward.plan, machine);
  return plan::simulate({plan::tasks_of(forward.schedule, cost, /*rank=*/0)}, {.steal = profile.steal}).seconds;
}

/// Of operators one after the other.
double seconds_of(plan::UnitWork work, const plan::Profile& profile) {
  plan::ModelSpec spec;
  spec.units.resize(1);
  spec.units[0].kind = "autoencoder";
  const plan::Plan plan;
  const plan::Machine machine{.profile = profile, .work = {{"autoencoder", std::move(work)}}};
  const plan::CostModel cost(spec, plan, machine);
  return cost.forward_seconds(0, /*replay=*/false);
}

}  // namespace

plan::Beside EncoderSeconds::beside() const {
  if (place == recipe::Encoders::host) return {.host = total()};
  if (place == recipe::Encoders::sharded) return {.between = of_captions(), .device = of_clips()};
  return {.device = total()};
}

EncoderSeconds encoder_seconds(const recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh,
                               const plan::Profile& profile) {
  EncoderSeconds seconds;
  seconds.place = recipe.data.encoders;
  if (!recipe.data.online()) return seconds;
  std::optional<OnHostMemory> host;
  if (seconds.place == recipe::Encoders::host) host.emplace();
  if (host && !profile.target.empty()) seconds.profile = "cpu";
  const plan::Profile rates = seconds.profile.empty() ? profile : plan::find_profile(seconds.profile);
  int64_t batch = recipe::batches(recipe).empty() ? recipe.train.global_batch : 0;
  for (const auto& [bucket, samples] : recipe::batches(recipe)) batch = std::max(batch, samples);
  const int64_t own = div_up(batch, mesh.dp_size());
  if (recipe.data.beside()) {
    const Mesh text_mesh = seconds.place == recipe::Encoders::sharded ? mesh : Mesh{};
    const auto caption = [&](const net::TextEncoder& encoder, const job::HeldWeights& held) {
      return forward_seconds(encoder.units(), longest_caption(recipe, job, encoder), text_mesh, held, rates);
    };
    seconds.captions = own;
    seconds.caption = caption(*job.text, job::text_storage(recipe));
    if (job.second) seconds.caption += caption(*job.second, job::second_storage(recipe));
  }
  if (recipe.data.latents) return seconds;
  seconds.clips = job.model->conditions().takes_images() ? 2 * own : own;
  for (const data::Bucket& b : recipe.data.clips.buckets)
    seconds.clip = std::max(seconds.clip, seconds_of(job::codec_work(*job.codec, b.frames, b.height, b.width), rates));
  return seconds;
}

}  // namespace tessera::planning
