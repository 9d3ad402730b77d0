#pragma once
// A frozen encoder that is a list of units, run by the engine: its weights sharded over the mesh, one unit at a time
// gathered (small ones whole on every rank: job/encoder_plan.h). UMT5-XXL (11 GiB in bf16) so takes 11 GiB / ranks and
// two units' slots on each.
//
//   EncoderRun run(encoder.units(), encoder.fingerprint(), mesh, comm, rank);
//   load_text(run, encoder, "models_t5_umt5-xxl-enc-bf16.pth");
//   Tensor hidden = run.forward(encoder.pack({ids}));              // [T, dim]; all ranks together
//
// The weights of CLIP's image tower, 2.4 GiB in fp32 for the released one.
//
//   EncoderRun run(tower.units(), tower.fingerprint(), mesh, comm, rank);
//   load_tower(run, checkpoint::open_weights("models_clip_open-clip-xlm-roberta-large-vit-huge-14.pth"));
//   Tensor rows = image_features(run, tower, picture);     // [257, 1280]; all ranks together, each its own picture
#include <limits>

#include "tessera/checkpoint/weights.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/store/transfer.h"
#include "tessera/job/encoder_plan.h"
#include "tessera/models/encoders/clip_vision.h"
#include "tessera/net/encoders.h"

namespace tessera::prepare {

class EncoderRun {
 public:
  /// Borrows units and comm. `held`: the weights in memory; arithmetic is fp32. `first`: the first so many
  /// units alone, whose output is what the next one would get.
  EncoderRun(const std::vector<std::unique_ptr<net::Unit>>& units, const std::string& name, const Mesh& mesh,
             comm::Comm& comm, int rank, const job::HeldWeights& held = {},
             size_t first = std::numeric_limits<size_t>::max());

  void fill(const engine::Fill& values) { engine::fill_shards(engine_->store(), values); }
  /// The last unit's boundary tensor. Ranks may have inputs of their own, of the same shapes.
  at::Tensor forward(const net::Batch& batch) { return engine_->forward(program_, {batch})[0]; }
  /// "ENCODER: 1.2 GiB in bf16, as its file has them": what its weights take, and why so.
  std::string held_text(const std::string& encoder, const job::HeldWeights& held, const Mesh& mesh) const;
  bool any_on_host() const { return on_host_ > 0; }
  engine::Store& store() { return engine_->store(); }
  const plan::ModelSpec& spec() const { return spec_; }

 private:
  plan::ModelSpec spec_;
  int64_t on_host_ = 0;  // units
  plan::ProgramPtr program_;
  std::unique_ptr<engine::Engine> engine_;
};

/// Weights of a text encoder under the official names or transformers'. Throws UserError (input) for missing ones and
/// other shapes.
void load_text(EncoderRun& run, const net::TextEncoder& encoder, const std::string& path);

/// The encoder's own random values, the same on every layout.
template <class Encoder>
void initialise(EncoderRun& run, const Encoder& encoder, uint64_t seed) {
  run.fill([&](const plan::ParamSpec& param, int64_t first, int64_t count, float* out) {
    encoder.initialise(param, seed, first, count, out);
  });
}

/// Under the official names or transformers'. Throws UserError (input) for missing ones and other sizes.
void load_tower(EncoderRun& run, const checkpoint::WeightSet& weights);

/// Features of one picture [3, H, W] in [-1, 1]: [rows, dim].
at::Tensor image_features(EncoderRun& run, const models::clip::ClipVision& tower, const at::Tensor& picture);

}  // namespace tessera::prepare
