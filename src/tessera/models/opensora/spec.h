#pragma once
// The MMDiT denoisers: their units, how latents become packed tokens and back, and the names of their tensors.
//
//   OpenSora model(config);
//   net::Batch batch = model.pack({{.x = latent, .t = 750, .context = caption, .extra = {{"pooled", pooled}}}});
//   std::vector<Tensor> velocity = model.unpack(net::run_plain(model.units(), weights, batch), batch);
//
// A sample's tokens are its text, always as many rows as config().context_len, and then its video. Its program encodes
// captions padded to that length and attends to the padding: rows that a caption lacks are zero here. Extras of a sample:
// "pooled" [D] (CLIP's pooled text; zeros without it), "guidance" [1] (models with its embedding; 4 without it), and of
// models with `cond` one of "image_latent" [C, 1, H, W] (the first latent frame) and "cond" [1 + C, F, H, W] (the mask of
// the frames that are given, and these: diffusion/given_frames.h). Predictions are noise - data of every frame, also of given ones.
#include "tessera/models/opensora/config.h"
#include "tessera/net/model.h"

namespace tessera::models::opensora {

class OpenSora final : public net::Denoiser {
 public:
  explicit OpenSora(const Config& config);

  const std::vector<std::unique_ptr<net::Unit>>& units() const override { return units_; }
  std::vector<std::unique_ptr<net::Unit>>* adaptable_units() override { return &units_; }
  net::Batch pack(const std::vector<net::Sample>& samples) const override;
  net::Conditions conditions() const override;
  net::Sample blank(const std::array<int64_t, 4>& latent) const override;
  std::vector<std::map<std::string, at::Tensor>> unpack_input_grads(
      const std::vector<at::Tensor>& grads, const net::Batch& batch,
      const std::vector<net::Sample>& samples) const override;
  std::vector<at::Tensor> unpack(const at::Tensor& out, const net::Batch& batch) const override;
  at::Tensor pack_target(const at::Tensor& target) const override;
  int64_t token_count(const std::array<int64_t, 4>& latent) const override;
  /// "official": as its config says that its program has them.
  std::string foreign_name(const std::string& name, const std::string& naming) const override;
  void initialise(const plan::ParamSpec& param, uint64_t seed, int64_t first, int64_t count, float* out) const override;
  std::string config_json() const override { return to_json(config_); }
  int64_t heads() const override { return config_.num_heads; }
  int64_t in_channels() const override { return config_.latent_channels(); }
  int64_t context_dim() const override { return config_.context_dim; }
  int64_t context_length() const override { return config_.context_len; }

  const Config& config() const { return config_; }

 private:
  const Config config_;
  std::vector<std::unique_ptr<net::Unit>> units_;
};

}  // namespace tessera::models::opensora
