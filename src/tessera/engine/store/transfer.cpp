#include "tessera/engine/store/transfer.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/net/adapters.h"
#include "tessera/ops/bf16.h"
#include "tessera/ops/ranges.h"

namespace tessera::engine {

namespace {
constexpr int64_t kChunk = 1 << 16;  ///< elements converted at once
}

namespace {

/// Calls `each(first, at, count)`: elements [at, at + count) of the part are [first, first + count) of the whole
/// parameter. A row-parallel weight, which is sharded by columns, has a range for each row.
template <typename Each>
void each_run(const Store& store, const Store::Part& part, const Each& each) {
  const plan::ParamSpec& param = store.spec(part.unit).params[part.param];
  const auto box = store.box(part);
  if (box.empty() || param.split == plan::Split::none) return each(part.begin, int64_t{0}, part.end - part.begin);
  int64_t inner = 1;  // elements of a step of the first dimension, in the whole and in the box
  for (size_t d = 1; d < box.size(); ++d) inner *= param.shape[d];
  if (param.split == plan::Split::column_parallel)
    return each(box[0].first * inner + part.begin, int64_t{0}, part.end - part.begin);
  const int64_t rest = inner / param.shape[1];  // elements of a step of the second dimension
  const int64_t width = (box[1].second - box[1].first) * rest;
  for (int64_t at = part.begin; at < part.end;) {
    const int64_t row = at / width, column = at % width, count = std::min(width - column, part.end - at);
    each(row * inner + box[1].first * rest + column, at - part.begin, count);
    at += count;
  }
}

/// Adds the quantisation error of a stored part: its difference to the values it was given.
void compare_stored(Store& store, const Store::Part& part, const std::vector<float>& given, Rounding& rounding) {
  static_assert(kChunk % plan::kFlatAlign == 0, "pieces begin with a block");
  std::vector<float> stored(kChunk);
  const auto count = static_cast<int64_t>(given.size());
  for (int64_t first = 0; first < count; first += kChunk) {
    const int64_t now = std::min(kChunk, count - first);
    store.read_masters(part, first, now, stored.data());
    for (int64_t i = 0; i < now; ++i) {
      const double value = given[static_cast<size_t>(first + i)], off = value - stored[static_cast<size_t>(i)];
      rounding.squares += value * value, rounding.difference += off * off;
    }
  }
}

}  // namespace

void fill_shards(Store& store, const Fill& fill, Roundings* rounded, bool trained_alone) {
  std::vector<float> values(kChunk);
  store.begin_fill();
  for (const auto& part : store.parts()) {
    if (!store.fills(part) || (trained_alone && !store.spec(part.unit).params[part.param].trainable)) continue;
    const plan::ParamSpec& param = store.spec(part.unit).params[part.param];
    const DType stored = store.stored(part);
    // in blocks, and a sharded range may begin inside a block; or compared as a whole
    if (stored != DType::f32 && (stored != DType::bf16 || rounded)) {
      std::vector<float> whole(static_cast<size_t>(part.end - part.begin));
      each_run(store, part,
               [&](int64_t first, int64_t at, int64_t count) { fill(param, first, count, whole.data() + at); });
      store.set_masters(part, 0, part.end - part.begin, whole.data());
      if (rounded && store.counts_filled(part)) compare_stored(store, part, whole, (*rounded)[param.name]);
      continue;
    }
    each_run(store, part, [&](int64_t first, int64_t at, int64_t count) {
      if (const Store::Range held = store.data(part);
          stored == DType::f32 && store.master_form(part) == plan::Masters::fp32 && !held.on_device)
        return fill(param, first, count, static_cast<float*>(held.data) + at);
      for (int64_t done = 0; done < count; done += kChunk) {
        const int64_t now = std::min(kChunk, count - done);
        fill(param, first + done, now, values.data());
        store.set_masters(part, at + done, now, values.data());
      }
    });
  }
}

void load_weights(Store& store, const checkpoint::WeightSet& weights,
                  const std::function<std::string(const std::string&)>& name_in_file,
                  const std::function<std::string(const std::string&, const std::vector<int64_t>&)>& hint,
                  const Fill& absent, Roundings* rounded, bool trained_alone) {
  // Every shape is compared first, on every rank, so that all ranks refuse alike before a byte is read.
  for (int u = 0; u < store.units(); ++u) {
    for (const auto& param : store.spec(u).params) {
      if (name_in_file(param.name).empty()) continue;
      const auto& found = weights.at(name_in_file(param.name));
      if (found.shape == param.shape) continue;
      throw UserError(Exit::input, "weights.load",
                      weights.path().string() + ": " + param.name + ": expected " +
                          checkpoint::shape_text(param.shape) + ", file has " + checkpoint::shape_text(found.shape),
                      hint(param.name, found.shape));
    }
  }
  const Fill fill = [&](const plan::ParamSpec& param, int64_t first, int64_t count, float* out) {
    const std::string name = name_in_file(param.name);
    if (name.empty()) return absent(param, first, count, out);
    weights.read_f32(name, first, count, out);
    check_input(std::all_of(out, out + count, [](float value) { return std::isfinite(value); }), "weights.load",
                weights.path().string() + ": " + name + " has values that are no numbers (NaN or infinite)",
                "the file is damaged, or was saved by a run that diverged: download or export it again");
  };
  fill_shards(store, fill, rounded, trained_alone);
}

namespace {

checkpoint::TensorRange param_range(const Store& store, const Store::Part& part, const std::string& prefix) {
  const plan::ParamSpec& param = store.spec(part.unit).params[part.param];
  const bool whole = store.master_form(part) == plan::Masters::fp32;
  return {prefix + param.name, "param", whole ? DType::f32 : DType::bf16, param.shape, store.box(part),
          part.begin,          part.end};
}

/// What is of the tensor as a whole is a list. A state with a value for each element has the parameter's shape; a state with a value for each block is a list, with
/// the blocks of each rank of tp one after the other if tp shards the parameter.
checkpoint::TensorRange state_range(const Store& store, const Store::Part& part, const plan::StateSpec& state,
                                    const std::string& prefix) {
  const std::string name = prefix + store.spec(part.unit).params[part.param].name;
  const plan::ParamSpec& param = store.spec(part.unit).params[part.param];
  const auto box = store.box(part);
  const int64_t begin = part.begin / state.per, end = begin + state.values(part.begin, part.end);
  if (state.whole > 0) return {name, state.kind, state.type, {state.whole}, {}, 0, state.whole};
  if (state.per == 1) return {name, state.kind, state.type, param.shape, box, begin, end};
  if (box.empty() || param.split == plan::Split::none)
    return {name, state.kind, state.type, {state.values(0, param.numel())}, {}, begin, end};
  const int64_t blocks = state.values(0, store.layout(part.unit).params[part.param].numel);
  const int64_t rank = box[param.split == plan::Split::column_parallel ? 0 : 1].first * store.tp() /
                       param.shape[param.split == plan::Split::column_parallel ? 0 : 1];
  return {name, state.kind, state.type, {store.tp(), blocks}, {{rank, rank + 1}, {0, blocks}}, begin, end};
}

/// Whether the checkpoint has masters of the store's form; others are converted.
bool has_same_masters(const Store& store, const Store::Part& part, const checkpoint::TensorRange& param,
                      const checkpoint::TrainingCheckpoint& from) {
  const auto* saved = from.find(param.name, param.kind);
  const bool split = from.contains(param.name, std::string(plan::kMasterLow));
  return saved && saved->dtype == param.dtype && split == (store.master_form(part) == plan::Masters::split);
}

/// Reads masters of another form as fp32 values: exact, unless the store's masters are bf16.
void convert_masters(Store& store, const Store::Part& part, checkpoint::TensorRange range,
                     checkpoint::TrainingCheckpoint& from) {
  checkpoint::TensorRange remainder = range;
  remainder.kind = plan::kMasterLow, remainder.dtype = DType::i16;
  const bool split = from.contains(range.name, remainder.kind);
  std::vector<float> values(kChunk);
  std::vector<uint16_t> high(split ? kChunk : 0), low(high.size());
  for (int64_t first = 0; first < part.end - part.begin; first += kChunk) {
    const int64_t count = std::min(kChunk, part.end - part.begin - first);
    range.begin = remainder.begin = part.begin + first;
    range.end = remainder.end = range.begin + count;
    if (split) {
      range.dtype = DType::bf16;
      from.read(range, high.data());
      from.read(remainder, low.data());
      ops::join_fp32(values.data(), high.data(), low.data(), count);
    } else {
      from.read_f32(range, values.data());
    }
    store.set_masters(part, first, count, values.data());
  }
}

/// Moments must have the saved form: a conversion would change the run.
void check_moments(const Store::Part& part, const checkpoint::TensorRange& range,
                   const checkpoint::TrainingCheckpoint& from) {
  const auto* saved = from.find(range.name, range.kind);
  if (!saved || saved->dtype == range.dtype) return;
  const std::map<DType, std::string> moments = {{DType::f32, "fp32"}, {DType::bf16, "bf16"}, {DType::u8, "int8"}};
  const auto known = moments.find(saved->dtype);
  throw UserError(Exit::input, "checkpoint.load",
                  from.path().string() + ": " + range.kind + " of " + range.name + ": expected " +
                      std::string(checkpoint::dtype_name(range.dtype)) + ", file has " +
                      std::string(checkpoint::dtype_name(saved->dtype)),
                  known == moments.end() ? "resume with the moments it was saved with"
                                         : "resume with plan.moments = \"" + known->second + "\"");
}

bool frozen(const Store& store, const Store::Part& part) { return !store.spec(part.unit).params[part.param].trainable; }

/// Whether frozen parameters are saved too: not where adapters are trained, whose base is loaded from its weight file.
bool saves_frozen(const Store& store) {
  for (int u = 0; u < store.units(); ++u)
    for (const plan::ParamSpec& param : store.spec(u).params)
      if (net::is_adapter_parameter(param.name)) return false;
  return true;
}

int64_t bytes_of(const checkpoint::TensorRange& range) { return (range.end - range.begin) * size_of(range.dtype); }

/// What lies on a device is copied to `shown` when it is written.
checkpoint::Piece piece(checkpoint::TensorRange range, Store::Range held,
                        const std::shared_ptr<std::vector<std::byte>>& shown) {
  if (!held.on_device) return {std::move(range), held.data};
  return {range, nullptr, [range, held, shown] {
            shown->resize(static_cast<size_t>(bytes_of(range)));
            ops::copy_bytes(shown->data(), held.data, bytes_of(range), true);
            return static_cast<const void*>(shown->data());
          }};
}

void read_into(checkpoint::TrainingCheckpoint& from, const checkpoint::TensorRange& range, Store::Range to) {
  const ops::HostBytes bytes(to.data, bytes_of(range), to.on_device, ops::HostBytes::Contents::unread);
  from.read(range, bytes.data());
  bytes.keep();
}

/// A frozen parameter as it was saved; it stays as it is where it was not.
void restore_frozen(Store& store, const Store::Part& part, checkpoint::TrainingCheckpoint& from,
                    const std::string& prefix) {
  const checkpoint::TensorRange range = param_range(store, part, prefix);
  if (from.contains(range.name, range.kind) && store.fills(part)) convert_masters(store, part, range, from);
}

/// The average of a run that begins, or whose checkpoint has none, is a copy of the weights.
void begin_average(Store& store, const Store::Part& part, Store::Range to) {
  const int64_t count = part.end - part.begin;
  const ops::HostBytes bytes(to.data, count * 4, to.on_device, ops::HostBytes::Contents::unread);
  store.read_masters(part, 0, count, bytes.as<float>());
  bytes.keep();
}

/// Whether this part has the first element of the whole tensor: its rank writes what is of the tensor as a whole.
bool has_first(const Store& store, const Store::Part& part) {
  const auto box = store.box(part);
  return part.begin == 0 && std::ranges::all_of(box, [](const auto& range) { return range.first == 0; });
}

}  // namespace

std::vector<checkpoint::Piece> checkpoint_pieces(Store& store, const std::string& prefix, int next) {
  std::vector<checkpoint::Piece> pieces;
  const auto shown = std::make_shared<std::vector<std::byte>>();
  const bool all = saves_frozen(store);
  for (const auto& part : store.parts()) {
    if (!part.updated || !store.is_primary(part.unit, part.buffer) || (!all && frozen(store, part))) continue;
    const Store::Range held = store.data_behind(part, next < 0 ? store.expert() : next);
    pieces.push_back(piece(param_range(store, part, prefix), held, shown));
    const auto& states = store.states(part.unit).ranges[part.range].states;
    for (size_t s = 0; s < states.size(); ++s)
      if (states[s].whole == 0 || has_first(store, part))
        pieces.push_back(piece(state_range(store, part, states[s], prefix), store.state(part, s), shown));
  }
  return pieces;
}

void restore(Store& store, checkpoint::TrainingCheckpoint& from, const std::string& prefix) {
  store.begin_fill();
  for (const auto& part : store.parts()) {
    if (frozen(store, part)) {
      restore_frozen(store, part, from, prefix);
      continue;
    }
    const checkpoint::TensorRange param = param_range(store, part, prefix);
    const bool same = has_same_masters(store, part, param, from);
    if (same)
      read_into(from, param, store.data(part));
    else
      convert_masters(store, part, param, from);
    const auto& states = store.states(part.unit).ranges[part.range].states;
    for (size_t s = 0; s < states.size(); ++s) {
      if (states[s].kind == plan::kMasterLow && !same) continue;
      if (states[s].kind == plan::kAverage && !from.contains(param.name, states[s].kind)) {
        begin_average(store, part, store.state(part, s));
        continue;
      }
      const checkpoint::TensorRange range = state_range(store, part, states[s], prefix);
      check_moments(part, range, from);
      read_into(from, range, store.state(part, s));
    }
  }
}

void begin_averages(Store& store) {
  for (const auto& part : store.parts()) {
    if (frozen(store, part)) continue;
    const auto& states = store.states(part.unit).ranges[part.range].states;
    for (size_t s = 0; s < states.size(); ++s)
      if (states[s].kind == plan::kAverage) begin_average(store, part, store.state(part, s));
  }
}

void restore_average(Store& store, checkpoint::TrainingCheckpoint& from, const std::string& prefix) {
  std::vector<float> values(kChunk);
  store.begin_fill();
  for (const auto& part : store.parts()) {
    if (frozen(store, part)) {
      restore_frozen(store, part, from, prefix);
      continue;
    }
    checkpoint::TensorRange range = param_range(store, part, prefix);
    range.kind = plan::kAverage, range.dtype = DType::f32;
    for (int64_t first = 0; first < part.end - part.begin; first += kChunk) {
      const int64_t count = std::min(kChunk, part.end - part.begin - first);
      range.begin = part.begin + first, range.end = range.begin + count;
      from.read(range, values.data());
      store.set_masters(part, first, count, values.data());
    }
  }
}

void whole_unit(Store& store, comm::Comm& comm, int unit, bool gradients,
                const std::function<void(const plan::ParamSpec&, const Tensor&)>& each,
                const std::function<void()>& done) {
  store.await_fill();
  const plan::UnitLayout& layout = store.layout(unit);
  std::vector<Tensor> flats;  // each buffer with this rank's tensor-parallel part of the parameters
  for (size_t b = 0; b < layout.buffers.size(); ++b) {
    const plan::Buffer& buffer = layout.buffers[b];
    if (gradients && !buffer.trainable) {
      flats.emplace_back();
      continue;
    }
    const bool owned = store.owns(unit);
    Tensor& flat = flats.emplace_back();
    if (!owned || buffer.shards > 1) flat = at::empty({buffer.total}, at::kFloat);
    if (owned) {
      const Tensor shard = gradients ? store.grad(unit).narrow(0, buffer.held, buffer.shard).cpu().to(at::kFloat)
                                     : store.masters(unit, static_cast<int>(b));
      const bool exact = !gradients && store.master_form() != plan::Masters::split;
      if (buffer.partitions > 1 && !exact)  // two_level: each replica has its own partition
        comm.group("gather_outer", store.outer_axes(unit, static_cast<int>(b)))
            .all_gather(shard, store.partition(unit, static_cast<int>(b), shard));
      if (buffer.shards == 1)
        flat = shard;
      else
        comm.group("gather", store.axes(unit, static_cast<int>(b))).all_gather(flat, shard);
    }
    comm.group("whole_unit", {Axis::pp}).broadcast(flat, store.owner(unit));
  }
  const auto& params = store.spec(unit).params;
  std::vector<Tensor> joined;  // keeps the tensors that `each` got alive for `done`
  for (size_t p = 0; p < params.size(); ++p) {
    const plan::UnitLayout::Place& place = layout.params[p];
    if (!flats[place.buffer].defined()) continue;
    Tensor value = flats[place.buffer].narrow(0, place.start, place.numel).view(place.shape);
    if (place.shape != params[p].shape) {
      comm::Group& group = comm.group("gather_tp", {Axis::tp});
      const Tensor parts = at::empty({group.size() * place.numel}, at::kFloat);
      group.all_gather(parts, value.reshape({-1}));
      std::vector<Tensor> by_rank;
      for (int r = 0; r < group.size(); ++r)
        by_rank.push_back(parts.narrow(0, r * place.numel, place.numel).view(place.shape));
      value = at::cat(by_rank, params[p].split == plan::Split::column_parallel ? 0 : 1);
      joined.push_back(value);
    }
    each(params[p], value);
  }
  if (done) done();
}

}  // namespace tessera::engine
