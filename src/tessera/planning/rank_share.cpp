#include "tessera/planning/rank_share.h"

#include <unistd.h>

#include <algorithm>

#include "tessera/families/frames/frame_masks.h"
#include "tessera/models/common/adapted.h"
#include "tessera/plan/simulate/libraries.h"

namespace tessera::planning {

namespace {

/// Bytes of the predictions that a soft gate keeps during a step: `samples` on a rank, in micro-batches of `micro`.
int64_t mixed_bytes(int64_t samples, int64_t micro, int64_t prediction_bytes) {
  constexpr int64_t kBlock = 64;  // allocation granularity of a tensor
  return (samples + micro) * round_up(prediction_bytes, kBlock);
}

int ranks_of_node(const plan::Profile& profile, int world) {
  return profile.devices > 0 ? std::min(profile.devices, world) : world;
}

/// Each rank's share of the host memory that a node may use for offload.
int64_t host_share(const recipe::Recipe& recipe, const plan::Profile& profile, int world) {
  int64_t bytes = recipe.plan.host_budget;
  if (bytes < 0) bytes = profile.devices > 0 ? profile.host_memory / 10 * 9 : 0;
  return bytes / ranks_of_node(profile, world);
}

/// Floats of the largest clip's pixels, from which y or a noisy clip is encoded; a clip's own pixels are bytes.
int64_t picture_bytes(const recipe::Recipe& recipe, const net::Denoiser& model) {
  int64_t most = 0;
  if (!model.conditions().takes_images() && !families::any_noisy(recipe.diffusion.mask_types)) return most;
  for (const data::Bucket& b : recipe.data.clips.buckets) most = std::max(most, b.frames * b.height * b.width);
  return most * 3 * static_cast<int64_t>(sizeof(float));
}

/// At most: sample::SamplerWeights keeps of trained weights what a LoRA touches, as fp32, and frozen ones as they are
/// stored. Each rank keeps its shards, of all experts.
int64_t kept_weights(const recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh) {
  if (recipe.sample.every == 0 || recipe.sample.loras.empty()) return 0;
  int64_t bytes = 0;
  for (const auto& unit : job.model->units())
    for (const plan::ParamSpec& param : unit->spec().params)
      if (!models::is_adapter_parameter(param.name))
        bytes += plan::stored_bytes(param.trainable ? DType::f32 : param.stored, param.numel());
  return div_up(bytes * static_cast<int64_t>(job.experts.size()), mesh.world() / mesh[Axis::dp_replicate]);
}

}  // namespace

int64_t rank_budget(const plan::Profile& profile, const Mesh& mesh, const UnitGroups& sent_by) {
  if (profile.device.memory > 0 && profile.devices > 0) {
    const plan::Connected run = profile.target.empty() ? plan::Connected(mesh) : plan::Connected(mesh, sent_by(mesh));
    return std::max<int64_t>(1, plan::default_budget(profile, run));  // 0 would be no limit
  }
  const int64_t total = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  return total / 10 * 9 / mesh.world();
}

RankShare rank_share(const recipe::Recipe& recipe, const job::Job& job, const job::Shapes& shapes, const Mesh& mesh,
                     const plan::Profile& profile, const EncoderBytes& encoders, const UnitGroups& sent_by) {
  RankShare share;
  share.budget = recipe.plan.budget > 0 ? recipe.plan.budget : rank_budget(profile, mesh, sent_by);
  share.host_budget = host_share(recipe, profile, mesh.world());
  share.local_world = ranks_of_node(profile, mesh.world());
  if (job.local_world > 0) share.local_world = std::min(share.local_world, job.local_world);
  const int64_t own = div_up(shapes.batch, mesh.dp_size());
  share.micro_batch = recipe.train.micro_batch > 0 ? std::min(recipe.train.micro_batch, own) : own;
  if (recipe.data.online())  // every step reads clips
    (encoders.place == recipe::Encoders::host ? share.host_encoders : share.resident) +=
        encoders.online(picture_bytes(recipe, *job.model));
  if (job.experts.gated && !recipe.experts.hard)
    share.resident += mixed_bytes(own, share.micro_batch, 4 * c10::multiply_integers(shapes.largest));
  share.kept_weights = kept_weights(recipe, job, mesh);
  share.encoding = encoder_seconds(recipe, job, mesh, profile);
  return share;
}

bool set_share(PlanRequest& request, const RankShare& share) {
  request.planner.budget = share.budget, request.planner.host_budget = share.host_budget;
  request.planner.micro_batch = share.micro_batch, request.planner.local_world = share.local_world;
  request.of_mesh = share.resident, request.host_encoders = share.host_encoders;
  request.kept_weights = share.kept_weights;
  request.encoding = share.encoding, request.machine.beside = share.encoding.beside();
  const int64_t beside = share.host_encoders + share.kept_weights;
  if (share.host_budget <= 0 || beside == 0) return true;
  request.planner.host_budget -= beside;
  return request.planner.host_budget > 0;
}

std::optional<PlanRequest> on_mesh(PlanRequest request, const Mesh& mesh) {
  request.mesh = mesh;
  const int64_t share = div_up(request.planner.global_batch, mesh.dp_size());
  request.planner.micro_batch = std::min(request.planner.micro_batch, share);
  if (request.share_on && !set_share(request, request.share_on(mesh))) return std::nullopt;
  return request;
}

}  // namespace tessera::planning
