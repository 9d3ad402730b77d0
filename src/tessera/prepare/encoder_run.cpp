#include "tessera/prepare/encoder_run.h"

#include <utility>

#include "tessera/job/text_weights.h"

namespace tessera::prepare {

EncoderRun::EncoderRun(const std::vector<std::unique_ptr<net::Unit>>& units, const std::string& name, const Mesh& mesh,
                       comm::Comm& comm, int rank) {
  // The schedule needs the units' parameters only: what a prompt's or a picture's tokens take is small beside them.
  spec_.name = name;
  for (const auto& unit : units) spec_.units.push_back(unit->spec());
  // The input is too small for a pipeline: every stage's ranks run the whole encoder.
  plan::Plan plan;
  plan.mesh = mesh;
  plan.mesh[Axis::dp_replicate] *= std::exchange(plan.mesh[Axis::pp], 1);
  plan.units.resize(spec_.units.size());
  program_ = std::make_shared<const plan::Program>(plan, plan::compile_forward(spec_, plan, rank, "encode", 1));
  engine_ = std::make_unique<engine::Engine>(units, spec_, plan, comm, rank,
                                             engine::EngineOptions{.trainable = false, .cut_tokens = false});
  engine_->use(*program_);
}

void load_text(EncoderRun& run, const net::TextEncoder& encoder, const std::string& path) {
  const weights::NamedWeights weights = job::open_text_weights(encoder, path);
  engine::load_weights(run.store(), weights.set(), weights.names(), job::likely_text_cause);
}

}  // namespace tessera::prepare
