#pragma once
// Wan 2.2's speech-to-video denoiser: packs latents, audio and pose into tokens, and unpacks predictions.
//
//   S2v model(config);
//   net::Batch batch = model.pack({{.x = latent, .t = 750, .context = text, .extra = {{"audio", states}}}});
//   std::vector<Tensor> velocity = model.unpack(net::run_plain(model.units(), weights, batch), batch);
//
// x is [C, 1 + F, H, W]: a reference image, then the noisy clip. The first frame must be clean, or extra "image_latent"
// [C, 1, H, W] replaces it. The first frame of the prediction is zero, so that samplers leave it unchanged.
// Other extras: "audio" [25, 4 F, d_audio], hidden states at four a latent frame (silence, zeros, when absent); "pose"
// [C_pose, 1 + F, H, W], its first frame is not read (zeros when absent); "motion" [C, M, H, W], latent frames before
// the clip, of which the last 19 are used, with zeros before fewer (absent: no motion tokens). With motion, H and W are
// multiples of 8.
#include "tessera/models/common/denoiser.h"
#include "tessera/models/wan/config.h"

namespace tessera::models::wan {

class S2v final : public FamilyDenoiser<S2vConfig> {
 public:
  explicit S2v(const S2vConfig& config);

  net::Batch pack(const std::vector<net::Sample>& samples) const override;
  net::Conditions conditions() const override;
  net::Sample blank(const std::array<int64_t, 4>& latent) const override;
  std::vector<std::map<std::string, at::Tensor>> unpack_input_grads(
      const std::vector<at::Tensor>& grads, const net::Batch& batch,
      const std::vector<net::Sample>& samples) const override;
  std::vector<at::Tensor> unpack(const at::Tensor& out, const net::Batch& batch) const override;
  std::string foreign_name(const std::string& name, const std::string& naming) const override;
  double released_boundary() const override { return wan::released_boundary(Type::t2v); }

 private:
  Initial initial(const plan::ParamSpec& param) const override;
};

}  // namespace tessera::models::wan
