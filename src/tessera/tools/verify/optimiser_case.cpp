#include "tessera/tools/verify/optimiser_case.h"

#include "tessera/device/backend.h"
#include "tessera/ops/ranges.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/plan/optimizers.h"

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

RunSettings::RunSettings(const Settings& config, const std::string& name) : all_(config), own_(Json::object()) {
  if (config.contains("runs") && config.at("runs").contains(name)) own_ = config.at("runs").at(name);
}

Settings RunSettings::at(const char* key) const {
  if (!own_.contains(key)) return all_.at(key);
  all_.read(key);  // it is that of other runs
  return own_.at(key);
}

void RunSettings::expect(const char* key, const Json& only) const {
  if (!has(key)) return;
  const Json found = at(key).json();
  check_input(found == only, "verify", std::string(key) + " is " + found.dump() + ", this build has " + only.dump());
}

std::string RunSettings::unread() const {
  std::string all;
  for (const std::string& key : own_.unread({})) all += (all.empty() ? "" : ", ") + key;
  return all;
}

void check_run_of(CaseFile& file, const Settings& config, const std::string& name,
                  const std::function<void(const RunSettings& run)>& check) {
  const RunSettings run(config, name);
  try {
    check(run);
  } catch (const UserError& error) {
    if (error.code() != Exit::input) throw;
    if (config.contains("runs") && config.at("runs").contains(name)) config.at("runs").at(name).read();
    return file.refuse_run(name, error.what());
  }
  if (const std::string unread = run.unread(); !unread.empty()) {
    config.at("runs").at(name).read();
    file.refuse_run(name, unread + ": not known to this build");
  }
}

OptimiserCase::OptimiserCase(const CaseContext& context, const CaseFile& file, const net::UnitUpdate& update,
                             plan::StateFormat format)
    : OptimiserCase(context, file, update, format, Names{}) {}

OptimiserCase::OptimiserCase(const CaseContext& context, const CaseFile& file, const net::UnitUpdate& update,
                             plan::StateFormat format, const Names& names)
    : comm_(context.comm), states_([&update](const plan::ParamSpec& param) { return update.states(param); }) {
  spec_.units.resize(1);
  spec_.units[0].name = "case";
  for (const auto& name : file.names(names.start)) {
    names_.push_back(name.substr(names.start.size()));
    const at::Tensor value = file.tensor(name), grad = file.tensor(names.steps + names_.back());
    shapes_.push_back(value.sizes().vec());
    check_input(grad.dim() > 0 && grad.size(0) > 0 && grad.numel() == grad.size(0) * value.numel(), "verify",
                file.case_name() + "/" + file.file_name() + ": " + names.steps + names_.back() + " has " +
                    std::to_string(grad.numel()) + " elements, expected a gradient of " +
                    std::to_string(value.numel()) + " for each step");
    grads_.push_back(grad.view({grad.size(0), -1}));
    spec_.units[0].params.push_back({names_.back(), shapes_.back()});
    spec_.units[0].params.back().whole = plan::row(format.optimizer).whole && value.dim() > 1;
  }
  plan::Plan plan;
  plan.mesh = context.mesh;
  plan.states = format;
  plan.units.resize(1);
  store_ = std::make_unique<engine::Store>(spec_, std::vector<std::string>{""}, plan, context.rank, device::here());
  store_->make_states(update);
  parts_ = store_->parts();
  for (const auto& part : parts_) {
    const at::Tensor value = file.tensor(names.start + names_[part.param]);
    store_->set_masters(part, 0, part.end - part.begin, value.const_data_ptr<float>() + part.begin);
  }
  for (const plan::Buffer& buffer : store_->layout(0).buffers) {
    comm::Group* group = comm_ ? &comm_->group(plan::kSums, plan::sum_axes(plan, buffer)) : nullptr;
    sums_.push_back(group && group->size() > 1 ? group : nullptr);
  }
  if (!plan::row(format.optimizer).whole) return;
  matrices_ = plan::matrix_parts(plan, spec_.units[0], store_->layout(0), context.rank);
  // batches of matrices may take more than a matrix of as many elements
  const int64_t bytes = plan::work_bytes(spec_.units[0], matrices_, DType::f32);
  work_ = at::empty({4 * bytes}, at::TensorOptions(at::kByte).device(device::here()));
}

net::Totals OptimiserCase::totals() {
  const net::Totals own = store_->take_totals();
  if (!comm_) return own;
  net::Totals all = {};
  for (const auto& row :
       comm_->group("control", {kAllAxes.begin(), kAllAxes.end()}).all_gather_doubles({own.begin(), own.end()}))
    for (size_t t = 0; t < all.size(); ++t) all[t] += row[t];
  return all;
}

void OptimiserCase::step(const net::UnitUpdate& update, const net::StepControl& control, const Gradient& gradient) {
  if (!store_->owns(0)) return;
  for (const auto& part : parts_) {
    const at::Tensor& grads = grads_[part.param];
    check_input(control.step <= grads.size(0), "verify",
                "in.grad." + names_[part.param] + " has " + std::to_string(grads.size(0)) +
                    " steps, config.json asks for more");
    const int64_t count = part.end - part.begin;
    at::Tensor given = grads[control.step - 1].narrow(0, part.begin, count);
    if (gradient) {
      const at::Tensor param = at::empty({count}, at::kFloat);
      store_->read_masters(part, 0, count, param.mutable_data_ptr<float>());
      given = gradient(names_[part.param], param, given, part.begin);
    }
    store_->grad(0).narrow(0, part.offset, count).copy_(given);
  }
  const auto sum = [&](int buffer, const at::Tensor& values) {
    if (comm::Group* group = sums_[static_cast<size_t>(buffer)]) group->all_reduce(values);
  };
  engine::WholeUpdate whole = {};
  if (work_.defined())
    whole = {&matrices_, work_, [&](int buffer, const auto& out, const auto& in) {
               sums_[static_cast<size_t>(buffer)]->all_to_all(out, in);
             }};
  engine::update_unit(*store_, 0, update, control, {}, nullptr, sum, whole);
}

int OptimiserCase::index(const std::string& name) const {
  const auto at = std::find(names_.begin(), names_.end(), name);
  check_internal(at != names_.end(), "verify", "no parameter " + name);
  return static_cast<int>(at - names_.begin());
}

const engine::Store::Part* OptimiserCase::part(const std::string& name) const {
  const int param = index(name);
  const auto at = std::ranges::find_if(
      parts_, [&](const auto& part) { return part.param == param && store_->is_primary(0, part.buffer); });
  return at == parts_.end() ? nullptr : &*at;
}

/// Every element is this rank's own or 0, and one rank's own: their sum has them all.
at::Tensor OptimiserCase::everywhere(at::Tensor own) const {
  if (!comm_) return own;
  comm::Group& world = comm_->group("control", {kAllAxes.begin(), kAllAxes.end()});
  if (world.size() == 1) return own;
  const at::Tensor sum = own.to(at::kFloat).view({-1});  // codes of 8 bits are exact
  world.all_reduce(sum);
  return sum.to(own.scalar_type()).view(own.sizes());
}

at::Tensor OptimiserCase::param(const std::string& name) {
  at::Tensor values = at::zeros(shapes_[index(name)], at::kFloat);
  if (const auto* part = this->part(name))
    store_->read_masters(*part, 0, part->end - part->begin, values.mutable_data_ptr<float>() + part->begin);
  return everywhere(values);
}

at::Tensor OptimiserCase::state(const std::string& name, const std::string& kind) {
  const plan::ParamSpec& param = spec_.units[0].params[static_cast<size_t>(index(name))];
  const std::vector<plan::StateSpec> states = states_(param);
  const auto state = std::ranges::find(states, kind, &plan::StateSpec::kind);
  if (state == states.end()) return {};
  at::Tensor flat = at::zeros({state->values(0, param.numel())}, scalar_type(state->type));
  if (const auto* part = this->part(name); part && (state->whole == 0 || part->begin == 0)) {
    const engine::Store::Range held = store_->state(*part, static_cast<size_t>(state - states.begin()));
    const int64_t size = size_of(state->type), first = state->whole > 0 ? 0 : part->begin / state->per;
    ops::copy_bytes(static_cast<uint8_t*>(flat.mutable_data_ptr()) + first * size, held.data,
                    state->values(part->begin, part->end) * size, held.on_device);
  }
  flat = everywhere(flat);
  return state->per == 1 && state->whole == 0 ? flat.view(shapes_[index(name)]) : flat;
}

}  // namespace tessera::tools
