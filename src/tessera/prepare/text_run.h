#pragma once
// A text encoder of any size, run by the engine: its units under a forward-only schedule, its weights sharded over the
// mesh. UMT5-XXL (21 GiB in fp32) so takes 21 GiB / ranks and two units' slots on each.
//
//   TextRun run(encoder, mesh, comm, rank);
//   run.load("models_t5_umt5-xxl-enc-bf16.pth");
//   Tensor hidden = run.forward(encoder.pack({ids}));              // [T, dim]; all ranks together
#include "tessera/engine/executor.h"
#include "tessera/net/text_encoder.h"

namespace tessera::prepare {

class TextRun {
 public:
  /// Borrows encoder and comm.
  TextRun(const net::TextEncoder& encoder, const Mesh& mesh, comm::Comm& comm, int rank);
  TextRun(const TextRun&) = delete;  // the executor points into it

  /// Weights under the official names or transformers'. Throws UserError (input) for missing ones and other shapes.
  void load(const std::string& path);
  /// The encoder's own random values, the same on every layout.
  void initialise(uint64_t seed);
  at::Tensor forward(const net::Batch& batch);
  engine::Store& store() { return *store_; }

 private:
  const net::TextEncoder& encoder_;
  plan::ModelSpec spec_;
  plan::Plan plan_;
  plan::Schedule schedule_;
  std::unique_ptr<engine::Store> store_;
  std::unique_ptr<engine::Executor> executor_;
};

}  // namespace tessera::prepare
