// Masters in their several forms, and the optimiser's states.
#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/engine/store/store.h"
#include "tessera/ops/bf16.h"
#include "tessera/ops/frozen.h"
#include "tessera/ops/ranges.h"
#include "tessera/ops/tensor.h"

namespace tessera::engine {

void Store::make_states(const net::UnitUpdate& update) {
  for (int u = 0; u < units(); ++u) {
    Unit& unit = units_[u];
    if (!unit.owned) continue;
    unit.states = plan::state_layout(unit.spec, unit.layout, unit.held,
                                     [&](const plan::ParamSpec& param) { return update.states(param); });
    unit.buffer = make_buffer(unit.states.bytes, at::kByte, unit.plan.states, engine::Part::states, unit.states_extent);
    for (Unit::Inactive& inactive : unit.inactive)
      inactive.buffer =
          make_buffer(unit.states.bytes, at::kByte, unit.plan.states == plan::Tier::device ? idle_ : unit.plan.states,
                      engine::Part::states, inactive.states_extent);
  }
}

Store::Range Store::state(const Part& part, size_t state) {
  Unit& unit = units_[part.unit];
  await_states(part.unit), settle(unit.buffer);
  return {static_cast<uint8_t*>(ops::address(unit.buffer)) + unit.states.ranges[part.range].at[state],
          ops::on_device(unit.buffer)};
}

net::Slice Store::slice(int u, const plan::StateLayout::Range& range, Staged staged) {
  Unit& unit = units_[u];
  if (staged.states < 0) await_states(u), settle(unit.buffer);
  const Tensor shard = this->shard(u, range.buffer, staged.param);
  const plan::Buffer& buffer = unit.layout.buffers[range.buffer];
  const bool whole = grad_type_ == at::kFloat || !staged.as_stored;  // update() has the 16-bit gradients
  const bool trained = (unit.grad.defined() || staged.grad >= 0) && buffer.trainable && whole;
  const auto* grad =
      trained ? static_cast<const float*>(ops::read_address(grad_at(u, staged.grad))) + buffer.held : nullptr;
  const Tensor buffer_of_states = staged.states < 0 ? unit.buffer : arena(staged.states, 1);
  auto* states =  // null: nothing is trained
      buffer_of_states.defined() ? static_cast<uint8_t*>(ops::address(buffer_of_states)) : nullptr;
  const plan::ParamSpec& param = unit.spec.params[range.param];
  net::Slice slice;
  slice.spec = &param;
  slice.tensor = hash_text(param.name);
  slice.numel = param.numel();
  slice.begin = range.begin, slice.end = range.end;
  if (tp_ > 1 && param.split == plan::Split::column_parallel) {  // this rank's rows are consecutive in the whole tensor
    const int64_t first = unit.layout.params[range.param].numel * tp_rank_;
    slice.begin += first, slice.end += first;
  }
  if (tp_ > 1 && param.split == plan::Split::row_parallel) {  // its columns are not
    slice.cut.inner = param.numel() / param.shape[0], slice.cut.width = slice.cut.inner / tp_;
    slice.cut.first = slice.cut.width * tp_rank_;
  }
  slice.param = static_cast<uint8_t*>(ops::address(shard)) + range.offset * shard.element_size();
  if (grad) slice.grad = grad + range.offset;
  slice.on_device = ops::on_device(shard);
  slice.specs = &range.states;
  for (const int64_t at : range.at) slice.states.push_back(states + at);
  return slice;
}

namespace {

/// The two halves of split masters, as the host sees them. `low` is null for bf16 masters and for masters that another
/// replica updates.
struct Halves {
  ops::HostBytes high, low;

  Halves(const net::Slice& slice, plan::Masters form, const Store::Part& part, int64_t first, int64_t count,
         ops::HostBytes::Contents contents)
      : high(static_cast<uint16_t*>(slice.param) + first, 2 * count, slice.on_device, contents),
        low(low_of(slice, form, part, first), low_of(slice, form, part, first) ? 2 * count : 0, slice.on_device,
            contents) {}

 private:
  static uint16_t* low_of(const net::Slice& slice, plan::Masters form, const Store::Part& part, int64_t first) {
    auto* low = slice.state<uint16_t>(plan::kMasterLow);
    check_internal(low || form != plan::Masters::split || !part.updated, "engine.store",
                   "split masters are set before the optimiser's states are made");
    return low ? low + first : nullptr;
  }
};

}  // namespace

namespace {

/// Elements that are not stored as fp32; in 8-bit forms the first must be that of a block.
ops::HostBytes stored_at(const Tensor& shard, DType stored, int64_t element, int64_t count,
                         ops::HostBytes::Contents contents) {
  check_internal(stored == DType::bf16 || element % plan::kFlatAlign == 0, "engine.store",
                 "parameters stored in blocks are set and read from the start of a block");
  return {static_cast<uint8_t*>(ops::address(shard)) + plan::stored_bytes(stored, element),
          plan::stored_bytes(stored, count), ops::on_device(shard), contents};
}

}  // namespace

void Store::set_masters(const Part& part, int64_t first, int64_t count, const float* values) {
  constexpr auto kUnread = ops::HostBytes::Contents::unread;
  if (!fills(part)) return;
  check_internal(!shares(part) || shared_->filling(), "engine.store",
                 "weights that ranks share are set between begin_fill() and await_fill()");
  if (const DType form = stored(part); form != DType::f32) {
    const auto to = stored_at(shard(part.unit, part.buffer), form, part.offset + first, count, kUnread);
    ops::write_stored(to.data(), values, count, scalar_type(form));
    return to.keep();
  }
  const net::Slice slice = this->slice(part.unit, units_[part.unit].states.ranges[part.range]);
  if (master_form(part) == plan::Masters::fp32)
    return ops::copy_bytes(static_cast<float*>(slice.param) + first, values,
                           count * static_cast<int64_t>(sizeof(float)), slice.on_device);
  const Halves to(slice, masters_, part, first, count, kUnread);
  auto *high = to.high.as<uint16_t>(), *low = to.low.as<uint16_t>();
  if (low)
    ops::split_fp32(high, low, values, count);
  else if (masters_ == plan::Masters::split)
    ops::high_half(high, values, count);
  else
    ops::to_bf16(high, values, count);
  to.high.keep(), to.low.keep();
}

void Store::read_masters(const Part& part, int64_t first, int64_t count, float* values) {
  constexpr auto kRead = ops::HostBytes::Contents::read;
  if (const DType form = stored(part); form != DType::f32) {
    const auto from = stored_at(shard(part.unit, part.buffer), form, part.offset + first, count, kRead);
    return ops::read_stored(values, from.data(), count, scalar_type(form));
  }
  const net::Slice slice = this->slice(part.unit, units_[part.unit].states.ranges[part.range]);
  if (master_form(part) == plan::Masters::fp32)
    return ops::copy_bytes(values, static_cast<float*>(slice.param) + first,
                           count * static_cast<int64_t>(sizeof(float)), slice.on_device);
  const Halves from(slice, masters_, part, first, count, kRead);
  const auto *high = from.high.as<uint16_t>(), *low = from.low.as<uint16_t>();
  if (low)
    ops::join_fp32(values, high, low, count);
  else
    ops::from_bf16(values, high, count);
}

Tensor Store::masters(int u, int b) {
  const Tensor held = shard(u, b);
  if (held.scalar_type() == at::kFloat) return held.cpu();
  Tensor values = at::zeros({layout(u).buffers[b].shard}, at::TensorOptions(at::kFloat));
  for (const Part& part : parts())
    if (part.unit == u && part.buffer == b)
      read_masters(part, 0, part.end - part.begin, ops::host_pointer<float>(values) + part.offset);
  return values;
}

}  // namespace tessera::engine
