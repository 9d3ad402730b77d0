#pragma once
// The parameters of an optimiser's golden case in an engine's store, sharded over the ranks of the mesh: updated as
// training updates them.
//
//   OptimiserCase state(context, file, adamw, format);
//   for (int64_t step = 1; step <= steps; ++step) state.step(adamw, {step, lr, scale});
//   state.param("big"); state.state("big", "exp_avg");
#include "tessera/engine/store/store.h"
#include "tessera/tools/verify/case.h"

namespace tessera::tools {

/// "out.<run>.param.<n>" -> the runs, in file order.
std::vector<std::string> optimiser_runs(const CaseFile& file);

class OptimiserCase {
 public:
  /// What the parameters begin as, and what each step has for them ([steps, ...]).
  struct Names {
    std::string start = "in.param.", steps = "in.grad.";
  };
  /// Throws UserError (input) where their shapes do not agree. All ranks make it and take its steps.
  OptimiserCase(const CaseContext& context, const CaseFile& file, const net::UnitUpdate& update,
                plan::StateFormat format);
  OptimiserCase(const CaseContext& context, const CaseFile& file, const net::UnitUpdate& update,
                plan::StateFormat format, const Names& names);

  /// The update of control.step (from 1), with that step's gradients; `gradient`: with what it makes of each tensor's
  /// elements [begin, end) of a rank and of those gradients.
  using Gradient = std::function<at::Tensor(const std::string& name, const at::Tensor& param, const at::Tensor& given,
                                            int64_t begin)>;
  void step(const net::UnitUpdate& update, const net::StepControl& control, const Gradient& gradient = {});
  net::Totals totals();  ///< of the last step, over all ranks

  const std::vector<std::string>& names() const { return names_; }
  // From all ranks, which ask for the same.
  at::Tensor param(const std::string& name);                           ///< fp32, a copy
  at::Tensor state(const std::string& name, const std::string& kind);  ///< a copy; undefined when there is none

 private:
  const engine::Store::Part* part(const std::string& name) const;  ///< null: this rank has none
  at::Tensor everywhere(at::Tensor own) const;
  int index(const std::string& name) const;
  std::vector<std::string> names_;
  std::vector<std::vector<int64_t>> shapes_;
  std::vector<at::Tensor> grads_;
  comm::Comm* comm_;
  plan::ModelSpec spec_;
  plan::StatesOf states_;
  std::vector<comm::Group*> sums_;  ///< by buffer; null: the tensors of one rank
  std::unique_ptr<engine::Store> store_;
  std::vector<engine::Store::Part> parts_;
};

}  // namespace tessera::tools
