#include "tessera/planning/encoder_bytes.h"

#include "tessera/engine/measure.h"
#include "tessera/job/encoder_plan.h"
#include "tessera/job/job.h"
#include "tessera/job/text_weights.h"
#include "tessera/plan/compile/compile.h"
#include "tessera/plan/compile/memory.h"

namespace tessera::planning {

StackBytes stack_bytes(const std::vector<std::unique_ptr<net::Unit>>& units, const net::Batch& batch, const Mesh& mesh,
                       DType held) {
  plan::ModelSpec spec = engine::measure(units, batch, "encoder", {.train = false});
  job::hold_as(spec, held);
  const plan::Plan plan = job::encoder_plan(spec, mesh);
  const plan::Schedule schedule = plan::compile_forward(spec, plan, /*rank=*/0, "encode", 1);
  const plan::MemoryParts parts = plan::memory_curve(spec, plan, schedule, 0).by_part;
  return {parts.parameters + parts.slots, parts.activations + parts.temporaries};
}

EncoderBytes encoder_bytes(const recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh) {
  EncoderBytes most;
  most.place = recipe.data.encoders;
  const bool whole = recipe.data.beside() && most.place != recipe::Encoders::sharded;
  const Mesh text_mesh = whole ? Mesh{} : mesh;
  most.tile = job.vae_tile;
  most.tile_frames = job.vae_tile_frames;
  const int64_t tokens = job::longest_prompt(recipe, job.context_length);
  const std::vector<int64_t> longest(static_cast<size_t>(tokens), 0);
  most.text = stack_bytes(job.text->units(), job.text->pack({longest}), text_mesh, job::text_storage(recipe).dtype);
  if (job.pooled) {
    const std::vector<int64_t> most_ids(static_cast<size_t>(std::min(tokens, job.pooled->most_tokens())), 0);
    most.pooled =
        stack_bytes(job.pooled->units(), job.pooled->pack({most_ids}), text_mesh, job::pooled_storage(recipe).dtype);
  }
  if (job.image) {
    const int64_t side = job.image->config().image_size;
    most.image = stack_bytes(job.image->units(), job.image->pack({at::zeros({3, side, side})}), mesh,
                             job::image_storage(recipe).dtype);
  }
  for (const data::Bucket& b : recipe.data.clips.buckets) {
    const job::CodecBytes one = job::codec_bytes(*job.codec, b.frames, b.height, b.width);
    most.codec_weights = one.weights;
    most.encode = std::max(most.encode, one.encode);
    most.clip = std::max(most.clip, one.clip);
  }
  most.decode = job::codec_bytes(*job.codec, recipe.data.frames, recipe.data.height, recipe.data.width).decode;
  return most;
}

int64_t EncoderBytes::online(int64_t pictures) const {
  const int64_t clip = encode + pictures;
  if (place == recipe::Encoders::cached) return codec_weights + clip;
  const int64_t caption = std::max(text.work, pooled.work), held = codec_weights + text.held + pooled.held;
  // one thread encodes clips and captions in turn; captions of sharded encoders another, which need not wait for it
  return held + (place == recipe::Encoders::sharded ? clip + caption : std::max(clip, caption));
}

}  // namespace tessera::planning
