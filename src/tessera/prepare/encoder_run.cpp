#include "tessera/prepare/encoder_run.h"

#include "tessera/job/encoder_plan.h"
#include "tessera/job/text_weights.h"

namespace tessera::prepare {

EncoderRun::EncoderRun(const std::vector<std::unique_ptr<net::Unit>>& units, const std::string& name, const Mesh& mesh,
                       comm::Comm& comm, int rank, DType held) {
  // The schedule needs the units' parameters only: what a prompt's or a picture's tokens take is small beside them.
  spec_.name = name;
  for (const auto& unit : units) spec_.units.push_back(unit->spec());
  job::hold_as(spec_, held);
  const plan::Plan plan = job::encoder_plan(spec_, mesh);
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
