// Kind "grad_scaler": scale, growth and skipped steps for a given pattern of infinite and NaN gradients.
#include "tessera/optim/grad_scaler.h"

#include "tessera/base/check.h"
#include "tessera/ops/adamw.h"
#include "tessera/tools/verify/case.h"

namespace tessera::tools {

CaseResults verify_grad_scaler(const CaseContext& context) {
  const Settings& config = context.config;
  CaseFile file(context.name, context.case_files().front());
  optim::GradScaler scaler(
      {config.at("init_scale"), config.at("growth_factor"), config.at("backoff_factor"), config.at("growth_interval")});
  const double lr = config.at("lr");
  const at::Tensor grads = file.tensor("in.grad"), found = file.tensor("in.found").to(at::kLong);
  at::Tensor param = file.tensor("in.param").clone();
  check_input(grads.dim() == 2 && found.dim() == 1 && found.size(0) == grads.size(0) &&
                  grads.size(1) == param.numel() && param.numel() > 0,
              "verify", file.case_name() + "/" + file.file_name() + ": in.grad, in.found and in.param do not agree",
              "expected [n, k], [n] and [k]");
  const int64_t steps = grads.size(0);
  at::Tensor scale = at::empty({steps}, at::kFloat), params = at::empty_like(grads);
  at::Tensor tracker = at::empty({steps}, at::kLong), stepped = at::empty({steps}, at::kLong);
  for (int64_t i = 0; i < steps; ++i) {
    // As in training: the scaled gradient's norm tells all ranks whether it is whole, and unscaling is part of the
    // step.
    at::Tensor scaled = grads[i] * scaler.scale();
    if (found[i].item<int64_t>() == 1) scaled[0] = std::numeric_limits<float>::infinity();
    if (found[i].item<int64_t>() == 2) scaled[0] = std::numeric_limits<float>::quiet_NaN();
    const float unscale = 1 / scaler.scale();
    const bool steps_now =
        scaler.update(std::isfinite(ops::sum_of_squares(scaled.const_data_ptr<float>(), scaled.numel())));
    if (steps_now) param.sub_(scaled * unscale, lr);
    scale[i] = scaler.scale();
    tracker[i] = scaler.growth_tracker();
    stepped[i] = steps_now ? 1 : 0;
    params[i].copy_(param);
  }
  file.compare("out.scale", scale, 0.0);
  file.compare("out.growth_tracker", tracker, 0.0);
  file.compare("out.stepped", stepped, 0.0);
  file.compare("out.param", params, 1e-6);
  CaseResults results;
  results.push_back(std::move(file));
  return results;
}

}  // namespace tessera::tools
