#include "tessera/engine/transfer.h"

#include "tessera/base/check.h"

namespace tessera::engine {

void fill_shards(Store& store, const Fill& fill) {
  for (const auto& part : store.parts())
    fill(store.spec(part.unit).params[part.param], part.begin, part.end - part.begin,
         store.param(part.unit).mutable_data_ptr<float>() + part.offset);
}

void load_weights(Store& store, const checkpoint::WeightSet& weights,
                  const std::function<std::string(const std::string&)>& name_in_file,
                  const std::function<std::string(const std::string&, const std::vector<int64_t>&)>& hint) {
  // Every shape is compared first, on every rank, so that all ranks refuse alike before a byte is read.
  for (int u = 0; u < store.units(); ++u) {
    for (const auto& param : store.spec(u).params) {
      const auto& found = weights.at(name_in_file(param.name));
      if (found.shape == param.shape) continue;
      throw UserError(Exit::input, "weights.load",
                      weights.path().string() + ": " + param.name + ": expected " +
                          checkpoint::shape_text(param.shape) + ", file has " + checkpoint::shape_text(found.shape),
                      hint(param.name, found.shape));
    }
  }
  fill_shards(store, [&](const plan::ParamSpec& param, int64_t first, int64_t count, float* out) {
    weights.read_f32(name_in_file(param.name), first, count, out);
  });
}

namespace {

/// Calls `each(kind, shard)` for the parameter shard and the optimiser states of a unit.
template <typename Each>
void each_kind(Store& store, net::UnitUpdate* update, int unit, const Each& each) {
  each("param", store.param(unit));
  if (!update) return;
  for (auto& [kind, tensor] : update->states(unit)) each(kind, tensor);
}

checkpoint::TensorRange range_of(const plan::ParamSpec& param, const std::string& kind, const Store::Part& part) {
  return {param.name, kind, checkpoint::DType::f32, param.shape, {}, part.begin, part.end};
}

}  // namespace

std::vector<checkpoint::Piece> checkpoint_pieces(Store& store, net::UnitUpdate* update) {
  std::vector<checkpoint::Piece> pieces;
  for (const auto& part : store.parts()) {
    const auto& param = store.spec(part.unit).params[part.param];
    each_kind(store, update, part.unit, [&](const std::string& kind, const Tensor& shard) {
      const float* data = shard.const_data_ptr<float>() + part.offset;
      pieces.push_back({range_of(param, kind, part), data});
    });
  }
  return pieces;
}

void restore(Store& store, net::UnitUpdate* update, checkpoint::TrainingCheckpoint& from) {
  for (const auto& part : store.parts()) {
    const auto& param = store.spec(part.unit).params[part.param];
    each_kind(store, update, part.unit, [&](const std::string& kind, const Tensor& shard) {
      from.read_f32(range_of(param, kind, part), shard.mutable_data_ptr<float>() + part.offset);
    });
  }
}

void whole_unit(Store& store, comm::Comm& comm, int unit, bool gradients,
                const std::function<void(const plan::ParamSpec&, const Tensor&)>& each,
                const std::function<void()>& done) {
  const auto& layout = store.layout(unit);
  Tensor flat = at::empty({layout.total}, at::kFloat);
  comm.group("gather", kShardAxes).all_gather(flat, gradients ? store.grad(unit) : store.param(unit));
  for (size_t p = 0; p < store.spec(unit).params.size(); ++p) {
    const auto& param = store.spec(unit).params[p];
    each(param, flat.narrow(0, layout.start[p], param.numel()).view(param.shape));
  }
  if (done) done();
}

}  // namespace tessera::engine
