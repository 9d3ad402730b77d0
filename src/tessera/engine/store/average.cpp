#include "tessera/engine/store/average.h"

#include <exception>

#include "tessera/base/check.h"
#include "tessera/ops/ranges.h"

namespace tessera::engine {

namespace {

constexpr int64_t kPiece = 1 << 16;

size_t average_of(const Store& store, const Store::Part& part) {
  const auto& states = store.states(part.unit).ranges[part.range].states;
  for (size_t s = 0; s < states.size(); ++s)
    if (states[s].kind == plan::kAverage) return s;
  throw InternalError("engine.store", store.spec(part.unit).params[part.param].name + " has no average");
}

/// Exchanges the masters of a part with their average.
void swap_part(Store& store, const Store::Part& part) {
  const Store::Range held = store.state(part, average_of(store, part));
  std::vector<float> trained(kPiece);
  for (int64_t first = 0; first < part.end - part.begin; first += kPiece) {
    const int64_t count = std::min(kPiece, part.end - part.begin - first);
    const ops::HostBytes average(static_cast<float*>(held.data) + first, count * 4, held.on_device);
    store.read_masters(part, first, count, trained.data());
    store.set_masters(part, first, count, average.as<float>());
    std::copy_n(trained.data(), count, average.as<float>());
    average.keep();
  }
}

}  // namespace

AveragedWeights::AveragedWeights(Store& store, comm::Comm& comm, bool used) : store_(store), comm_(comm), used_(used) {
  if (used_) swap();
}

AveragedWeights::~AveragedWeights() noexcept(false) {
  if (used_ && std::uncaught_exceptions() == 0) swap();
}

void AveragedWeights::swap() {
  for (int e = 0; e < store_.trained_experts(); ++e) {
    const Store::ExpertScope active(store_, e);
    swap_active();
  }
  store_.flush_disk();
}

void AveragedWeights::swap_active() {
  for (const Store::Part& part : store_.parts())
    if (part.updated && store_.spec(part.unit).params[part.param].trainable) swap_part(store_, part);
  for (int u = 0; u < store_.units(); ++u)  // two_level: each replica had its own partition
    for (size_t b = 0; store_.owns(u) && b < store_.layout(u).buffers.size(); ++b) {
      if (store_.layout(u).buffers[b].partitions == 1) continue;
      const Tensor shard = store_.shard(u, static_cast<int>(b));
      comm_.group("gather_outer", store_.outer_axes(u, static_cast<int>(b)))
          .all_gather(shard, store_.partition(u, static_cast<int>(b), shard));
    }
}

}  // namespace tessera::engine
