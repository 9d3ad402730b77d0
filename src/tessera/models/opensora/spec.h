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
//
// The MMDiT as units: stem, blocks in which video and text have weights of their own, blocks in which they share them,
// head.
//
//   for (const auto& unit : make_units(config)) flow = unit->forward(ctx, flow);
//
// Shapes: B samples with T tokens together, of each first its text rows, n together, and then those of its video; d channels.
//   stem   in: patches [T, c_in], with `cond` mask and given latent [T, c_cond] (both of video tokens, zeros elsewhere),
//              text [n, d_text], sinusoid of the time [B, 256], with `guidance` that of the guidance, pooled text [B, d_p]
//   stream: x [T, d];  conditioning: vec [B, d]
//   head   out: [T, c_in], of which the video's rows are predictions
// Tokens::rows maps tokens to rows of the modulations: 2 s of sample s's video, 2 s + 1 of its text.
#include "tessera/models/common/denoiser.h"
#include "tessera/models/opensora/files.h"

namespace tessera::models::opensora {

/// Row spaces: the tokens, and their two streams.
enum Space { kTokens, kVideo, kText };

std::vector<std::unique_ptr<net::Unit>> make_units(const Config& config);

class OpenSora final : public FamilyDenoiser<Config> {
 public:
  explicit OpenSora(const Config& config);

  net::Batch pack(const std::vector<net::Sample>& samples) const override;
  net::Conditions conditions() const override;
  std::vector<std::map<std::string, at::Tensor>> unpack_input_grads(
      const std::vector<at::Tensor>& grads, const net::Batch& batch,
      const std::vector<net::Sample>& samples) const override;
  std::vector<at::Tensor> unpack(const at::Tensor& out, const net::Batch& batch) const override;
  at::Tensor pack_target(const at::Tensor& target) const override;
  int64_t token_count(const std::array<int64_t, 4>& latent) const override;
  std::vector<bool> moving_conditioning() const override;
  std::vector<at::Tensor> pack_directions(const net::Batch& batch,
                                          const std::vector<net::Direction>& directions) const override;
  /// "official": as its config says that its program has them.
  std::string foreign_name(const std::string& name, const std::string& naming) const override;

 private:
  Initial initial(const plan::ParamSpec& param) const override;
};

}  // namespace tessera::models::opensora
