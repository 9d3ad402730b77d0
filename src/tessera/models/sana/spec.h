#pragma once
// The Sana denoisers: their units, how latents become packed tokens and back, and the names of their tensors.
//
//   Sana model(config);
//   net::Batch batch = model.pack({{.x = latent, .t = 750, .context = caption}});    // latent [C, 1, H, W] of a picture
//   std::vector<Tensor> velocity = model.unpack(net::run_plain(model.units(), weights, batch), batch);
//
// A caption's rows are its tokens without padding. Extras of a sample: "t" [F] (a timestep a frame, video),
// "image_latent" [C, 1, H, W] (video: the first frame is this and has t = 0), "guidance" [1] (Sprint: the strength of
// the guidance, before the config's factor; 4.5 without it). Sprint's timesteps of 0..1 are t / 1000 here. "chunks" [n] (video: the
// frames at which its chunks begin), "first_frame" [1] (video: where a chunk begins in its clip).
//
// The Sana transformer as units: stem, blocks, head.
//
//   for (const auto& unit : make_units(config)) flow = unit->forward(ctx, flow);
//
// Shapes: B samples with T tokens together, d channels, n text rows together, R rows of time.
//   stem   in: patches [T, c_in * patch], text [n, d_text], sinusoid [R, 256]; then, of models that have them, the
//              guidance's sinusoid [R, 256] and the table of positions [T, d]
//   stream: x [T, d];  conditioning: e [R, d], e6 [R, 6, d], context [n, d]
//   head   out: [T, patch * c_out], channel fastest
// A sample has one row of time, or one for each of its frames' timesteps; Tokens::rows maps tokens to rows.
#include "tessera/models/common/denoiser.h"
#include "tessera/models/sana/files.h"

namespace tessera::models::sana {

/// Row spaces: the tokens, and each sample's text.
enum Space { kTokens, kText };

std::vector<std::unique_ptr<net::Unit>> make_units(const Config& config);

class Sana final : public FamilyDenoiser<Config> {
 public:
  explicit Sana(const Config& config);

  net::Batch pack(const std::vector<net::Sample>& samples) const override;
  net::Conditions conditions() const override;
  std::vector<std::map<std::string, at::Tensor>> unpack_input_grads(
      const std::vector<at::Tensor>& grads, const net::Batch& batch,
      const std::vector<net::Sample>& samples) const override;
  std::vector<at::Tensor> unpack(const at::Tensor& out, const net::Batch& batch) const override;
  at::Tensor pack_target(const at::Tensor& target) const override;
  int64_t numbers_beside() const override { return config_.logvar; }
  std::vector<bool> moving_conditioning() const override;
  std::vector<at::Tensor> pack_directions(const net::Batch& batch,
                                          const std::vector<net::Direction>& directions) const override;
  std::unique_ptr<net::Denoiser> teacher_form() const override;
  std::string foreign_name(const std::string& name, const std::string& naming) const override;
  std::string file_naming() const override { return "diffusers"; }  // with its config.json
  std::string why_not_trained() const override;

 private:
  Initial initial(const plan::ParamSpec& param) const override;
};

}  // namespace tessera::models::sana
