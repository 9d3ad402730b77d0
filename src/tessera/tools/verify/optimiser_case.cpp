#include "tessera/tools/verify/optimiser_case.h"

#include "tessera/device/backend.h"
#include "tessera/ops/ranges.h"

#include <algorithm>

#include "tessera/base/check.h"

namespace tessera::tools {

std::vector<std::string> optimiser_runs(const CaseFile& file) {
  std::vector<std::string> runs;
  for (const auto& name : file.names("out.")) {
    const size_t end = name.find(".param.");
    if (end == std::string::npos) continue;
    const std::string run = name.substr(4, end - 4);
    if (std::find(runs.begin(), runs.end(), run) == runs.end()) runs.push_back(run);
  }
  return runs;
}

OptimiserCase::OptimiserCase(const CaseFile& file, const net::UnitUpdate& update, plan::StateFormat format) {
  plan::ModelSpec spec;
  spec.units.resize(1);
  spec.units[0].name = "case";
  for (const auto& name : file.names("in.param.")) {
    names_.push_back(name.substr(9));
    const at::Tensor value = file.tensor(name), grad = file.tensor("in.grad." + names_.back());
    shapes_.push_back(value.sizes().vec());
    check_input(grad.dim() > 0 && grad.size(0) > 0 && grad.numel() == grad.size(0) * value.numel(), "verify",
                file.case_name() + "/" + file.file_name() + ": in.grad." + names_.back() + " has " +
                    std::to_string(grad.numel()) + " elements, expected a gradient of " +
                    std::to_string(value.numel()) + " for each step");
    grads_.push_back(grad.view({grad.size(0), -1}));
    spec.units[0].params.push_back({names_.back(), shapes_.back()});
  }
  plan::Plan plan;
  plan.states = format;
  plan.units.resize(1);
  store_ = std::make_unique<engine::Store>(spec, std::vector<std::string>{""}, plan, 0, device::here());
  store_->make_states(update);
  parts_ = store_->parts();
  for (const auto& part : parts_) {
    const at::Tensor value = file.tensor("in.param." + names_[part.param]);
    store_->set_masters(part, 0, value.numel(), value.const_data_ptr<float>());
  }
}

void OptimiserCase::step(const net::UnitUpdate& update, const net::StepControl& control) {
  for (const auto& part : parts_) {
    const at::Tensor& grads = grads_[part.param];
    check_input(control.step <= grads.size(0), "verify",
                "in.grad." + names_[part.param] + " has " + std::to_string(grads.size(0)) +
                    " steps, config.json asks for more");
    store_->grad(0).narrow(0, part.offset, grads.size(1)).copy_(grads[control.step - 1]);
  }
  store_->update(0, update, control, {});
}

const engine::Store::Part& OptimiserCase::part(const std::string& name) const {
  const auto at = std::find(names_.begin(), names_.end(), name);
  check_internal(at != names_.end(), "verify", "no parameter " + name);
  return parts_[at - names_.begin()];
}

at::Tensor OptimiserCase::param(const std::string& name) {
  const auto& part = this->part(name);
  at::Tensor values = at::empty(shapes_[part.param], at::kFloat);
  store_->read_masters(part, 0, values.numel(), values.mutable_data_ptr<float>());
  return values;
}

at::Tensor OptimiserCase::state(const std::string& name, const std::string& kind) {
  const auto& part = this->part(name);
  const auto& states = store_->states(0).ranges[part.range].states;
  for (size_t s = 0; s < states.size(); ++s) {
    if (states[s].kind != kind) continue;
    const int64_t values = states[s].values(part.begin, part.end);
    const at::Tensor flat = at::empty({values}, scalar_type(states[s].type));
    const engine::Store::Range held = store_->state(part, s);
    ops::copy_bytes(flat.mutable_data_ptr(), held.data, static_cast<int64_t>(flat.nbytes()), held.on_device);
    return states[s].per == 1 ? flat.view(shapes_[part.param]) : flat;
  }
  return {};
}

}  // namespace tessera::tools
