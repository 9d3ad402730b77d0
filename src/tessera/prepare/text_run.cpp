#include "tessera/prepare/text_run.h"

#include <utility>

#include "tessera/engine/store/transfer.h"
#include "tessera/job/text_weights.h"
#include "tessera/plan/compile/compile.h"

namespace tessera::prepare {

TextRun::TextRun(const net::TextEncoder& encoder, const Mesh& mesh, comm::Comm& comm, int rank) : encoder_(encoder) {
  // The schedule needs the units' parameters only: what a prompt's tokens take is small beside them.
  spec_.name = encoder.fingerprint();
  std::vector<std::string> prefixes;
  for (const auto& unit : encoder.units()) {
    spec_.units.push_back(unit->spec());
    prefixes.push_back(unit->prefix());
  }
  // A prompt is too short for a pipeline: every stage's ranks run the whole encoder.
  plan_.mesh = mesh;
  plan_.mesh[Axis::dp_replicate] *= std::exchange(plan_.mesh[Axis::pp], 1);
  plan_.units.resize(spec_.units.size());
  schedule_ = plan::compile_forward(spec_, plan_, rank, "encode", 1);
  store_ = std::make_unique<engine::Store>(spec_, prefixes, plan_, rank, at::kCPU, /*trainable=*/false);
  store_->set_arena(schedule_.arena);
  executor_ = std::make_unique<engine::Executor>(encoder.units(), *store_, comm, plan_, rank,
                                                 engine::ExecutorOptions{.cut_tokens = false});
}

void TextRun::load(const std::string& path) {
  const weights::NamedWeights weights = job::open_text_weights(encoder_, path);
  engine::load_weights(*store_, weights.set(), weights.names(), job::likely_text_cause);
}

void TextRun::initialise(uint64_t seed) {
  engine::fill_shards(*store_, [&](const plan::ParamSpec& param, int64_t first, int64_t count, float* out) {
    encoder_.initialise(param, seed, first, count, out);
  });
}

at::Tensor TextRun::forward(const net::Batch& batch) { return executor_->forward(schedule_, 0, {batch})[0]; }

}  // namespace tessera::prepare
