#pragma once
// The Sana denoisers: their units, how latents become packed tokens and back, and the names of their tensors.
//
//   Sana model(config);
//   net::Batch batch = model.pack({{.x = latent, .t = 750, .context = caption}});    // latent [C, 1, H, W] of a picture
//   std::vector<Tensor> velocity = model.unpack(net::run_plain(model.units(), weights, batch), batch);
//
// A caption's rows are its tokens without padding. Extras of a sample: "t" [F] (a timestep a frame, video),
// "image_latent" [C, 1, H, W] (video: the first frame is this and has t = 0), "guidance" [1] (Sprint: the strength of
// the guidance, before the config's factor; 4.5 without it). Sprint's timesteps of 0..1 are t / 1000 here.
#include <numeric>

#include "tessera/models/sana/config.h"
#include "tessera/net/model.h"

namespace tessera::models::sana {

class Sana final : public net::Denoiser {
 public:
  explicit Sana(const Config& config);

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
  std::string foreign_name(const std::string& name, const std::string& naming) const override;
  std::string file_naming() const override { return "diffusers"; }  // with its config.json
  std::string why_not_trained() const override;
  void initialise(const plan::ParamSpec& param, uint64_t seed, int64_t first, int64_t count, float* out) const override;
  std::string config_json() const override { return to_json(config_); }
  /// What divides these divides the heads of both attentions.
  int64_t heads() const override { return std::gcd(config_.num_heads, config_.cross_heads); }
  int64_t in_channels() const override { return config_.in_channels; }
  int64_t context_dim() const override { return config_.caption_dim; }
  int64_t context_length() const override { return config_.caption_len; }

  const Config& config() const { return config_; }

 private:
  const Config config_;
  std::vector<std::unique_ptr<net::Unit>> units_;
};

}  // namespace tessera::models::sana
