#pragma once
// One network of a training step that has several (a student, its teacher, a critic), run through the engine on any mesh:
// forward, in forward mode, up to some blocks, and backward from given gradients. Every rank gets all results, so what a
// step makes of them (diffusion/) is the same on all.
//
//   StepNetwork student(context, models::make_denoiser({.config_text = text}), "model.safetensors");
//   std::vector<Outputs> out = student.forward(samples);
//   Gradients gradients = student.backward(samples, at_outputs);
#include "tessera/net/passes.h"
#include "tessera/tools/verify/dit_run.h"

namespace tessera::tools {

class StepNetwork {
 public:
  /// What the network says of a sample, or a gradient at that.
  struct Outputs {
    at::Tensor prediction;            ///< of the latent's shape
    std::vector<double> beside = {};  ///< the numbers of net::Denoiser::numbers_beside
    at::Tensor tangent = {};          ///< of the prediction, in forward mode
  };
  struct Gradients {
    std::map<std::string, at::Tensor> parameters;  ///< by their official names
    std::vector<at::Tensor> x;                     ///< at each sample's latent
  };
  using Samples = std::vector<net::Sample>;
  using Rows = std::vector<at::Tensor>;  ///< of each sample, [tokens, columns]

  /// `weights`: a file of the case, in any naming; all ranks hold it whole, as a golden case is small. Throws UserError
  /// (input).
  StepNetwork(const CaseContext& context, std::unique_ptr<net::Denoiser> model, const std::string& weights);
  /// The model that the case's config.json describes.
  static std::unique_ptr<net::Denoiser> described(const CaseContext& context);

  const net::Denoiser& model() const { return *model_; }
  /// By official names; each call reads them anew.
  std::map<std::string, at::Tensor>& weights() { return weights_; }

  /// Calls from here on are of chunks that these precede; null: of whole clips (net::History).
  void follow(std::shared_ptr<net::History> history) { history_ = std::move(history); }

  std::vector<Outputs> forward(const Samples& samples) const;
  std::vector<Outputs> forward_mode(const Samples& samples, const std::vector<net::Direction>& directions) const;
  Gradients backward(const Samples& samples, const std::vector<Outputs>& at_outputs) const;
  /// What these blocks return, side by side.
  Rows features(const Samples& samples, const std::set<int64_t>& blocks) const;
  /// At each sample's latent, from the gradients at such features.
  Rows backward_from_features(const Samples& samples, const std::set<int64_t>& blocks, const Rows& at_features) const;

 private:
  using Pack = std::function<net::Batch(const Samples& samples, int64_t first)>;
  Rows rows_of(const UnitList& units, const Samples& samples, const Pack& pack) const;
  Gradients gradients_of(const UnitList& units, const Samples& samples, const Rows& at_rows) const;
  std::vector<at::Tensor> predictions(const Samples& samples, const Rows& rows) const;
  void fill(engine::Store& store) const;

  const CaseContext& context_;
  const std::unique_ptr<net::Denoiser> model_;
  std::map<std::string, at::Tensor> weights_;
  std::shared_ptr<net::History> history_;
};

}  // namespace tessera::tools
