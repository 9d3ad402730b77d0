#include "tessera/train/text_run.h"

#include "tessera/engine/transfer.h"
#include "tessera/models/names.h"

namespace tessera::train {

TextRun::TextRun(const net::TextEncoder& encoder, const Mesh& mesh, comm::Comm& comm, int rank) : encoder_(encoder) {
  // The schedule needs the units' parameters only: what a prompt's tokens take is small beside them.
  spec_.name = encoder.fingerprint();
  std::vector<std::string> prefixes;
  for (const auto& unit : encoder.units()) {
    spec_.units.push_back(unit->spec());
    prefixes.push_back(unit->prefix());
  }
  plan_.mesh = mesh;
  plan_.units.resize(spec_.units.size());
  schedule_ = plan::compile_forward(spec_, plan_, rank, "encode", 1);
  store_ = std::make_unique<engine::Store>(spec_, prefixes, plan_, rank, at::kCPU, /*trainable=*/false);
  store_->set_arena(schedule_.arena);
  executor_ =
      std::make_unique<engine::Executor>(encoder.units(), *store_, comm, plan_, rank, engine::ExecutorOptions{});
}

void TextRun::load(const checkpoint::WeightSet& weights) {
  std::vector<std::string> official;
  for (const auto& unit : spec_.units)
    for (const auto& param : unit.params) official.push_back(param.name);
  const auto foreign = [&](const std::string& name, const std::string& naming) {
    return encoder_.foreign_name(name, naming);
  };
  const models::Naming naming =
      models::detect_naming(official, foreign, models::kTextNamings, weights.names(), weights.path().string());
  engine::load_weights(
      *store_, weights, [&](const std::string& name) { return naming.prefix + foreign(name, naming.naming); },
      [](const std::string&, const std::vector<int64_t>&) {
        return std::string("does data.text_encoder name the encoder of these weights?");
      });
}

void TextRun::initialise(uint64_t seed) {
  engine::fill_shards(*store_, [&](const plan::ParamSpec& param, int64_t first, int64_t count, float* out) {
    encoder_.initialise(param, seed, first, count, out);
  });
}

at::Tensor TextRun::forward(const net::Batch& batch) { return executor_->forward(schedule_, 0, {batch})[0]; }

}  // namespace tessera::train
