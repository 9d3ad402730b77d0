#include "tessera/engine/store/store.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/base/units.h"
#include "tessera/device/staging.h"
#include "tessera/ops/bf16.h"
#include "tessera/ops/frozen.h"
#include "tessera/ops/fused.h"
#include "tessera/ops/ranges.h"
#include "tessera/plan/plan.h"

namespace tessera::engine {

Store::Store(const plan::ModelSpec& model, std::vector<std::string> prefixes, const plan::Plan& plan, int rank,
             at::Device device, bool trainable, plan::DiskPlace nvme, std::unique_ptr<SharedWeights> shared)
    : mesh_(plan.mesh),
      rank_(rank),
      tp_(plan.mesh[Axis::tp]),
      tp_rank_(plan.mesh.coordinate(rank, Axis::tp)),
      masters_(plan.states.masters),
      matrices_(plan.states.matrices),
      gathered_(plan.gathered()),
      slots_(plan.slots()),
      fp8_(plan.fp8),
      grad_type_(scalar_type(plan.grad)),
      device_(device),
      shared_(std::move(shared)) {
  for (int e = 1; e < plan.experts; ++e) inactive_.push_back(e);
  idle_ = plan.idle, teachers_ = plan.teachers, shared_base_ = plan.shared_base;
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  for (size_t u = 0; u < model.units.size(); ++u) {
    Unit unit;
    unit.spec = model.units[u];
    unit.layout = plan.layout(unit.spec, static_cast<int>(u));
    unit.held = plan.held(unit.layout, rank);
    int64_t at = 0;
    for (const plan::Buffer& buffer : unit.layout.buffers) {
      unit.param_at.push_back(at);
      unit.axes.push_back(plan.axes(buffer));
      unit.outer_axes.push_back(plan.outer_axes(buffer));
      at += plan::shard_bytes(buffer, masters_);
    }
    unit.owned = plan.owns(rank, static_cast<int>(u));
    unit.owner = plan.mesh[Axis::pp] > 1 ? plan.stage_of(static_cast<int>(u)) % plan.mesh[Axis::pp] : 0;
    if (u < plan.units.size()) unit.plan = plan.units[u];
    units_.push_back(std::move(unit));
  }
  open_disk(plan, nvme, trainable);
  for (size_t u = 0; u < units_.size(); ++u) {
    Unit& unit = units_[u];
    unit.anchor = at::zeros({1}, options).requires_grad_(trainable && unit.layout.grad_total > 0);
    if (!unit.owned) continue;
    unit.param = make_parameters(static_cast<int>(u), expert_, unit.plan.parameters, unit.param_extent);
    for (const int expert : inactive_) {
      Unit::Inactive& inactive = unit.inactive.emplace_back();
      const plan::Tier tier = plan.inactive_tier(unit.plan.parameters);
      inactive.param = shared_base_ ? make_buffer(plan.inactive_bytes(unit.layout), at::kByte, tier,
                                                  engine::Part::parameters, inactive.param_extent)
                                    : make_parameters(static_cast<int>(u), expert, tier, inactive.param_extent);
    }
    if (trainable && !plan.transient_gradient(unit.layout, static_cast<int>(u)))
      unit.grad = make_buffer(unit.layout.grad_shard, grad_type_, unit.plan.gradients, engine::Part::gradients,
                              unit.grad_extent);
    unit.states = plan::state_layout(unit.spec, unit.layout, unit.held, {});
    unit.sites.resize(unit.spec.params.size());
    for (size_t p = 0; p < unit.spec.params.size(); ++p) {
      const std::string& name = unit.spec.params[p].name;
      check_internal(name.starts_with(prefixes[u]), "engine.store", name + " does not start with " + prefixes[u]);
      unit.index.emplace(name.substr(prefixes[u].size()), static_cast<int>(p));
      const plan::ParamSpec& param = unit.spec.params[p];
      const plan::UnitLayout::Place& place = unit.layout.params[p];
      unit.sites[p].frozen = !param.trainable;
      if (param.stored == DType::i8 || param.stored == DType::f8_e4m3)
        unit.sites[p].blocks = {place.shape[0], place.numel / place.shape[0]};
    }
  }
  make_swap();
}

Store::Store(const Store& lender)
    : units_(lender.units_),
      mesh_(lender.mesh_),
      rank_(lender.rank_),
      tp_(lender.tp_),
      tp_rank_(lender.tp_rank_),
      masters_(lender.masters_),
      matrices_(lender.matrices_),
      gathered_(lender.gathered_),
      slots_(lender.slots_),
      fp8_(lender.fp8_),
      grad_type_(lender.grad_type_),
      device_(lender.device_) {
  for (Unit& unit : units_) {
    unit.inactive.clear(), unit.views.clear(), unit.grad_views.clear();
    unit.param = unit.buffer = Tensor();
    unit.anchor = at::zeros_like(unit.anchor).requires_grad_(unit.anchor.requires_grad());
    if (unit.grad.defined())
      unit.grad = make_buffer(unit.layout.grad_shard, grad_type_, plan::Tier::device, engine::Part::gradients,
                              unit.grad_extent);
    for (ops::WeightSite& site : unit.sites) site.value = site.grad = Tensor();
  }
}

void Store::give_back_arena() {
  for (Unit& unit : units_) unit.views.clear(), unit.grad_views.clear();
  arena_ = Tensor();
}

void Store::borrow_arena(const Store& lender, int64_t begin) {
  const int64_t elements = begin / static_cast<int64_t>(sizeof(float));
  arena_ = lender.arena_.narrow(0, elements, lender.arena_.numel() - elements);
}

void Store::borrow(const Store& lender, int expert) {
  const size_t index = lender.inactive_index(expert);
  for (size_t u = 0; u < units_.size(); ++u) {
    const Unit::Inactive& from = lender.units_[u].inactive[index];
    units_[u].param = from.param, units_[u].buffer = from.buffer;
    units_[u].states = lender.units_[u].states;
    units_[u].views.erase({-1, plan::Codes::none});  // of the shard of another expert
  }
}

void Store::place_gradients(const plan::Plan& plan) {
  for (size_t u = 0; u < units_.size(); ++u) {
    Unit& unit = units_[u];
    if (!unit.owned || unit.plan.gradients != plan::Tier::device) continue;
    const bool persistent = !plan.transient_gradient(unit.layout, static_cast<int>(u));
    if (persistent == unit.grad.defined()) continue;
    unit.grad_views.clear();
    unit.grad = Tensor();
    if (persistent)
      unit.grad = make_buffer(unit.layout.grad_shard, grad_type_, plan::Tier::device, engine::Part::gradients,
                              unit.grad_extent);
  }
}

int Store::first_trained() const {
  const auto trained = [](const Unit& unit) { return unit.layout.grad_total > 0; };
  const auto first = std::find_if(units_.begin(), units_.end(), trained);
  return first == units_.end() ? 0 : static_cast<int>(first - units_.begin());
}

bool Store::is_primary(int u, int b) const { return is_primary(u, b, rank_); }

bool Store::is_primary(int u, int b, int rank) const {
  const plan::Buffer& buffer = units_[u].layout.buffers[b];
  if (buffer.partitions > 1) return true;
  const bool first_replica = mesh_.coordinate(rank, Axis::dp_replicate) == 0;
  if (buffer.shards > 1) return first_replica;
  return first_replica && mesh_.shard_rank(rank) == 0 && (!buffer.over_tp || mesh_.coordinate(rank, Axis::tp) == 0);
}

Tensor Store::partition(int u, int b, const Tensor& shard) const {
  const plan::Buffer& buffer = units_[u].layout.buffers[b];
  return shard.narrow(0, units_[u].held[b].partition * buffer.partition(), buffer.partition());
}

void Store::squares(int u, const Tensor& grad, const Tensor& sums) const {
  for (size_t b = 0; owns(u) && b < units_[u].layout.buffers.size(); ++b) {
    const Tensor counted = this->counted(u, static_cast<int>(b), grad);
    if (!counted.defined()) continue;
    check_internal(counted.device() == sums.device(), "engine.store", "squares lie beside their gradient");
    ops::backend(counted).sum_of_squares(sums.mutable_data_ptr<double>() + b, counted.const_data_ptr<float>(),
                                         counted.numel());
  }
}

/// The part of a buffer's gradient that this rank counts in norms; undefined: none.
Tensor Store::counted(int u, int b, const Tensor& grad) const {
  const plan::Buffer& buffer = units_[u].layout.buffers[b];
  if (!buffer.trainable || !is_primary(u, b)) return {};
  return grad.narrow(0, buffer.held + units_[u].held[b].partition * buffer.partition(), buffer.partition());
}

Tensor Store::shard(int u, int b, int64_t from) {
  Unit& unit = units_[u];
  const plan::Buffer& buffer = unit.layout.buffers[b];
  const int64_t bytes = plan::shard_bytes(buffer, masters_);
  if (from < 0) await_param(u), settle(unit.param);
  // of what was fetched for an update frozen buffers are not there
  const Tensor held =
      from < 0 ? unit.param.narrow(0, unit.param_at[b], bytes)
               : arena(from + unit.param_at[b], div_up(bytes, int64_t{4})).view(at::kByte).narrow(0, 0, bytes);
  if (buffer.stored != DType::f32) return held;
  const bool whole = masters_ == plan::Masters::fp32 || !buffer.trainable;
  return held.view(whole ? at::kFloat : at::kBFloat16);
}

void Store::set_arena(int64_t bytes) {
  const int64_t elements = bytes / static_cast<int64_t>(sizeof(float));
  if (arena_.defined() && arena_.numel() >= elements) return;
  change_arena(bytes);
}

void Store::change_arena(int64_t bytes) {
  const int64_t elements = bytes / static_cast<int64_t>(sizeof(float));
  for (auto& unit : units_) unit.views.clear(), unit.grad_views.clear();
  arena_ = Tensor();
  const Meter::Scope scope(engine::Part::slots);
  arena_ = at::empty({elements}, at::TensorOptions().dtype(at::kFloat).device(device_));
  if (device_.is_cpu()) arena_.zero_();  // touch the pages now, not in the first step
}

Tensor Store::arena(int64_t offset, int64_t elements) const {
  return arena_.narrow(0, offset / static_cast<int64_t>(sizeof(float)), elements);
}

std::vector<Tensor> Store::views_of(const Unit& unit, const Tensor& flat, bool gradients, plan::Codes codes) const {
  std::vector<Tensor> views(unit.spec.params.size());
  for (size_t p = 0; p < views.size(); ++p) {
    if (gradients && !unit.spec.params[p].trainable) continue;
    const plan::UnitLayout::Place& place = unit.layout.params[p];
    const plan::Buffer& buffer = unit.layout.buffers[place.buffer];
    if (buffer.in_codes && !gradients) continue;
    const DType stored = buffer.stored;
    const auto param = static_cast<int>(p);
    const at::ScalarType type = stored != DType::f32 ? scalar_type(stored)
                                : gradients          ? at::kFloat
                                                     : scalar_type(slots_);
    const Tensor view = flat.view(at::kByte)
                            .narrow(0, gradients ? unit.layout.in_gradient(param) : unit.layout.in_slot(param, codes),
                                    gradients ? place.numel * 4 : unit.layout.slot_bytes(buffer, place.numel))
                            .view(type);
    if (stored == DType::i8 || stored == DType::f8_e4m3) {
      views[p] = view;
      continue;
    }
    // Convolutions whose kernel equals their stride are GEMMs here: their weight is used as [out, in * kernel].
    views[p] = place.shape.size() > 3 ? view.view({place.shape[0], -1}) : view.view(place.shape);
  }
  return views;
}

int64_t Store::gather_stored(int u, int b, int64_t slot, comm::Group* group, int64_t from, plan::Codes codes) {
  const plan::Buffer& buffer = units_[u].layout.buffers[b];
  const int64_t at = slot + units_[u].layout.slot_at(static_cast<size_t>(b), codes);
  const Tensor own = shard(u, b, from),
               place = arena(at, plan::stored_bytes(buffer.stored, buffer.total) / 4).view(at::kByte);
  if (group)
    group->all_gather(place, own);
  else if (place.const_data_ptr() != own.const_data_ptr())
    ops::copy_bytes(place.narrow(0, 0, static_cast<int64_t>(own.nbytes())), own);
  return group ? static_cast<int64_t>(own.nbytes()) * (group->size() - 1) : 0;
}

int64_t Store::gather(int u, int b, int64_t slot, comm::Group* group, int64_t from, plan::Codes codes) {
  const plan::Buffer& buffer = units_[u].layout.buffers[b];
  if (buffer.stored != DType::f32) return gather_stored(u, b, slot, group, from, codes);
  const bool widened = gathered_ != slots_;
  const Tensor param = shard(u, b, from), place = arena(slot + units_[u].layout.slot_at(static_cast<size_t>(b), codes),
                                                        units_[u].layout.slot_bytes(buffer, buffer.total) / 4);
  Tensor landing = place, own = param;
  if (gathered_ != DType::f32) {
    const at::ScalarType type = scalar_type(gathered_);
    landing = place.view(type).narrow(0, widened ? buffer.total : 0, buffer.total);
    // converts the shard to its own range of the slot, for an in-place all_gather
    own = landing.narrow(0, units_[u].held[b].shard * buffer.shard, buffer.shard);
    if (param.scalar_type() != at::kFloat)
      ops::copy_bytes(own, param);
    else if (type == at::kBFloat16)
      ops::high_half(own, param);
    else
      ops::narrow(own, param);
  }
  int64_t sent = 0;
  if (group) {
    group->all_gather(landing, own);
    sent = static_cast<int64_t>(own.nbytes()) * (group->size() - 1);
  } else if (own.const_data_ptr() == param.const_data_ptr() && place.const_data_ptr() != param.const_data_ptr()) {
    ops::copy_bytes(place, param);
  }
  if (widened) ops::widen_in_place(place, scalar_type(gathered_));
  return sent;
}

std::array<int64_t, 2> Store::gather_codes(int u, int b, int64_t slot, comm::Group* group, int64_t from,
                                           plan::Codes codes, bool columns) {
  const plan::UnitLayout& layout = units_[u].layout;
  const plan::Buffer& buffer = layout.buffers[b];
  const Tensor param = shard(u, b, from), place = arena(slot + layout.codes_at(static_cast<size_t>(b), codes, columns),
                                                        buffer.code_bytes(columns) / 4);
  const int own = units_[u].held[b].shard;
  const int64_t all = buffer.lines[columns].all, most = buffer.lines[columns].most;
  const Tensor scales = place.narrow(0, buffer.scales_at() / 4, all),
               sent = place.narrow(0, buffer.sent_scales_at(columns) / 4, most * buffer.shards),
               made = place.view(at::kByte).narrow(0, own * buffer.shard, buffer.shard);
  const auto* values = static_cast<const char*>(ops::read_address(param));
  const bool wide = buffer.stored == DType::f32 && param.scalar_type() == at::kFloat;
  const std::vector<plan::CodePiece> pieces = plan::code_pieces(layout, buffer, own, columns);
  const auto each = [&](float* by, uint8_t* to, void (*here)(const ops::FlatLines&),
                        void (*device::Backend::*there)(const ops::FlatLines&)) {
    for (const plan::CodePiece& piece : pieces)
      ops::run_at(place, here, there,
                  ops::FlatLines{piece.begin,
                                 piece.end - piece.begin,
                                 piece.width,
                                 {values + piece.offset * (wide ? 4 : 2), wide ? ops::Form::fp32 : ops::Form::bf16},
                                 columns,
                                 by + (to ? piece.first : piece.at),
                                 to ? to + piece.offset : nullptr});
  };
  auto *whole = static_cast<float*>(ops::address(scales)), *of_shards = static_cast<float*>(ops::address(sent));
  each(of_shards + own * most, nullptr, ops::flat_scales, &device::Backend::flat_scales);
  if (group) group->all_gather(sent, sent.narrow(0, own * most, most));
  ops::MergedScales merged;
  merged.at[merged.count++] = {nullptr, whole, all};
  const auto merge = [&] {
    if (merged.count > 0) ops::run_at(place, ops::merge_scales, &device::Backend::merge_scales, merged);
    merged.count = 0;
  };
  merge();
  for (int s = 0; s < buffer.shards; ++s)
    for (const plan::CodePiece& piece : plan::code_pieces(layout, buffer, s, columns)) {
      merged.at[merged.count++] = {of_shards + s * most + piece.at, whole + piece.first, piece.count};
      if (merged.count == ops::MergedScales::kMost) merge();
    }
  merge();
  each(whole, static_cast<uint8_t*>(ops::address(made)), ops::flat_codes, &device::Backend::flat_codes);
  if (!group) return {};
  group->all_gather(place.view(at::kByte).narrow(0, 0, buffer.total), made);
  const int64_t others = group->size() - 1;
  return {most * 4 * others, buffer.shard * others};
}

void Store::find_codes(const Unit& unit, const Tensor& flat, plan::Codes codes,
                       std::vector<ops::WeightSite>& sites) const {
  for (size_t b = 0; b < unit.layout.buffers.size(); ++b) {
    const plan::Buffer& buffer = unit.layout.buffers[b];
    if (!buffer.in_codes) continue;
    for (const bool columns : {false, true}) {
      if (columns ? codes == plan::Codes::rows : codes == plan::Codes::columns) continue;
      const Tensor place = flat.narrow(0, unit.layout.codes_at(b, codes, columns) / 4, buffer.code_bytes(columns) / 4);
      int64_t line = buffer.scales_at() / 4;
      for (const int p : buffer.params) {
        const plan::UnitLayout::Place& at = unit.layout.params[static_cast<size_t>(p)];
        const int64_t height = at.shape[0], width = at.numel / height, lines = columns ? width : height;
        ops::WeightSite& site = sites[static_cast<size_t>(p)];
        site.value = place.view(at::kByte).narrow(0, at.start, at.numel).view({height, width});
        site.codes[columns] = {site.value.view(at::kFloat8_e4m3fn), place.narrow(0, line, lines)};
        line += lines;
      }
    }
  }
}

void Store::bind(int u, int64_t slot, plan::Codes codes) {
  Unit& unit = units_[u];
  const bool shapes_only = device_.is_meta();
  check_internal(slot >= 0 || gathered_ == DType::f32 || shapes_only, "engine.store",
                 unit.spec.name + ": parameters that are gathered in 16 bits need a slot");
  if (slot < 0) await_param(u);
  auto& views = unit.views[{slot, codes}];
  if (views.empty()) {
    const Tensor flat = slot >= 0     ? arena(slot, unit.layout.slot_size(codes) / 4)
                        : shapes_only ? at::empty({unit.layout.total}, unit.anchor.options().requires_grad(false))
                                      : unit.param.view(at::kFloat);
    const std::vector<Tensor> values = views_of(unit, flat, false, codes);
    views.resize(values.size());
    for (size_t p = 0; p < values.size(); ++p) views[p].value = values[p];
    find_codes(unit, flat, codes, views);
  }
  for (size_t p = 0; p < views.size(); ++p) unit.sites[p].value = views[p].value, unit.sites[p].codes = views[p].codes;
}

void Store::unbind(int u) {
  for (auto& site : units_[u].sites) site.value = Tensor(), site.codes = {};
}

void Store::bind_grad(int u, int64_t slot, bool fresh) {
  Unit& unit = units_[u];
  auto& views = unit.grad_views[slot];
  if (views.empty()) views = views_of(unit, slot < 0 ? unit.grad : arena(slot, unit.layout.grad_total), true, {});
  for (size_t p = 0; p < views.size(); ++p) {
    if (!views[p].defined()) continue;
    unit.sites[p].grad = views[p];
    unit.sites[p].fresh = fresh;
  }
  if (!fresh || slot < 0) return;
  // Padding between tensors takes part in the reduction: it must be zero whatever the slot held before.
  Tensor flat = arena(slot, unit.layout.grad_total);
  for (const plan::Buffer& buffer : unit.layout.buffers) {
    if (!buffer.trainable) continue;
    for (size_t i = 0; i < buffer.params.size(); ++i) {
      const auto& place = unit.layout.params[buffer.params[i]];
      const int64_t end = place.start + place.numel;
      const int64_t next = i + 1 < buffer.params.size() ? unit.layout.params[buffer.params[i + 1]].start : buffer.total;
      if (next > end) flat.narrow(0, buffer.grad_at + end, next - end).zero_();
    }
  }
}

void Store::finish_grad(int u) {
  for (auto& site : units_[u].sites) {
    if (site.grad.defined() && site.fresh) site.grad.zero_();
    site.grad = Tensor();
    site.fresh = true;
  }
}

ops::WeightSite* Store::find(int u, std::string_view site) {
  Unit& unit = units_[u];
  const auto it = unit.index.find(site);
  return it == unit.index.end() ? nullptr : &unit.sites[it->second];
}

const plan::ParamSpec* Store::find_spec(int u, std::string_view site) const {
  const auto it = units_[u].index.find(site);
  return it == units_[u].index.end() ? nullptr : &units_[u].spec.params[it->second];
}

ops::WeightSite& Store::site(int u, std::string_view site) {
  ops::WeightSite* found = find(u, site);
  if (!found)
    throw InternalError("engine.store", units_[u].spec.name + " has no parameter '" + std::string(site) + "'");
  check_internal(found->value.defined(), "engine.store",
                 units_[u].spec.name + "." + std::string(site) + " was used while its unit is released");
  return *found;
}

void Store::freeze(bool all) {
  for (Unit& unit : units_) {
    for (size_t p = 0; p < unit.sites.size(); ++p) unit.sites[p].frozen = all || !unit.spec.params[p].trainable;
    unit.anchor.requires_grad_(!all && unit.layout.grad_total > 0);
  }
}

std::vector<ops::WeightSite*> Store::trained_sites(int u) {
  std::vector<ops::WeightSite*> trained;
  for (size_t p = 0; p < units_[u].sites.size(); ++p)
    if (units_[u].spec.params[p].trainable) trained.push_back(&units_[u].sites[p]);
  return trained;
}

std::vector<Store::Part> Store::parts() const {
  std::vector<Part> parts;
  for (int u = 0; u < units(); ++u)
    for (size_t r = 0; r < units_[u].states.ranges.size(); ++r) {
      const auto& range = units_[u].states.ranges[r];
      parts.push_back(
          {u, range.buffer, range.param, range.begin, range.end, range.offset, static_cast<int>(r), range.updated});
    }
  return parts;
}

Store::Range Store::data(const Part& part) {
  const Tensor held = shard(part.unit, part.buffer);
  return {static_cast<uint8_t*>(ops::address(held)) + part.offset * held.element_size(), ops::on_device(held)};
}

Store::Range Store::data_behind(const Part& part, int next) {
  const Range here = data(part);
  if (next == expert_ || !shared_base_ || !layout(part.unit).buffers[part.buffer].trainable) return here;
  const Unit& unit = units_[part.unit];
  const Tensor& behind = unit.inactive[inactive_index(next)].param;
  const auto at = static_cast<uint8_t*>(here.data) - static_cast<uint8_t*>(ops::address(unit.param));
  return {static_cast<uint8_t*>(ops::address(behind)) + at, ops::on_device(behind)};
}

std::vector<std::pair<int64_t, int64_t>> Store::box(const Part& part) const {
  if (tp_ == 1) return {};
  return plan::tp_box(units_[part.unit].spec.params[part.param], tp_, tp_rank_);
}

int64_t Store::persistent_bytes() const {
  int64_t bytes = 0;
  for (const auto& unit : units_)
    if (unit.owned) bytes += static_cast<int64_t>(unit.param.nbytes() + (unit.grad.defined() ? unit.grad.nbytes() : 0));
  return bytes;
}

void Store::open_disk(const plan::Plan& plan, const plan::DiskPlace& place, bool trainable) {
  if (device_.is_meta()) return;
  constexpr int64_t kPage = 4096;
  int64_t bytes = 0;
  const auto experts = static_cast<int64_t>(inactive_.size());
  const auto add = [&](plan::Tier tier, int64_t active, int64_t inactive) {
    if (tier == plan::Tier::nvme) bytes += round_up(active, kPage);
    if (plan.inactive_tier(tier) == plan::Tier::nvme) bytes += experts * round_up(inactive, kPage);
  };
  for (const Unit& unit : units_) {
    if (!unit.owned) continue;
    add(unit.plan.parameters, plan::shard_bytes(unit.layout, masters_), plan.inactive_bytes(unit.layout));
    if (!trainable) continue;
    if (unit.plan.gradients == plan::Tier::nvme) bytes += round_up(plan.gradient_bytes(unit.layout), kPage);
    const int64_t states = plan::state_layout(unit.spec, unit.layout, unit.held, plan::states_of(plan.states)).bytes;
    add(unit.plan.states, states, states);
  }
  if (bytes == 0) return;
  plan::require_nvme_folder(place.folder, "the plan puts buffers on nvme");
  disk_ = std::make_unique<Disk>(place, bytes);
}

Tensor Store::make_buffer(int64_t count, at::ScalarType type, plan::Tier tier, engine::Part part, int64_t& extent) {
  const auto options = at::TensorOptions().dtype(type).device(device_);
  if (tier == plan::Tier::device || device_.is_meta() || count == 0) {
    const Meter::Scope scope(part);
    return at::zeros({count}, options);
  }
  const int64_t bytes = count * static_cast<int64_t>(c10::elementSize(type));
  const auto host = options.device(at::kCPU);
  if (tier == plan::Tier::host) {
    host_.push_back(std::make_unique<HostMemory>());
    host_.back()->reserve(bytes);  // mapped memory is zero
    return at::from_blob(host_.back()->at(0), {count}, host);
  }
  extent = disk_->reserve(bytes);
  return at::from_blob(disk_->map(extent, bytes), {count}, host);  // reserved disk space reads as zeros
}

Tensor Store::make_parameters(int u, int expert, plan::Tier tier, int64_t& extent) {
  const int64_t bytes = plan::shard_bytes(units_[u].layout, masters_);
  // not an expert's that a swap writes: its tier while it is active is not the host
  const bool rests = units_[u].plan.parameters == plan::Tier::host;
  HostMemory* memory = shared_ && rests ? shared_->memory(u, expert) : nullptr;
  if (memory) return at::from_blob(memory->at(0), {bytes}, at::TensorOptions(at::kByte));
  return make_buffer(bytes, at::kByte, tier, engine::Part::parameters, extent);
}

void Store::begin_fill() {
  if (shared_) shared_->begin_fill();
}

void Store::await_fill() {
  if (shared_) shared_->end_fill();
}

bool Store::shares(const Part& part) const {
  return shared_ && !layout(part.unit).buffers[part.buffer].trainable && !shared_->sharers(part.unit).empty();
}

bool Store::fills(const Part& part) const { return !shares(part) || shared_->fills(part.unit); }

bool Store::counts_filled(const Part& part) const {
  return fills(part) && is_primary(part.unit, part.buffer, shares(part) ? shared_->sharers(part.unit).front() : rank_);
}

void Store::move(const plan::Instruction& in, char* host) {
  Unit& unit = units_[in.unit];
  if (shared_base_ && in.part == plan::Part::parameters) await_param(in.unit);
  auto [tensor, extent] = in.part == plan::Part::parameters  ? std::pair(unit.param, unit.param_extent)
                          : in.part == plan::Part::gradients ? std::pair(unit.grad, unit.grad_extent)
                                                             : std::pair(unit.buffer, unit.states_extent);
  const bool fetch = in.op == plan::Op::fetch;
  // of an update: what it leaves alone stays where it is
  if (const int64_t trained = plan::trained_shard_bytes(unit.layout, masters_);
      in.part == plan::Part::parameters && in.bytes == trained)
    tensor = tensor.narrow(0, 0, trained);
  check_internal(static_cast<int64_t>(tensor.nbytes()) == in.bytes, "engine.store",
                 unit.spec.name + ": the schedule moves " + std::to_string(in.bytes) + " bytes of " +
                     std::string(name(in.part)) + ", there are " + std::to_string(tensor.nbytes()));
  if (in.lane == plan::Lane::disk) {
    device::host_uses(host, in.bytes, fetch);
    fetch ? disk_->read(extent, host, in.bytes) : disk_->write(extent, host, in.bytes);
    return;
  }
  const Tensor stored = host ? at::from_blob(host, tensor.sizes(), tensor.options().device(at::kCPU)) : tensor;
  if (in.part == plan::Part::gradients && grad_type_ != at::kFloat && (!fetch || in.micro >= 0))
    return move_gradient(arena(in.slot, tensor.numel()), stored, fetch);  // see [Note: gradients in fewer bits]
  const Tensor here = arena(in.slot, div_up(in.bytes, int64_t{4})).view(at::kByte).narrow(0, 0, in.bytes);
  fetch ? ops::enqueue_copy(here, stored) : ops::enqueue_copy(stored, here);
}

/// Between an fp32 gradient in the arena and its 16-bit form in host memory. What a device sends or gets is in 16 bits
/// too: a piece at a time, through memory of its own.
void Store::move_gradient(const Tensor& values, const Tensor& stored, bool fetch) {
  if (!ops::on_device(values)) return fetch ? ops::widen(values, stored) : ops::narrow(stored, values);
  constexpr int64_t kPiece = 1 << 20;
  const Tensor piece = ops::device_scratch(0, kPiece, grad_type_);
  for (int64_t first = 0; first < values.numel(); first += kPiece) {
    const int64_t count = std::min(kPiece, values.numel() - first);
    const Tensor there = stored.narrow(0, first, count), here = values.narrow(0, first, count),
                 rounded = piece.narrow(0, 0, count);
    if (fetch) {
      ops::enqueue_copy(rounded, there);
      ops::widen(here, rounded);
    } else {
      ops::narrow(rounded, here);
      ops::enqueue_copy(there, rounded);
    }
  }
}

/// Between schedules the host reads and writes what is offloaded; within one its instructions say what they use.
void Store::settle(const Tensor& buffer) {
  if (!after_ || !buffer.defined() || !buffer.is_cpu()) return;
  if (!settled_) after_->await();
  settled_ = true;
  device::host_uses(buffer.const_data_ptr(), static_cast<int64_t>(buffer.nbytes()), /*writes=*/true);
}

Tensor Store::grad_at(int u, int64_t offset) {
  return offset < 0 ? units_[u].grad : arena(offset, units_[u].layout.grad_shard);
}

void Store::round_gradient(const Tensor& shard) const {
  if (grad_type_ != at::kFloat) ops::round_values(shard, grad_type_);
}

void Store::flush_disk() {
  if (disk_) disk_->flush();
}

int64_t Store::host_bytes() const {
  int64_t bytes = 0;
  for (const auto& memory : host_) bytes += memory->size();
  return bytes + (shared_ ? shared_->counted_bytes() : 0);
}

int64_t Store::disk_bytes() const {
  int64_t bytes = 0;
  const auto add = [&](const Tensor& tensor, int64_t extent) {
    if (extent >= 0) bytes += static_cast<int64_t>(tensor.nbytes());
  };
  for (const Unit& unit : units_) {
    add(unit.param, unit.param_extent);
    add(unit.grad, unit.grad_extent);
    add(unit.buffer, unit.states_extent);
    for (const Unit::Inactive& inactive : unit.inactive)
      add(inactive.param, inactive.param_extent), add(inactive.buffer, inactive.states_extent);
  }
  return bytes;
}

void Store::make_states(const net::UnitUpdate& update) {
  for (int u = 0; u < units(); ++u) {
    Unit& unit = units_[u];
    if (!unit.owned) continue;
    unit.states = plan::state_layout(unit.spec, unit.layout, unit.held,
                                     [&](const plan::ParamSpec& param) { return update.states(param); });
    unit.buffer = make_buffer(unit.states.bytes, at::kByte, unit.plan.states, engine::Part::states, unit.states_extent);
    for (size_t i = 0; i < unit.inactive.size(); ++i)
      if (inactive_[i] < trained_experts())
        unit.inactive[i].buffer =
            make_buffer(unit.states.bytes, at::kByte, unit.plan.states == plan::Tier::device ? idle_ : unit.plan.states,
                        engine::Part::states, unit.inactive[i].states_extent);
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
  if (staged.param < 0) await_param(u), settle(unit.param);
  const plan::Buffer& buffer = unit.layout.buffers[range.buffer];
  const plan::ParamSpec& param = unit.spec.params[range.param];
  // Addresses alone: to make views of them takes the host as long as a small update.
  const auto in_arena = [&](int64_t at) { return static_cast<uint8_t*>(ops::address(arena_)) + at; };
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
  const bool whole = masters_ == plan::Masters::fp32 || !buffer.trainable;
  const int64_t each = buffer.stored != DType::f32 ? 1 : whole ? 4 : 2;
  auto* shard = staged.param < 0 ? static_cast<uint8_t*>(ops::address(unit.param)) : in_arena(staged.param);
  slice.param = shard + unit.param_at[range.buffer] + range.offset * each;
  slice.on_device = ops::on_device(staged.param < 0 ? unit.param : arena_);
  if (buffer.trainable && (unit.grad.defined() || staged.grad >= 0)) {
    const int64_t at = buffer.held + range.offset;
    const void* grads = staged.grad < 0 ? ops::read_address(unit.grad) : in_arena(staged.grad);
    if (grad_type_ == at::kFloat || !staged.as_stored)
      slice.grad = static_cast<const float*>(grads) + at;
    else
      slice.half_grad = static_cast<const uint16_t*>(grads) + at, slice.half_type = grad_type_;
  }
  slice.specs = &range.states;
  if (expert_ >= trained_experts()) return slice;  // a teacher, which has no states
  if (staged.states < 0 && !unit.buffer.defined()) return slice;
  auto* states = staged.states < 0 ? static_cast<uint8_t*>(ops::address(unit.buffer)) : in_arena(staged.states);
  for (const int64_t at : range.at)
    if (states) slice.states.push_back(states + at);  // null: nothing is trained
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

void Store::set_masters(const Part& part, int64_t first, int64_t count, const float* values) {
  constexpr auto kUnread = ops::HostBytes::Contents::unread;
  if (!fills(part)) return;
  check_internal(!shares(part) || shared_->filling(), "engine.store",
                 "weights that ranks share are set between begin_fill() and await_fill()");
  if (const DType form = stored(part); form != DType::f32) {
    const auto to = ops::stored_at(shard(part.unit, part.buffer), form, part.offset + first, count, kUnread);
    ops::write_stored(to.data(), values, count, scalar_type(form));
    return to.keep();
  }
  const net::Slice slice = this->slice(part.unit, units_[part.unit].states.ranges[part.range]);
  if (master_form(part) == plan::Masters::fp32)
    return ops::copy_bytes(static_cast<float*>(slice.param) + first, values,
                           count * static_cast<int64_t>(sizeof(float)), slice.on_device);
  const bool trained = expert_ < trained_experts();  // else there is no low half to hold the rest
  Part own = part;
  own.updated = part.updated && trained;
  const Halves to(slice, masters_, own, first, count, kUnread);
  auto *high = to.high.as<uint16_t>(), *low = to.low.as<uint16_t>();
  if (low)
    ops::split_fp32(high, low, values, count);
  else if (masters_ == plan::Masters::split && trained)
    ops::high_half(high, values, count);
  else
    ops::to_bf16(high, values, count);
  to.high.keep(), to.low.keep();
}

void Store::read_masters(const Part& part, int64_t first, int64_t count, float* values) {
  constexpr auto kRead = ops::HostBytes::Contents::read;
  if (const DType form = stored(part); form != DType::f32) {
    const auto from = ops::stored_at(shard(part.unit, part.buffer), form, part.offset + first, count, kRead);
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

void Store::add_totals(int u, const net::Totals& totals) {
  for (size_t t = 0; t < totals.size(); ++t) units_[u].totals[t] += totals[t];
}

double* Store::device_totals(int u) {
  if (!device_totals_.defined()) {
    const int64_t bytes = units() * static_cast<int64_t>(sizeof(net::Totals));
    void* data = ops::backend(true).take(bytes);
    if (!data)
      throw UserError(Exit::memory, "engine.store", "the device has no " + format_bytes(bytes) + " left for totals",
                      "leave more of the device free: lower plan.budget");
    device_totals_ = at::from_blob(
        data, {units(), 2}, [table = &ops::backend(true)](void* d) { table->give(d); },
        at::TensorOptions(at::kDouble).device(device_));
    device_totals_.zero_();
  }
  return device_totals_.mutable_data_ptr<double>() + 2 * u;
}

net::Totals Store::take_totals() {
  if (device_totals_.defined()) {
    std::vector<net::Totals> there(static_cast<size_t>(units()));
    device::copy(there.data(), device_totals_.const_data_ptr<double>(), static_cast<int64_t>(device_totals_.nbytes()));
    device_totals_.zero_();
    for (int u = 0; u < units(); ++u) add_totals(u, there[static_cast<size_t>(u)]);
  }
  net::Totals all = {};
  for (Unit& unit : units_) {
    const net::Totals own = std::exchange(unit.totals, {});
    for (size_t t = 0; t < all.size(); ++t) all[t] += own[t];
  }
  return all;
}

void Store::make_swap() {
  if (!inactive_.empty() && (idle_ != plan::Tier::device || shared_base_))
    swap_ = std::make_shared<ExpertSwap>(device_);
}

void Store::await_param(int unit) const {
  if (swap_) swap_->await_param(unit);
}
void Store::await_states(int unit) const {
  if (swap_) swap_->await_states(unit);
}
ExpertSwap::Moved Store::take_moved() { return swap_ ? swap_->take_moved() : ExpertSwap::Moved{}; }

std::function<std::string()> Store::swap_on_device() const {
  if (!swap_) return {};
  return [swap = swap_] { return swap->on_device(); };
}

size_t Store::inactive_index(int expert) const {
  const auto found = std::find(inactive_.begin(), inactive_.end(), expert);
  check_internal(found != inactive_.end(), "engine.store", "there is no expert " + std::to_string(expert));
  return static_cast<size_t>(found - inactive_.begin());
}

// [Note: inactive experts] Buffers that a unit's plan keeps on the host or on disk stay there whether their expert is
// active or not: a swap of experts swaps pointers. Buffers that the plan keeps on the device are, for an inactive
// expert, on the plan's `idle` tier. If that is not the device, a swap exchanges the bytes of the two buffers in place.
// Experts with a shared base (Plan::shared_base) have one buffer of parameters, the frozen ones behind the trained ones, and
// the inactive ones a buffer for the trained ones: a swap exchanges these bytes on every tier.

void Store::swap_with(size_t index, bool moving) {
  if (swap_) swap_->settle();
  const bool tiers_differ = moving && idle_ != plan::Tier::device;
  bool on_disk = false;
  std::vector<ExpertSwap::Pair> pairs, states;
  std::vector<int> param_at(units_.size(), -1), states_at = param_at;
  for (size_t u = 0; u < units_.size(); ++u) {
    Unit& unit = units_[u];
    if (!unit.owned) continue;
    Unit::Inactive& inactive = unit.inactive[index];
    const int64_t bytes = inactive.param.numel();  // of what is trained, where the rest is shared
    if (bytes > 0 && (shared_base_ || (tiers_differ && unit.plan.parameters == plan::Tier::device))) {
      if (shared_base_) settle(unit.param);  // in host memory, a device may still read it
      on_disk |= unit.param_extent >= 0;
      param_at[u] = static_cast<int>(pairs.size());
      pairs.push_back({unit.param.narrow(0, 0, bytes), inactive.param, "parameters of " + unit.spec.name});
    } else if (!shared_base_) {
      std::swap(unit.param, inactive.param);
      std::swap(unit.param_extent, inactive.param_extent);
      unit.views.clear();  // some may be views of the shard
    }
    // Teachers have no states: those of the expert that they replace stay where they are.
    if (!unit.buffer.defined() || !inactive.buffer.defined()) continue;
    if (tiers_differ && unit.plan.states == plan::Tier::device) {
      states_at[u] = static_cast<int>(states.size());
      states.push_back({unit.buffer, inactive.buffer, "states of " + unit.spec.name});
    } else {
      std::swap(unit.buffer, inactive.buffer);
      std::swap(unit.states_extent, inactive.states_extent);
    }
  }
  const std::string swap = "swap of experts " + std::to_string(expert_) + " and " + std::to_string(inactive_[index]);
  std::swap(expert_, inactive_[index]);
  if (!tiers_differ && !shared_base_) return;
  for (int& at : states_at)
    if (at >= 0) at += static_cast<int>(pairs.size());
  pairs.insert(pairs.end(), states.begin(), states.end());
  swap_->start(swap, std::move(pairs), std::move(param_at), std::move(states_at));
  if (!moving || on_disk) swap_->settle();
  if (on_disk) flush_disk();  // a step reads it past the page cache
}

void Store::switch_to(int expert) {
  if (expert != expert_) swap_with(inactive_index(expert), true);
}

Store::ExpertScope::ExpertScope(Store& store, int expert) : store_(store), before_(store.expert_) {
  if (expert != before_)
    store_.swap_with(store_.inactive_index(expert), false);
  else if (store_.swap_)
    store_.swap_->settle();
}

Store::ExpertScope::~ExpertScope() {
  if (before_ != store_.expert_) store_.swap_with(store_.inactive_index(before_), false);
}

}  // namespace tessera::engine
