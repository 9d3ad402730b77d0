#pragma once
// HunyuanVideo-1.5's denoisers: their units, how latents become packed tokens and back, and the names of their tensors.
//
//   Hunyuan model(config);
//   net::Batch batch = model.pack({{.x = latent, .t = 750, .context = caption, .extra = {{"image_latent", first}}}});
//   std::vector<Tensor> velocity = model.unpack(net::run_plain(model.units(), weights, batch), batch);
//
// A sample's tokens are its video, and then its words: the rows of its picture, of its quoted text and of its caption, as
// many as there are. Its programs pad each of them and mask the padding everywhere; without it the result is the same.
// Extras of a sample: "glyphs" [n, D] (rows of quoted text); one of "image_latent" [C, 1, H, W] (the first latent frame)
// and "cond" [1 + C, F, H, W] (the mask of the frames that are given, and these: diffusion/given_frames.h); beside these
// "image" [n, D] (rows of the picture); and of step-distilled models "t_r" [1], the next timestep, 0 at the last step.
// Predictions are noise - data of every frame, also of given ones.
//
// As units: a stem, which refines the caption, blocks in which video and words have weights of their own, and a head.
//
//   for (const auto& unit : make_units(config)) flow = unit->forward(ctx, flow);
//
// Shapes: B samples with T tokens together; d channels.
//   stem   in: latent, given latent and mask [T, 2 C + 1] (of video tokens, zeros elsewhere), caption [n, d_text], glyphs
//              [g, d_g], picture [p, d_p], mean of the caption's rows [B, d_text], sinusoid of the time [B, 256], with
//              `meanflow` that of the next one
//   stream: x [T, d];  conditioning: vec [B, d]
//   head   out: [T, C], of which the video's rows are predictions
// Tokens::rows maps tokens to rows of the modulations: 2 s of sample s's video, 2 s + 1 of its words.
#include "tessera/models/common/denoiser.h"
#include "tessera/models/hunyuan/files.h"

namespace tessera::models::hunyuan {

/// Row spaces: the tokens, their two streams, and what the words are made of, which every rank has.
enum Space { kTokens, kVideo, kWords, kCaption, kGlyphs, kPicture };

/// Inputs of the stem.
enum StemInput { kLatents, kCaptionRows, kGlyphRows, kPictureRows, kCaptionMean, kTime, kNextTime };

std::vector<std::unique_ptr<net::Unit>> make_units(const Config& config);

class Hunyuan final : public FamilyDenoiser<Config> {
 public:
  explicit Hunyuan(const Config& config);

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
  std::string foreign_name(const std::string& name, const std::string& naming) const override;
  std::string why_not_trained() const override;

 private:
  Initial initial(const plan::ParamSpec& param) const override;
};

}  // namespace tessera::models::hunyuan
