#include "tessera/engine/store.h"

#include "tessera/base/check.h"

namespace tessera::engine {

Store::Store(const plan::ModelSpec& model, std::vector<std::string> prefixes, const Mesh& mesh, int rank,
             at::Device device, bool trainable)
    : shard_rank_(mesh.shard_rank(rank)), device_(device) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  for (size_t u = 0; u < model.units.size(); ++u) {
    Unit unit;
    unit.spec = model.units[u];
    unit.layout = plan::flat_layout(unit.spec, mesh.shard_size());
    {
      const Meter::Scope scope(engine::Part::parameters);
      unit.param = at::zeros({unit.layout.shard}, options);
    }
    if (trainable) {
      const Meter::Scope scope(engine::Part::gradients);
      unit.grad = at::zeros({unit.layout.shard}, options);
    }
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

void Store::bind(int u, int64_t slot) {
  Unit& unit = units_[u];
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
  for (int u = 0; u < units(); ++u) {
    const auto& layout = units_[u].layout;
    const int64_t low = layout.shard * shard_rank_, high = low + layout.shard;
    for (size_t p = 0; p < units_[u].spec.params.size(); ++p) {
      const int64_t start = layout.start[p], end = start + units_[u].spec.params[p].numel();
      const int64_t begin = std::max(start, low), stop = std::min(end, high);
      if (begin < stop) parts.push_back({u, static_cast<int>(p), begin - start, stop - start, begin - low});
    }
  }
  return parts;
}

int64_t Store::persistent_bytes() const {
  int64_t bytes = 0;
  for (const auto& unit : units_) bytes += unit.layout.shard * 4 * (unit.grad.defined() ? 2 : 1);
  return bytes;
}

}  // namespace tessera::engine
