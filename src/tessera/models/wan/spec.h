#pragma once
// The Wan denoisers (text, image, first and last frame to video): their units, how latents become packed tokens and
// back, and the names of their tensors.
//
//   Wan model(preset);
//   net::Batch batch = model.pack({{.x = latent, .t = 750, .context = text}});
//   std::vector<Tensor> velocity = model.unpack(net::run_plain(model.units(), weights, batch), batch);
//
// Extras of a sample: "y" [c_y, F, H, W] (i2v, flf2v), "clip_fea" [rows, d_image] (with an image branch),
// "image_latent" [C, 1, H, W] (ti2v: the first frame is this, its tokens have t = 0), "t" [L] (a timestep a token).
#include "tessera/models/wan/config.h"
#include "tessera/net/model.h"

namespace tessera::models::wan {

class Wan final : public net::Denoiser {
 public:
  explicit Wan(const Config& config);

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
  void initialise(const plan::ParamSpec& param, uint64_t seed, int64_t first, int64_t count, float* out) const override;
  std::string config_json() const override { return to_json(config_); }
  double released_boundary() const override { return wan::released_boundary(config_.type); }
  int64_t heads() const override { return config_.num_heads; }
  int64_t in_channels() const override { return config_.out_dim; }
  int64_t context_dim() const override { return config_.text_dim; }
  int64_t context_length() const override { return config_.text_len; }

  const Config& config() const { return config_; }

 private:
  const Config config_;
  std::vector<std::unique_ptr<net::Unit>> units_;
};

}  // namespace tessera::models::wan
