#pragma once
// The parameters of an optimiser's golden case in an engine's store, sharded over the ranks of the mesh: updated as
// training updates them.
//
//   OptimiserCase state(context, file, adamw, format);
//   for (int64_t step = 1; step <= steps; ++step) state.step(adamw, {step, lr, scale});
//   state.param("big"); state.state("big", "exp_avg");
#include "tessera/engine/store/updates.h"
#include "tessera/tools/verify/case.h"

namespace tessera::tools {

/// "out.<run>.param.<n>" -> the runs, in file order.
std::vector<std::string> optimiser_runs(const CaseFile& file);

/// Settings of a run: its own, under "runs" of config.json, stand before those of all.
class RunSettings {
 public:
  RunSettings(const Settings& config, const std::string& name);

  bool has(const char* key) const { return own_.contains(key) || all_.contains(key); }
  Settings at(const char* key) const;
  template <class T>
  T value(const char* key, T absent) const {
    if (!has(key) || at(key).is_null()) return absent;
    return at(key).template get<T>();
  }
  /// Of a number under one of two names.
  double either(const char* key, const char* other) const { return at(has(key) ? key : other); }
  /// Throws UserError (input) unless the setting is absent or this: `what` is what this build has.
  void expect(const char* key, const Json& only) const;
  /// The run's own that were passed over, as one text; empty: none.
  std::string unread() const;

 private:
  Settings all_, own_;
};

/// Runs `check` for a run of the case; where its settings are none of this build, the run alone is refused.
void check_run_of(CaseFile& file, const Settings& config, const std::string& name,
                  const std::function<void(const RunSettings& run)>& check);

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
  std::vector<comm::Group*> sums_;           ///< by buffer; null: the tensors of one rank
  std::vector<plan::MatrixParts> matrices_;  ///< likewise, of optimisers that update whole matrices
  at::Tensor work_;                          ///< their memory
  std::unique_ptr<engine::Store> store_;
  std::vector<engine::Store::Part> parts_;
};

}  // namespace tessera::tools
