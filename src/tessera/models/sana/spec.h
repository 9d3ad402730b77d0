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
#include "tessera/models/common/denoiser.h"
#include "tessera/models/sana/config.h"

namespace tessera::models::sana {

class Sana final : public FamilyDenoiser<Config> {
 public:
  explicit Sana(const Config& config);

  net::Batch pack(const std::vector<net::Sample>& samples) const override;
  net::Conditions conditions() const override;
  std::vector<std::map<std::string, at::Tensor>> unpack_input_grads(
      const std::vector<at::Tensor>& grads, const net::Batch& batch,
      const std::vector<net::Sample>& samples) const override;
  std::string foreign_name(const std::string& name, const std::string& naming) const override;
  std::string file_naming() const override { return "diffusers"; }  // with its config.json
  std::string why_not_trained() const override;

 private:
  Initial initial(const plan::ParamSpec& param) const override;
};

}  // namespace tessera::models::sana
