#include "tessera/planning/encoder_seconds.h"

#include "tessera/engine/work.h"
#include "tessera/job/encoder_plan.h"
#include "tessera/plan/simulate/predict.h"
#include "tessera/planning/encoder_bytes.h"

namespace tessera::planning {

namespace {

double forward_seconds(const std::vector<std::unique_ptr<net::Unit>>& units, const net::Batch& batch, const Mesh& mesh,
                       DType held, const plan::Profile& profile) {
  const EncoderForward forward = encoder_forward(units, batch, mesh, held);
  const plan::Machine machine{.profile = profile, .work = engine::count_work(units, batch)};
  const plan::CostModel cost(forward.spec, forward.plan, machine);
  return plan::simulate({plan::tasks_of(forward.schedule, cost, /*rank=*/0)}, {.steal = profile.steal}).seconds;
}

}  // namespace

plan::Beside EncoderSeconds::beside() const {
  if (place == recipe::Encoders::host) return {.host = total()};
  if (place == recipe::Encoders::sharded) return {.between = total()};
  return {.device = total()};
}

EncoderSeconds encoder_seconds(const recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh,
                               const plan::Profile& profile) {
  EncoderSeconds seconds;
  seconds.place = recipe.data.encoders;
  if (!recipe.data.beside()) return seconds;
  const Mesh text_mesh = seconds.place == recipe::Encoders::sharded ? mesh : Mesh{};
  const auto caption = [&](const net::TextEncoder& encoder, DType held) {
    return forward_seconds(encoder.units(), longest_caption(recipe, job, encoder), text_mesh, held, profile);
  };
  seconds.captions = div_up(recipe.train.global_batch, mesh.dp_size());
  seconds.caption = caption(*job.text, job::text_storage(recipe).dtype);
  if (job.pooled) seconds.caption += caption(*job.pooled, job::pooled_storage(recipe).dtype);
  return seconds;
}

}  // namespace tessera::planning
