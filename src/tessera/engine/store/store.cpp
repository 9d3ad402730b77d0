#include "tessera/engine/store/store.h"

#include "tessera/base/check.h"
#include "tessera/ops/ranges.h"

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
      grad_type_(scalar_type(plan.grad)),
      device_(device),
      shared_(std::move(shared)) {
  for (int e = 1; e < plan.experts; ++e) inactive_.push_back(e);
  idle_ = plan.idle;
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
      inactive.param =
          make_parameters(static_cast<int>(u), expert, plan.inactive_tier(unit.plan.parameters), inactive.param_extent);
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
  make_mover();
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
    if (counted.defined()) ops::sum_of_squares(sums.narrow(0, static_cast<int64_t>(b), 1), counted);
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

std::vector<Tensor> Store::views_of(const Unit& unit, const Tensor& flat, bool gradients) const {
  std::vector<Tensor> views(unit.spec.params.size());
  for (size_t p = 0; p < views.size(); ++p) {
    if (gradients && !unit.spec.params[p].trainable) continue;
    const plan::UnitLayout::Place& place = unit.layout.params[p];
    const plan::Buffer& buffer = unit.layout.buffers[place.buffer];
    const DType stored = buffer.stored;
    const auto param = static_cast<int>(p);
    const at::ScalarType type = stored != DType::f32 ? scalar_type(stored)
                                : gradients          ? at::kFloat
                                                     : scalar_type(slots_);
    const Tensor view = flat.view(at::kByte)
                            .narrow(0, gradients ? unit.layout.in_gradient(param) : unit.layout.in_slot(param),
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

int64_t Store::gather_stored(int u, int b, int64_t slot, comm::Group* group, int64_t from) {
  const plan::Buffer& buffer = units_[u].layout.buffers[b];
  const Tensor own = shard(u, b, from),
               place =
                   arena(slot + buffer.slot_at, plan::stored_bytes(buffer.stored, buffer.total) / 4).view(at::kByte);
  if (group)
    group->all_gather(place, own);
  else if (place.const_data_ptr() != own.const_data_ptr())
    ops::copy_bytes(place.narrow(0, 0, static_cast<int64_t>(own.nbytes())), own);
  return group ? static_cast<int64_t>(own.nbytes()) * (group->size() - 1) : 0;
}

int64_t Store::gather(int u, int b, int64_t slot, comm::Group* group, int64_t from) {
  const plan::Buffer& buffer = units_[u].layout.buffers[b];
  if (buffer.stored != DType::f32) return gather_stored(u, b, slot, group, from);
  const bool widened = gathered_ != slots_;
  const Tensor param = shard(u, b, from),
               place = arena(slot + buffer.slot_at, units_[u].layout.slot_bytes(buffer, buffer.total) / 4);
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

void Store::bind(int u, int64_t slot) {
  Unit& unit = units_[u];
  const bool shapes_only = device_.is_meta();
  check_internal(slot >= 0 || gathered_ == DType::f32 || shapes_only, "engine.store",
                 unit.spec.name + ": parameters that are gathered in 16 bits need a slot");
  if (slot < 0) await_param(u);
  auto& views = unit.views[slot];
  if (views.empty()) {
    const Tensor flat = slot >= 0     ? arena(slot, unit.layout.total)
                        : shapes_only ? at::empty({unit.layout.total}, unit.anchor.options().requires_grad(false))
                                      : unit.param.view(at::kFloat);
    views = views_of(unit, flat, false);
  }
  for (size_t p = 0; p < views.size(); ++p) unit.sites[p].value = views[p];
}

void Store::unbind(int u) {
  for (auto& site : units_[u].sites) site.value = Tensor();
}

void Store::bind_grad(int u, int64_t slot, bool fresh) {
  Unit& unit = units_[u];
  auto& views = unit.grad_views[slot];
  if (views.empty()) views = views_of(unit, slot < 0 ? unit.grad : arena(slot, unit.layout.grad_total), true);
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

}  // namespace tessera::engine
