#include "tessera/planning/encoders.h"

#include <algorithm>

#include "tessera/engine/measure.h"
#include "tessera/engine/signatures.h"
#include "tessera/job/codec.h"
#include "tessera/job/encoder_plan.h"
#include "tessera/job/encoders.h"
#include "tessera/job/job.h"
#include "tessera/models/registry.h"
#include "tessera/plan/compile/compile.h"
#include "tessera/plan/compile/memory.h"
#include "tessera/plan/simulate/predict.h"
#include "tessera/recipe/stages.h"

namespace tessera::planning {

OnHostMemory::OnHostMemory() : target_(std::nullopt) {}

EncoderForward encoder_forward(const std::vector<std::unique_ptr<net::Unit>>& units, const net::Batch& batch,
                               const Mesh& mesh, const job::HeldWeights& held) {
  EncoderForward forward;
  forward.spec = engine::measure(units, batch, "encoder", {.train = false});
  job::hold_as(forward.spec, held.dtype);
  forward.plan = job::encoder_plan(forward.spec, mesh, held.room);
  forward.schedule = plan::compile_forward(forward.spec, forward.plan, /*rank=*/0, "encode", 1);
  return forward;
}

net::Batch longest_caption(const recipe::Recipe::Data& data, const job::Job& job, const net::TextEncoder& encoder) {
  int64_t tokens = job::longest_prompt(data, job.context_length);
  const int64_t glyphs = job.model->conditions().glyph_rows;
  if (&encoder == job.second.get()) tokens = glyphs > 0 ? glyphs : std::min(tokens, encoder.most_tokens());
  return encoder.pack({std::vector<int64_t>(static_cast<size_t>(tokens), 0)});
}

StackBytes stack_bytes(const std::vector<std::unique_ptr<net::Unit>>& units, const net::Batch& batch, const Mesh& mesh,
                       const job::HeldWeights& held) {
  const EncoderForward forward = encoder_forward(units, batch, mesh, held);
  const plan::MemoryCurve curve = plan::memory_curve(forward.spec, forward.plan, forward.schedule, 0);
  const plan::MemoryParts& parts = curve.by_part;
  return {parts.parameters + parts.slots, parts.activations + parts.temporaries, curve.host.total()};
}

namespace {

/// Of what a clip of a sample follows, as numbers on their way to the autoencoder.
int64_t guide_pixels(const recipe::Recipe::Data& data, const net::Conditions& wanted) {
  constexpr int64_t kMade = 3;  // of these: a background that begins with other frames, and masks
  const int64_t clip = data.frames * std::max(data.height * data.width, wanted.face_size * wanted.face_size);
  return 3 * 4 * clip * (std::ssize(wanted.guides) + kMade);
}

}  // namespace

EncoderBytes encoder_bytes(const recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh) {
  EncoderBytes most;
  most.place = recipe.data.encoders;
  most.texts = job::encodes_texts(recipe), most.clips = job::encodes_clips(recipe);
  const bool whole = recipe.data.beside() && most.place != recipe::Encoders::sharded;
  const Mesh text_mesh = whole ? Mesh{} : mesh;
  most.tile = job.vae_tile;
  most.tile_frames = job.vae_tile_frames;
  std::optional<OnHostMemory> host;  // of what is measured: kernels of the CPU, whatever the plan is for
  if (most.place == recipe::Encoders::host) host.emplace();
  most.text = stack_bytes(job.text->units(), longest_caption(recipe.data, job, *job.text), text_mesh,
                          job::text_storage(recipe.data, recipe.plan));
  if (job.second)
    most.pooled = stack_bytes(job.second->units(), longest_caption(recipe.data, job, *job.second), text_mesh,
                              job::second_storage(recipe.data, recipe.plan));
  for (const data::Bucket& b : recipe.data.clips.buckets) {
    const job::CodecBytes one = job::codec_bytes(*job.codec, b.frames, b.height, b.width);
    most.codec_weights = one.weights;
    most.encode = std::max(most.encode, one.encode);
    most.clip = std::max(most.clip, one.clip);
  }
  host.reset();
  if (job.image) {
    const int64_t side = job.image->config().image_size;
    most.image = stack_bytes(job.image->units(), job.image->pack({at::zeros({3, side, side})}), mesh,
                             job::image_storage(recipe.data, recipe.plan));
  }
  const job::CodecBytes sampled =
      job::codec_bytes(*job.codec, recipe.data.frames, recipe.data.height, recipe.data.width);
  most.decode = sampled.decode;
  const net::Conditions wanted = job.model->conditions();
  if (job::sample_clips(recipe.sample, wanted) > 1)  // what the next clip follows is read and encoded
    most.decode = std::max(most.decode, sampled.encode + guide_pixels(recipe.data, wanted));
  if (!ops::session().target || models::is_built_in_codec(recipe.data.vae)) return most;
  most.workspace = cudnn_workspace(cudnn_setting());
  most.decode += most.workspace;
  if (most.place != recipe::Encoders::host) most.encode += most.workspace;
  return most;
}

int64_t EncoderBytes::online(int64_t pictures) const {
  const int64_t clip = encode + pictures;
  if (place == recipe::Encoders::cached) return codec_weights + clip;
  const int64_t caption = std::max(text.work, pooled.work), held = codec_weights + text.held + pooled.held;
  // one thread encodes clips and captions in turn; captions of sharded encoders another, which need not wait for it
  return held + (place == recipe::Encoders::sharded ? clip + caption : std::max(clip, caption));
}

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
      return forward_seconds(encoder.units(), longest_caption(recipe.data, job, encoder), text_mesh, held, rates);
    };
    seconds.captions = own;
    seconds.caption = caption(*job.text, job::text_storage(recipe.data, recipe.plan));
    if (job.second) seconds.caption += caption(*job.second, job::second_storage(recipe.data, recipe.plan));
  }
  if (recipe.data.latents) return seconds;
  seconds.clips = job.model->conditions().takes_images() ? 2 * own : own;
  for (const data::Bucket& b : recipe.data.clips.buckets)
    seconds.clip = std::max(seconds.clip, seconds_of(job::codec_work(*job.codec, b.frames, b.height, b.width), rates));
  return seconds;
}

}  // namespace tessera::planning
