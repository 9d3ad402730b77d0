#pragma once
// A diffusion transformer run once through the engine, on any mesh: outputs, loss and all gradients, on every rank.
//
//   DitRun run = run_dit(context, *model, samples, context.folder / "model.safetensors", samples.size());
//   run.outputs[0]; run.loss; run.grads["blocks.0.ffn.0.weight"]; run.input_grads[0]["x"];
#include "tessera/engine/parallel.h"
#include "tessera/engine/store/transfer.h"
#include "tessera/net/model.h"
#include "tessera/tools/verify/case.h"

namespace tessera::tools {

struct DitRun {
  std::vector<at::Tensor> outputs;                             ///< of each sample
  double loss = 0;                                             ///< sum of mean((out - target)^2), over `of`
  std::vector<std::map<std::string, at::Tensor>> input_grads;  ///< of each sample: x, context and its extras
  std::vector<std::pair<std::string, at::Tensor>> grads;       ///< of every parameter, by its official name
};

/// `weights` of any naming. `of`: samples that the loss is the mean
/// of; more than are given here when others serve the rest. `adapters`: values of the adapters' parameters, which
/// weights lack. All ranks take part. Throws UserError (input).
DitRun run_dit(const CaseContext& context, const net::Denoiser& model, const std::vector<net::Sample>& samples,
               const std::filesystem::path& weights, size_t of, const engine::Fill& adapters = {});

// The parts of such a run, for cases whose steps run several networks or none of their own.

/// Values that live on whichever rank computed them, brought to all ranks: one flat list of doubles, exact for fp32.
class Shared {
 public:
  void put(const std::string& name, const at::Tensor& value) { mine_[name] = value.cpu().contiguous(); }
  /// `shapes`: every name that exists on some rank, the same list on all.
  std::map<std::string, at::Tensor> gather(
      comm::Comm& comm, const std::vector<std::pair<std::string, std::vector<int64_t>>>& shapes) const;

 private:
  std::map<std::string, at::Tensor> mine_;
};

using UnitList = std::vector<std::unique_ptr<net::Unit>>;
using FillStore = std::function<void(engine::Store& store)>;

/// All samples in one micro-batch, whose units keep, recompute and rebuild in turn, so that all three are held against the
/// reference.
plan::Plan plan_of_case(const plan::ModelSpec& spec, const Mesh& mesh, int64_t samples);

/// A training step up to its gradients, which all ranks get.
struct StepGradients {
  std::vector<std::map<std::string, at::Tensor>> inputs;       ///< of each sample
  std::vector<std::pair<std::string, at::Tensor>> parameters;  ///< by official names
  double loss = 0;                                             ///< the sum of what `loss` gave
};
/// What a rank has of a step: its samples from the `first` on.
struct StepPart {
  const net::Batch& batch;
  size_t first = 0, count = 0;
  const engine::Parallel& parallel;
};
/// `gradient`: of this rank's rows of the last unit. `loss`: this rank's part, once they are there; null: none. `history`:
/// of chunks before, or null.
StepGradients run_gradients(const CaseContext& context, const net::Denoiser& model, const UnitList& units,
                            const std::vector<net::Sample>& samples, const FillStore& fill,
                            const std::function<at::Tensor(const at::Tensor& rows, const StepPart& part)>& gradient,
                            const std::function<double()>& loss = nullptr,
                            const std::shared_ptr<net::History>& history = nullptr);

/// The samples of a case: in.x.0, in.context.0, in.t, in.target.0, extras.
std::vector<net::Sample> read_samples(const CaseFile& file, const net::Denoiser& model);

/// The rule of grad and grad_in: tolerance * max(1e-2, largest expected value).
std::function<double(double)> by_largest(double tolerance);

}  // namespace tessera::tools
