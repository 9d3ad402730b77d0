#include "tessera/engine/transfer.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/ops/bf16.h"

namespace tessera::engine {

namespace {
constexpr int64_t kChunk = 1 << 16;  ///< elements converted at once
}

void fill_shards(Store& store, const Fill& fill) {
  std::vector<float> values(store.master_form() == plan::Masters::fp32 ? 0 : kChunk);
  for (const auto& part : store.parts()) {
    const plan::ParamSpec& param = store.spec(part.unit).params[part.param];
    const int64_t count = part.end - part.begin;
    if (values.empty()) {
      fill(param, part.begin, count, store.param(part.unit).mutable_data_ptr<float>() + part.offset);
      continue;
    }
    for (int64_t first = 0; first < count; first += kChunk) {
      const int64_t now = std::min(kChunk, count - first);
      fill(param, part.begin + first, now, values.data());
      store.set_masters(part, first, now, values.data());
    }
  }
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

checkpoint::DType dtype_of(plan::ValueType type) {
  switch (type) {
    case plan::ValueType::f32:
      return checkpoint::DType::f32;
    case plan::ValueType::bf16:
      return checkpoint::DType::bf16;
    case plan::ValueType::i16:
      return checkpoint::DType::i16;
    case plan::ValueType::u8:
      return checkpoint::DType::u8;
  }
  throw InternalError("engine.transfer", "unknown value type");
}

checkpoint::TensorRange param_range(const Store& store, const Store::Part& part) {
  const plan::ParamSpec& param = store.spec(part.unit).params[part.param];
  const bool whole = store.master_form() == plan::Masters::fp32;
  return {param.name, "param", whole ? checkpoint::DType::f32 : checkpoint::DType::bf16, param.shape, {},
          part.begin, part.end};
}

/// A state with a value for each element has the parameter's shape, one with a value a block is a list of them.
checkpoint::TensorRange state_range(const Store& store, const Store::Part& part, const plan::StateSpec& state) {
  const plan::ParamSpec& param = store.spec(part.unit).params[part.param];
  const auto shape = state.per == 1 ? param.shape : std::vector<int64_t>{state.values(0, param.numel())};
  const int64_t begin = part.begin / state.per;
  return {param.name, state.kind, dtype_of(state.type), shape, {}, begin, begin + state.values(part.begin, part.end)};
}

/// What a checkpoint holds of a parameter decides how its masters are read.
bool has_same_masters(const Store& store, const Store::Part& part, const checkpoint::TrainingCheckpoint& from) {
  const checkpoint::TensorRange param = param_range(store, part);
  const auto* saved = from.find(param.name, param.kind);
  const bool split = from.contains(param.name, std::string(plan::kMasterLow));
  return saved && saved->dtype == param.dtype && split == (store.master_form() == plan::Masters::split);
}

/// Reads masters of another form as fp32 values: exact, but for what bf16 masters cannot hold.
void convert_masters(Store& store, const Store::Part& part, checkpoint::TrainingCheckpoint& from) {
  checkpoint::TensorRange range = param_range(store, part), rest = range;
  rest.kind = plan::kMasterLow, rest.dtype = checkpoint::DType::i16;
  const bool split = from.contains(range.name, rest.kind);
  std::vector<float> values(kChunk);
  std::vector<uint16_t> high(split ? kChunk : 0), low(high.size());
  for (int64_t first = 0; first < part.end - part.begin; first += kChunk) {
    const int64_t count = std::min(kChunk, part.end - part.begin - first);
    range.begin = rest.begin = part.begin + first;
    range.end = rest.end = range.begin + count;
    if (split) {
      range.dtype = checkpoint::DType::bf16;
      from.read(range, high.data());
      from.read(rest, low.data());
      ops::join_fp32(values.data(), high.data(), low.data(), count);
    } else {
      from.read_f32(range, values.data());
    }
    store.set_masters(part, first, count, values.data());
  }
}

/// Moments are read as they were saved: a conversion would lose what the run went on with.
void check_moments(const Store::Part& part, const checkpoint::TensorRange& range,
                   const checkpoint::TrainingCheckpoint& from) {
  const auto* saved = from.find(range.name, range.kind);
  if (!saved || saved->dtype == range.dtype) return;
  const std::map<checkpoint::DType, std::string> moments = {
      {checkpoint::DType::f32, "fp32"}, {checkpoint::DType::bf16, "bf16"}, {checkpoint::DType::u8, "int8"}};
  const auto known = moments.find(saved->dtype);
  throw UserError(Exit::input, "checkpoint.load",
                  from.path().string() + ": " + range.kind + " of " + range.name + ": expected " +
                      std::string(checkpoint::dtype_name(range.dtype)) + ", file has " +
                      std::string(checkpoint::dtype_name(saved->dtype)),
                  known == moments.end() ? "resume with the moments it was saved with"
                                         : "resume with plan.moments = \"" + known->second + "\"");
}

}  // namespace

std::vector<checkpoint::Piece> checkpoint_pieces(Store& store) {
  std::vector<checkpoint::Piece> pieces;
  for (const auto& part : store.parts()) {
    if (!store.speaks_for(part.unit)) continue;
    const Tensor& param = store.param(part.unit);
    pieces.push_back({param_range(store, part),
                      static_cast<const uint8_t*>(param.const_data_ptr()) + part.offset * param.element_size()});
    const auto& states = store.states(part.unit).ranges[part.range].states;
    for (size_t s = 0; s < states.size(); ++s)
      pieces.push_back({state_range(store, part, states[s]), store.state(part, s)});
  }
  return pieces;
}

void restore(Store& store, checkpoint::TrainingCheckpoint& from) {
  for (const auto& part : store.parts()) {
    Tensor& param = store.param(part.unit);
    const bool same = has_same_masters(store, part, from);
    if (same)
      from.read(param_range(store, part),
                static_cast<uint8_t*>(param.mutable_data_ptr()) + part.offset * param.element_size());
    else
      convert_masters(store, part, from);
    const auto& states = store.states(part.unit).ranges[part.range].states;
    for (size_t s = 0; s < states.size(); ++s) {
      if (states[s].kind == plan::kMasterLow && !same) continue;
      const checkpoint::TensorRange range = state_range(store, part, states[s]);
      check_moments(part, range, from);
      from.read(range, store.state(part, s));
    }
  }
}

void whole_unit(Store& store, comm::Comm& comm, int unit, bool gradients,
                const std::function<void(const plan::ParamSpec&, const Tensor&)>& each,
                const std::function<void()>& done) {
  const auto& layout = store.layout(unit);
  const Tensor shard = gradients ? store.grad(unit) : store.masters(unit);
  Tensor flat = shard;
  if (layout.shards > 1) {
    flat = at::empty({layout.total}, at::kFloat);
    comm.group("gather", kShardAxes).all_gather(flat, shard);
  }
  for (size_t p = 0; p < store.spec(unit).params.size(); ++p) {
    const auto& param = store.spec(unit).params[p];
    each(param, flat.narrow(0, layout.start[p], param.numel()).view(param.shape));
  }
  if (done) done();
}

}  // namespace tessera::engine
