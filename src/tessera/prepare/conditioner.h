#pragma once
// Encodes pictures into the conditions that a model takes beside latent and text: the extras of its samples.
//
//   Conditioner conditioner(recipe, job, mesh, comm, rank);            // all ranks; loads CLIP where the model wants
//   it at::Tensor seen = conditioner.look(pictures);                      // all ranks together, each at its own extras
//   = conditioner.extras(pictures, seen, frames);               // y, clip_fea; alone
#include <map>
#include <optional>

#include "tessera/job/job.h"
#include "tessera/prepare/condition_draws.h"
#include "tessera/prepare/encoder_run.h"
#include "tessera/prepare/sounds.h"

namespace tessera::prepare {

class Conditioner {
 public:
  Conditioner(const recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh, comm::Comm& comm, int rank);

  /// Whether look() needs the other ranks: the model takes features of an image encoder.
  bool looks() const { return run_ != nullptr; }
  /// Features of the pictures, one after the other; undefined where the model takes none. A rank without pictures
  /// takes part all the same, because it has shards of the encoder.
  at::Tensor look(const Pictures& pictures);
  /// Everything a sample of `frames` frames has from its pictures. `seen`: what look() gave.
  Extras extras(const Pictures& pictures, const at::Tensor& seen, int64_t frames) const;
  /// Everything beside that of pictures, of a clip of the data set and one of its draws: sound, pose, what it follows, a
  /// picture of the row in place of the first frame.
  Extras extras(const data::Item& item, const data::ClipSpec& spec, const MaybeDraw& draw = {}) const;
  /// Of a prompt that is sampled: y and clip_fea, or for a model that may begin with a clean frame, image_latent;
  /// audio; of a video of poses (empty: none) from `pose_start` seconds on, pose.
  Extras for_sampling(const Pictures& pictures, const data::Sound& sound, int64_t frames, const data::Path& poses = {},
                      double pose_start = 0, const Controls& controls = {});

 private:
  /// With the features of the first picture, of a model that is given them with it; all ranks together.
  Extras with_seen(Extras extras, const Pictures& pictures);
  at::Tensor first_latent(const at::Tensor& picture) const;
  at::Tensor given(const std::string& kind, const Pictures& pictures, int64_t frames) const;
  Extras given_beside(const std::string& kind, const Pictures& pictures, int64_t frames) const;
  data::Frames video_part(const std::string& kind, const data::Path& video, int64_t count) const;

  const recipe::Recipe& recipe_;
  const job::Job& job_;
  const net::Conditions wanted_;
  std::unique_ptr<EncoderRun> run_;
  const Listener listener_;
};

/// What makes extras, as text for cache keys; empty where there are none.
std::string conditioner_fingerprint(const recipe::Recipe::Data& data, const recipe::Recipe::Diffusion& diffusion,
                                    const job::Job& job);

}  // namespace tessera::prepare
