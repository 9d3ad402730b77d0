#pragma once
// The weights of CLIP's image tower, 2.4 GiB in fp32 for the released one.
//
//   EncoderRun run(tower.units(), tower.fingerprint(), mesh, comm, rank);
//   load_tower(run, checkpoint::open_weights("models_clip_open-clip-xlm-roberta-large-vit-huge-14.pth"));
//   Tensor rows = image_features(run, tower, picture);     // [257, 1280]; all ranks together, each its own picture
#include "tessera/checkpoint/weights.h"
#include "tessera/models/encoders/clip_vision.h"
#include "tessera/prepare/encoder_run.h"

namespace tessera::prepare {

/// Under the official names or transformers'. Throws UserError (input) for missing ones and other sizes.
void load_tower(EncoderRun& run, const checkpoint::WeightSet& weights);

/// Features of one picture [3, H, W] in [-1, 1]: [rows, dim].
at::Tensor image_features(EncoderRun& run, const models::clip::ClipVision& tower, const at::Tensor& picture);

}  // namespace tessera::prepare
