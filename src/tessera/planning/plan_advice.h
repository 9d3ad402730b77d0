#pragma once
// What to change: the nearest plans that fit when one does not, and the largest that fits when one does. Both measure
// and plan the changed job, they guess nothing.
//
//   log::warn(advice(request));          // "train.micro_batch = 1: 3.1 GiB a rank, a step of 1.2 s; ..."
//   largest(request, Grow::frames);
#include <string>
#include <vector>

#include "tessera/planning/planning.h"

namespace tessera::planning {

/// One sentence part for each way out that fits, the nearest of its kind: smaller micro-batches, gradients in bf16,
/// host memory, more ranks, fewer frames; with peak and step. Empty when none does.
std::string advice(const PlanRequest& request);
/// Of a plan that needs the disk, and holds gradients back until their norm is known: what would take none, in words.
/// Empty where nothing is found. Numbers of a run change by it, so the planner does not choose it.
std::string without_the_disk(const PlanRequest& request, const Planned& planned);

/// Of a plan whose gradients are rounded although none rests anywhere: that it saves nothing. Else empty.
std::string nothing_to_round(const Planned& planned);

/// Of a plan that was told where activations rest that leave the device, when none leaves: that this changes nothing.
/// Else empty.
std::string nothing_to_offload(const PlanRequest& request, const Planned& planned);

/// Of a plan that was told how far ahead to bring what units need, when all lies where they run; and of one that was
/// told how many threads update on the host, when none does: that this changes nothing. Else empty.
std::string nothing_to_fetch(const PlanRequest& request, const Planned& planned);
std::string nothing_on_the_host(const PlanRequest& request, const Planned& planned);

enum class Grow { frames, batch, resolution };
/// "frames", "batch", "resolution". Throws UserError (usage) naming the nearest.
Grow grow_of(const std::string& text);

/// What grew, and what it takes.
struct Largest {
  bool found = false;  ///< not even the smallest fits otherwise
  std::string text;    ///< "121 frames", "micro-batch of 6 samples", "768 x 1344 pixels"
  std::string limit;   ///< the next larger one, and by how much it is over
  int64_t peak = 0;
  double seconds = 0;
  std::vector<std::pair<std::string, int64_t>> sizes = {};  ///< the same as numbers: "frames", "height", "micro_batch"
};

/// How a latent's frames and pixels follow from the video's, for saying sizes as people know them.
struct VideoScale {
  int64_t frames_per_latent = 4, first_frame = 1, pixels_per_latent = 8;
  int64_t patch = 2;  ///< latent rows and columns of a token
};

/// The largest number of frames, samples a rank or pixels (of the same shape) that fits the request's budget.
Largest largest(const PlanRequest& request, Grow grow, const VideoScale& scale);

/// {"largest":{"frames":121},"text","peak_bytes","step_seconds","limit"}; height and width of a resolution.
std::string largest_json(const Largest& found);

}  // namespace tessera::planning
