#pragma once
// The parameters of an optimiser's golden case in an engine's store of one rank: updated as training updates them.
//
//   OptimiserCase state(file, adamw, format);
//   for (int64_t step = 1; step <= steps; ++step) state.step(adamw, {step, lr, scale});
//   state.param("big"); state.state("big", "exp_avg");
#include "tessera/engine/store/store.h"
#include "tessera/tools/verify/case.h"

namespace tessera::tools {

/// "out.<run>.param.<n>" -> the runs, in file order.
std::vector<std::string> optimiser_runs(const CaseFile& file);

class OptimiserCase {
 public:
  /// in.param.<n> and in.grad.<n> ([steps, ...]). Throws UserError (input) where their shapes do not agree.
  OptimiserCase(const CaseFile& file, const net::UnitUpdate& update, plan::StateFormat format);

  /// The update of control.step (from 1), with that step's gradients.
  void step(const net::UnitUpdate& update, const net::StepControl& control);

  const std::vector<std::string>& names() const { return names_; }
  at::Tensor param(const std::string& name);                           ///< fp32, a copy
  at::Tensor state(const std::string& name, const std::string& kind);  ///< a copy; undefined when there is none

 private:
  const engine::Store::Part& part(const std::string& name) const;
  std::vector<std::string> names_;
  std::vector<std::vector<int64_t>> shapes_;
  std::vector<at::Tensor> grads_;
  std::unique_ptr<engine::Store> store_;
  std::vector<engine::Store::Part> parts_;
};

}  // namespace tessera::tools
