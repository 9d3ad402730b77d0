#pragma once
// What a model takes beside latent and text, made from pictures: the extras of its samples.
//
//   Conditioner conditioner(recipe, job, mesh, comm, rank);            // all ranks; loads CLIP where the model wants
//   it at::Tensor seen = conditioner.look(pictures);                      // all ranks together, each at its own extras
//   = conditioner.extras(pictures, seen, frames);               // y, clip_fea; alone
#include <map>
#include <optional>

#include "tessera/train/clip_run.h"
#include "tessera/train/job.h"
#include "tessera/train/pictures.h"
#include "tessera/train/sounds.h"

namespace tessera::train {

using Extras = std::map<std::string, at::Tensor>;

class Conditioner {
 public:
  Conditioner(const Recipe& recipe, const Job& job, const Mesh& mesh, comm::Comm& comm, int rank);

  /// Whether look() needs the other ranks: the model takes features of an image encoder.
  bool looks() const { return run_ != nullptr; }
  /// CLIP features of the pictures, one after the other; undefined where the model takes none. A rank without pictures
  /// takes part all the same, because it has shards of the encoder.
  at::Tensor look(const Pictures& pictures);
  /// Everything a sample of `frames` frames has from its pictures. `seen`: what look() gave.
  Extras extras(const Pictures& pictures, const at::Tensor& seen, int64_t frames) const;
  /// Everything beside that of pictures, of a clip of the data set: sound, pose, a picture of the row in place of the
  /// first frame.
  Extras extras(const data::Item& item, const data::ClipSpec& spec) const;
  /// Of a prompt that is sampled: y and clip_fea, or for a model that may begin with a clean frame, image_latent;
  /// audio; of a video of poses (empty: none) from `pose_start` seconds on, pose.
  Extras for_sampling(const Pictures& pictures, const data::Sound& sound, int64_t frames, const data::Path& poses = {},
                      double pose_start = 0);

 private:
  at::Tensor first_latent(const at::Tensor& picture) const;

  const Recipe& recipe_;
  const Job& job_;
  const net::Conditions wanted_;
  std::unique_ptr<ClipRun> run_;
  const Listener listener_;
};

/// The image encoder that the recipe names or the model's width asks for; nothing for a model without. Throws UserError
/// (usage) where they do not fit each other.
std::unique_ptr<models::clip::ClipVision> open_image_encoder(const Recipe& recipe, const net::Conditions& wanted);

/// What makes extras, as text for cache keys; empty where there are none.
std::string conditioner_fingerprint(const Recipe& recipe, const Job& job);

}  // namespace tessera::train
