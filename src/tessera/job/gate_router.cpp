#include "tessera/job/gate_router.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/base/check.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/ops/adamw.h"
#include "tessera/optim/adamw.h"

namespace tessera::job {

namespace {

namespace fs = std::filesystem;

constexpr const char* kGateFile = "gate.safetensors";

diffusion::GateOptions gate_options(const recipe::Recipe& recipe, size_t experts, int64_t text) {
  return {experts, text, recipe.experts.temperature, static_cast<uint64_t>(recipe.run.seed)};
}

}  // namespace

GateRouter::GateRouter(const recipe::Recipe& recipe, size_t experts, int64_t text)
    : recipe_(recipe),
      gate_(gate_options(recipe, experts, text)),
      exp_avg_(gate_.values().size(), 0.0F),
      exp_avg_sq_(exp_avg_) {}

double GateRouter::update(std::vector<float> gradient, double lr, const recipe::Recipe::Train& settings) {
  const double norm = std::sqrt(ops::sum_of_squares(gradient.data(), static_cast<int64_t>(gradient.size())));
  ops::AdamWStep step{.step = ++updates_,
                      .lr = lr,
                      .beta1 = settings.betas[0],
                      .beta2 = settings.betas[1],
                      .eps = settings.eps,
                      .grad_scale = optim::clip_coefficient(norm, settings.clip_norm)};
  for (const auto& part : gate_.parts()) {
    step.weight_decay = part.name == "gate.weight" ? settings.weight_decay : 0;
    ops::adamw(gate_.values().data() + part.first, exp_avg_.data() + part.first, exp_avg_sq_.data() + part.first,
               gradient.data() + part.first, static_cast<int64_t>(part.count), step);
  }
  return norm;
}

std::vector<at::Tensor> GateRouter::predict(double t, const at::Tensor& context,
                                            const std::function<std::vector<at::Tensor>(size_t expert)>& run) const {
  const at::Tensor rows = context.contiguous();
  const std::vector<float> inputs = diffusion::gate_inputs(
      t, {rows.const_data_ptr<float>(), static_cast<size_t>(rows.numel())}, rows.size(0), rows.size(1));
  const diffusion::Gate::Answer answer = gate_.ask(inputs);
  if (hard()) return run(answer.chosen);
  std::vector<at::Tensor> sums;
  for (size_t e = 0; e < gate_.experts(); ++e) {
    const std::vector<at::Tensor> own = run(e);
    for (size_t b = 0; b < own.size(); ++b)
      if (e == 0)
        sums.push_back(own[b] * answer.weights[e]);
      else
        sums[b].add_(own[b], answer.weights[e]);
  }
  return sums;
}

std::vector<checkpoint::Piece> GateRouter::pieces() const {
  std::vector<checkpoint::Piece> all;
  for (const auto& part : gate_.parts())
    for (const auto& [kind, values] :
         {std::pair("param", &gate_.values()), {"exp_avg", &exp_avg_}, {"exp_avg_sq", &exp_avg_sq_}})
      all.push_back(
          {checkpoint::resolved({part.name, kind, DType::f32, part.shape}, "train.gate"), values->data() + part.first});
  return all;
}

void GateRouter::write(checkpoint::Manifest& manifest) const { manifest.extra["gate"] = {{"updates", updates_}}; }

void GateRouter::resume(checkpoint::TrainingCheckpoint& saved) {
  if (!saved.contains("gate.weight", "param"))
    throw UserError(Exit::input, "run.resume", saved.path().string() + " has experts and no gate",
                    "use a checkpoint of a run with experts.router = \"gate\", or another run.out");
  for (const auto& part : gate_.parts())
    for (const auto& [kind, values] :
         {std::pair("param", &gate_.values()), {"exp_avg", &exp_avg_}, {"exp_avg_sq", &exp_avg_sq_}})
      saved.read({part.name, kind, DType::f32, part.shape}, values->data() + part.first);
  updates_ = saved.manifest().extra.at("gate").value("updates", int64_t{0});
}

bool GateRouter::is_in(const fs::path& folder) { return fs::exists(folder / kGateFile); }

void GateRouter::save_model(const fs::path& folder) const {
  std::vector<checkpoint::TensorData> tensors;
  for (const auto& part : gate_.parts())
    tensors.push_back({part.name, DType::f32, part.shape, gate_.values().data() + part.first});
  checkpoint::make_folder(folder, "check run.out");
  checkpoint::write_safetensors(folder / kGateFile, tensors, {{"format", "pt"}});
}

void GateRouter::load_model(const fs::path& folder) {
  check_input(is_in(folder), "experts.router", folder.string() + " has no " + kGateFile,
              "give a folder that a run with experts.router = \"gate\" exported, such as its run.out/model");
  const auto file = checkpoint::SafetensorsFile::open(folder / kGateFile);
  for (const auto& part : gate_.parts()) {
    const auto& entry = file.at(part.name);
    check_input(entry.shape == part.shape, "experts.router",
                file.path().string() + ": " + part.name + ": expected " + checkpoint::shape_text(part.shape) +
                    ", file has " + checkpoint::shape_text(entry.shape),
                "rows are experts (experts.count), columns belong to the width of data.text_encoder");
    file.read_f32(part.name, 0, entry.count(), gate_.values().data() + part.first);
  }
}

}  // namespace tessera::job
