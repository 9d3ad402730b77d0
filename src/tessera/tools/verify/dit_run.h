#pragma once
// A diffusion transformer run once through the engine, on any mesh: outputs, loss and all gradients, on every rank.
//
//   DitRun run = run_dit(context, *model, samples, context.folder / "model.safetensors", samples.size());
//   run.outputs[0]; run.loss; run.grads["blocks.0.ffn.0.weight"]; run.input_grads[0]["x"];
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

/// The samples of a case: in.x.0, in.context.0, in.t, in.target.0, extras.
std::vector<net::Sample> read_samples(const CaseFile& file, const net::Denoiser& model);

/// The rule of grad and grad_in: tolerance * max(1e-2, largest expected value).
std::function<double(double)> by_largest(double tolerance);

}  // namespace tessera::tools
