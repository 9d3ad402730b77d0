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
// Of VideoX-Fun's: "reference" [c_ref, 1, H, W], a picture whose tokens come at time 0, before the clip's (absent: no such tokens,
// which is another thing than a latent of zeros); "control" [C, F, H, W], the first channels of y where y has only the rest
// (absent: zeros); "y_camera" [c_rays, F, s * H, s * W], or "camera" [F', 16] of which the
// rays are made (absent: zeros, a clip whose camera is not known).
#include "tessera/models/common/denoiser.h"
#include "tessera/models/wan/config.h"

namespace tessera::models::wan {

class Wan final : public FamilyDenoiser<Config> {
 public:
  explicit Wan(const Config& config);

  net::Batch pack(const std::vector<net::Sample>& samples) const override;
  net::Conditions conditions() const override;
  net::Sample blank(const std::array<int64_t, 4>& latent) const override;
  std::vector<std::map<std::string, at::Tensor>> unpack_input_grads(
      const std::vector<at::Tensor>& grads, const net::Batch& batch,
      const std::vector<net::Sample>& samples) const override;
  std::vector<at::Tensor> unpack(const at::Tensor& out, const net::Batch& batch) const override;
  int64_t token_count(const std::array<int64_t, 4>& latent) const override;
  std::vector<bool> moving_conditioning() const override;
  std::vector<at::Tensor> pack_directions(const net::Batch& batch,
                                          const std::vector<net::Direction>& directions) const override;
  std::unique_ptr<net::Denoiser> teacher_form() const override;
  std::string foreign_name(const std::string& name, const std::string& naming) const override;
  double released_boundary() const override { return wan::released_boundary(config_.type); }

 private:
  Initial initial(const plan::ParamSpec& param) const override;
};

}  // namespace tessera::models::wan
