#include "tessera/engine/store.h"

#include <cstring>

#include "tessera/base/check.h"
#include "tessera/ops/bf16.h"

namespace tessera::engine {

Store::Store(const plan::ModelSpec& model, std::vector<std::string> prefixes, const plan::Plan& plan, int rank,
             at::Device device, bool trainable, std::string nvme)
    : shard_rank_(plan.mesh.shard_rank(rank)),
      first_replica_(plan.mesh.coordinate(rank, Axis::dp_replicate) == 0),
      masters_(plan.states.masters),
      gathered_(plan.gathered()),
      device_(device) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  open_disk(model, plan, nvme, trainable);
  for (size_t u = 0; u < model.units.size(); ++u) {
    Unit unit;
    unit.spec = model.units[u];
    unit.layout = plan::flat_layout(unit.spec, plan.shards(static_cast<int>(u)));
    if (u < plan.units.size()) unit.plan = plan.units[u];
    unit.param = make_buffer(unit.layout.shard, masters_ == plan::Masters::fp32 ? at::kFloat : at::kBFloat16,
                             unit.plan.parameters, engine::Part::parameters, unit.param_extent);
    if (trainable)
      unit.grad =
          make_buffer(unit.layout.shard, at::kFloat, unit.plan.gradients, engine::Part::gradients, unit.grad_extent);
    unit.states = plan::state_layout(unit.spec, unit.layout, unit.layout.shards > 1 ? shard_rank_ : 0, {});
    unit.anchor = at::zeros({1}, options).requires_grad_(trainable);
    unit.sites.resize(unit.spec.params.size());
    for (size_t p = 0; p < unit.spec.params.size(); ++p) {
      const std::string& name = unit.spec.params[p].name;
      check_internal(name.starts_with(prefixes[u]), "engine.store", name + " does not start with " + prefixes[u]);
      unit.index.emplace(name.substr(prefixes[u].size()), static_cast<int>(p));
    }
    units_.push_back(std::move(unit));
  }
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

std::vector<Tensor> Store::views_of(const Unit& unit, const Tensor& flat) const {
  std::vector<Tensor> views;
  for (size_t p = 0; p < unit.spec.params.size(); ++p) {
    const auto& param = unit.spec.params[p];
    Tensor view = flat.narrow(0, unit.layout.start[p], param.numel());
    // Convolutions whose kernel equals their stride are GEMMs here: their weight is used as [out, in * kernel].
    view = param.shape.size() > 3 ? view.view({param.shape[0], -1}) : view.view(param.shape);
    views.push_back(view);
  }
  return views;
}

int64_t Store::gather(int u, int64_t slot, comm::Group* group, int64_t from) {
  Unit& unit = units_[u];
  const int64_t total = unit.layout.total, shard = unit.layout.shard;
  const Tensor param = param_at(u, from);
  Tensor landing = arena(slot, total), own = param;
  if (gathered_ == plan::ParamType::bf16) {
    landing = landing.view(at::kBFloat16).narrow(0, total, total);
    own = landing.narrow(0, shard_rank(u) * shard, shard);  // the group finds it where it belongs
    auto* half = static_cast<uint16_t*>(own.mutable_data_ptr());
    if (masters_ == plan::Masters::fp32)
      ops::high_half(half, param.const_data_ptr<float>(), shard);
    else
      std::memcpy(half, param.const_data_ptr(), param.nbytes());
  }
  int64_t sent = 0;
  if (group) {
    group->all_gather(landing, own);
    sent = static_cast<int64_t>(own.nbytes()) * (group->size() - 1);
  }
  if (gathered_ == plan::ParamType::bf16) ops::widen_in_place(arena(slot, total).mutable_data_ptr<float>(), total);
  return sent;
}

void Store::bind(int u, int64_t slot) {
  Unit& unit = units_[u];
  check_internal(slot >= 0 || gathered_ == plan::ParamType::fp32, "engine.store",
                 unit.spec.name + ": parameters that are bf16 need a slot");
  auto& views = unit.views[slot];
  if (views.empty()) views = views_of(unit, slot < 0 ? unit.param : arena(slot, unit.layout.total));
  for (size_t p = 0; p < views.size(); ++p) unit.sites[p].value = views[p];
}

void Store::unbind(int u) {
  for (auto& site : units_[u].sites) site.value = Tensor();
}

void Store::bind_grad(int u, int64_t slot, bool fresh) {
  Unit& unit = units_[u];
  auto& views = unit.grad_views[slot];
  if (views.empty()) views = views_of(unit, slot < 0 ? unit.grad : arena(slot, unit.layout.total));
  for (size_t p = 0; p < views.size(); ++p) {
    if (!unit.spec.params[p].trainable) continue;
    unit.sites[p].grad = views[p];
    unit.sites[p].fresh = fresh;
  }
  if (!fresh || slot < 0) return;
  // Padding between tensors takes part in the reduction: it must be zero whatever the slot held before.
  Tensor flat = arena(slot, unit.layout.total);
  for (size_t p = 0; p < views.size(); ++p) {
    const int64_t end = unit.layout.start[p] + unit.spec.params[p].numel();
    const int64_t next = p + 1 < views.size() ? unit.layout.start[p + 1] : unit.layout.total;
    if (next > end) flat.narrow(0, end, next - end).zero_();
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

ops::WeightSite& Store::site(int u, std::string_view site) {
  ops::WeightSite* found = find(u, site);
  if (!found)
    throw InternalError("engine.store", units_[u].spec.name + " has no parameter '" + std::string(site) + "'");
  check_internal(found->value.defined(), "engine.store",
                 units_[u].spec.name + "." + std::string(site) + " was used while its unit is released");
  return *found;
}

std::vector<Store::Part> Store::parts() const {
  std::vector<Part> parts;
  for (int u = 0; u < units(); ++u)
    for (size_t r = 0; r < units_[u].states.ranges.size(); ++r) {
      const auto& range = units_[u].states.ranges[r];
      parts.push_back({u, range.param, range.begin, range.end, range.offset, static_cast<int>(r)});
    }
  return parts;
}

int64_t Store::persistent_bytes() const {
  int64_t bytes = 0;
  for (const auto& unit : units_)
    bytes += static_cast<int64_t>(unit.param.nbytes() + (unit.grad.defined() ? unit.grad.nbytes() : 0));
  return bytes;
}

}  // namespace tessera::engine
