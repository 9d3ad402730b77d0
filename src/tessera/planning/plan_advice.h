#pragma once
// Advice: the nearest plans that fit if the requested one does not, and the largest one that fits if it does. Both
// measure and plan the changed job instead of estimating.
//
//   log::warn(advice(request).text);     // "with train.micro_batch = 1: 3.1 GiB a rank, a step of 1.2 s; ..."
//   largest(request, Grow::frames);
//
// Whether fewer ranks, or as many in the plain mesh, are predicted to be faster than the request's mesh.
//
//   planned.warn(slower_mesh(request, planned));    // "tp=4 is predicted to be slower than one rank ..."
#include <functional>
#include <string>
#include <vector>

#include "tessera/planning/planning.h"

namespace tessera::planning {

/// One phrase for each change that makes the run fit, with peak and step time of the plan made for it. First, the fastest
/// before the others and at equal time the most exact before the others: smaller micro-batches, bf16, split masters,
/// 8-bit moments, gradients in bf16, an int8 base, a disk (alone, or together where that is needed or faster), host memory
/// and another mesh of as many ranks; then more ranks and fewer frames. Empty if none does.
struct Advice {
  std::string text;
  int evaluated = 0;  ///< plans, see plan::Choice
};
Advice advice(const PlanRequest& request);
/// For a plan that needs the disk and stores gradients until the norm: a change that avoids the disk. Empty if there is
/// none. The change affects numerics, so the planner does not choose it.
std::string advice_without_disk(const PlanRequest& request, const Planned& planned);

/// Warns that bf16 gradients save nothing if no gradient is stored. Else empty.
std::string useless_grad_dtype(const Planned& planned);

/// Warns that plan.offload_to has no effect if no activations are offloaded. Else empty.
std::string useless_offload_to(const PlanRequest& request, const Planned& planned);

/// Warns that prefetch has no effect if everything is on the device, and that update_threads has none if no unit is
/// updated on the host. Else empty.
std::string useless_prefetch(const PlanRequest& request, const Planned& planned);
std::string useless_update_threads(const PlanRequest& request, const Planned& planned);
/// Warns that graphs = on has no effect on a CPU, or where something forbids them.
std::string useless_graphs(const PlanRequest& request, const Planned& planned);

enum class GrowthAxis { frames, batch, resolution };
/// "frames", "batch", "resolution". Throws UserError (usage) naming the nearest.
GrowthAxis growth_axis_of(const std::string& text);

/// The largest size that fits, and its memory and time.
struct Largest {
  bool found = false;  ///< false: not even the smallest size fits
  std::string text;    ///< "121 frames", "micro-batch of 6 samples", "768 x 1344 pixels"
  std::string limit;   ///< the next larger size, and the bytes by which it exceeds the budget
  int64_t count = 0;   ///< how many of the smallest steps of growth: `near` of a request like this one
  int64_t peak = 0;
  double seconds = 0;
  /// the sizes as numbers: "frames", "height", "micro_batch"
  std::vector<std::pair<std::string, int64_t>> sizes = {};
};

/// How a latent's frames and pixels relate to the video's, to report sizes of videos.
struct VideoScale {
  int64_t frames_per_latent = 4, first_frame = 1, pixels_per_latent = 8;
  int64_t patch = 2;  ///< latent rows and columns of a token
};

/// The largest number of frames, samples a rank or pixels (of the same aspect ratio) that fits the request's budget.
/// `told` hears of each size that was planned: "81 frames fits". `near`: the answer of a request like this one, where the
/// search begins; 0: at the smallest size.
Largest largest(const PlanRequest& request, GrowthAxis grow, const VideoScale& scale,
                const std::function<void(const std::string&)>& told = {}, int64_t near = 0);

/// {"largest":{"frames":121},"text","peak_bytes","step_seconds","limit"}; height and width of a resolution.
std::string largest_json(const Largest& found);

/// A sentence with both times where the same global batch takes less time on dp_shard over all ranks or on one rank alone;
/// else empty. A mesh is named only with a plan that was made for it and fits.
std::string slower_mesh(const PlanRequest& request, const Planned& planned);

}  // namespace tessera::planning
