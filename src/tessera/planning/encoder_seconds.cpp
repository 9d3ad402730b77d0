#include "tessera/planning/encoder_seconds.h"

#include <algorithm>

#include "tessera/engine/work.h"
#include "tessera/job/codec_bytes.h"
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
  const double texts = caption * static_cast<double>(captions), pictures = clip * static_cast<double>(clips);
  switch (place) {
    case recipe::Encoders::host:
      return {.host = texts + pictures};
    case recipe::Encoders::sharded:
      return {.between = texts, .device = pictures};
    default:
      return {.device = texts + pictures};
  }
}

EncoderSeconds encoder_seconds(const recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh,
                               const plan::Profile& profile) {
  EncoderSeconds seconds;
  seconds.place = recipe.data.encoders;
  if (!recipe.data.online()) return seconds;
  const int64_t own = div_up(recipe.train.global_batch, mesh.dp_size());
  if (recipe.data.beside()) {
    const Mesh text_mesh = seconds.place == recipe::Encoders::sharded ? mesh : Mesh{};
    const auto caption = [&](const net::TextEncoder& encoder, DType held) {
      return forward_seconds(encoder.units(), longest_caption(recipe, job, encoder), text_mesh, held, profile);
    };
    seconds.captions = own;
    seconds.caption = caption(*job.text, job::text_storage(recipe).dtype);
    if (job.pooled) seconds.caption += caption(*job.pooled, DType::f32);
  }
  if (recipe.data.latents) return seconds;
  seconds.clips = own;
  const auto& products = profile.device.gemm;
  for (const data::Bucket& b : recipe.data.clips.buckets)
    seconds.clip =
        std::max(seconds.clip, products.at("fp32").seconds(job::encode_flops(*job.codec, b.frames, b.height, b.width)));
  return seconds;
}

}  // namespace tessera::planning
