#pragma once
// CLIP's image tower run by the engine, its weights sharded over the mesh: 2.4 GiB in fp32 for the released one.
//
//   ClipRun run(tower, mesh, comm, rank);
//   run.load(checkpoint::open_weights("models_clip_open-clip-xlm-roberta-large-vit-huge-14.pth"));
//   Tensor rows = run.features(picture);                      // [257, 1280]; all ranks together, each its own picture
#include "tessera/checkpoint/weights.h"
#include "tessera/engine/executor.h"
#include "tessera/models/clip/clip_vision.h"

namespace tessera::prepare {

class ClipRun {
 public:
  /// Borrows tower and comm.
  ClipRun(const models::clip::ClipVision& tower, const Mesh& mesh, comm::Comm& comm, int rank);
  ClipRun(const ClipRun&) = delete;  // the executor points into it

  /// Weights under the official names or transformers'. Throws UserError (input) for missing ones and other sizes.
  void load(const checkpoint::WeightSet& weights);
  /// The tower's own random values, the same on every layout.
  void initialise(uint64_t seed);
  at::Tensor forward(const net::Batch& batch);
  /// Features of one picture [3, H, W] in [-1, 1]: [rows, dim].
  at::Tensor features(const at::Tensor& picture) { return forward(tower_.pack({tower_.preprocess(picture)})); }

 private:
  const models::clip::ClipVision& tower_;
  plan::ModelSpec spec_;
  plan::Plan plan_;
  plan::Schedule schedule_;
  std::unique_ptr<engine::Store> store_;
  std::unique_ptr<engine::Executor> executor_;
};

}  // namespace tessera::prepare
