#pragma once
// Wan's VACE denoisers: text-to-video transformers with a second stream of blocks, which reads a clip, a mask and
// pictures of references, and after some of the blocks adds what it made of them.
//
//   Vace model(config);
//   sample.extra = model.guide(codec, {17, 480, 832, {{"guide", clip}, {"guide_mask", mask}}, {picture}});
//   sample.x = noisy latents of the picture and of the clip, [16, 1 + 5, 60, 104]
//
// Extras: "vace_context" [96, R + F, H, W], of the size of x, whose first R frames are those of references; "vace_scale"
// [1] or [vace blocks], factors of what they add (1 when absent).
#include "tessera/models/common/denoiser.h"
#include "tessera/models/common/golden_case.h"
#include "tessera/models/wan/spec.h"

namespace tessera::models::wan {

struct VaceConfig {
  Config base;
  std::vector<int64_t> layers;  ///< blocks that are followed by what a vace block adds, ascending, the first is 0
  int64_t vace_dim = 96;        ///< channels of the context

  bool operator==(const VaceConfig&) const = default;
};

/// Whether a config.json, of either form, is of this model.
bool is_vace_config(std::string_view json);
/// Throws UserError (input) naming file and field.
VaceConfig parse_vace_config(std::string_view json, const std::string& file);
std::string to_json(const VaceConfig& config);
const std::vector<std::pair<std::string, VaceConfig>>& vace_presets();

class Vace final : public FamilyDenoiser<VaceConfig> {
 public:
  explicit Vace(const VaceConfig& config);

  net::Batch pack(const std::vector<net::Sample>& samples) const override;
  net::Conditions conditions() const override;
  std::map<std::string, at::Tensor> guide(const net::VideoCodec& codec, const net::Guides& guides) const override;
  at::Tensor with_references(const at::Tensor& latent, const std::map<std::string, at::Tensor>& extra) const override;
  net::Sample blank(const std::array<int64_t, 4>& latent) const override;
  std::vector<std::map<std::string, at::Tensor>> unpack_input_grads(
      const std::vector<at::Tensor>& grads, const net::Batch& batch,
      const std::vector<net::Sample>& samples) const override;
  std::string foreign_name(const std::string& name, const std::string& naming) const override;
  double released_boundary() const override { return wan::released_boundary(Type::t2v); }

 private:
  Initial initial(const plan::ParamSpec& param) const override;
  const Wan base_;  ///< packs all but the context
};

/// The pixels that a context is made of.
struct VaceSource {
  at::Tensor video;                    ///< [3, F, H, W] in [-1, 1]
  at::Tensor mask;                     ///< [1, F, H, W]: above 0.5 is to be generated; divides the video
  at::Tensor shown;                    ///< [1, F, H, W]: the mask that the model is shown, as it is
  std::vector<at::Tensor> references;  ///< [3, 1, H, W] each
};
/// [2 C + 64, R + f, h, w]: the latent of what is kept, of what is to be changed, and the mask, a channel for each pixel
/// of a cell; in front the latents of the references.
at::Tensor vace_context(const net::VideoCodec& codec, const VaceSource& source);
/// A picture [3, h, w] in the middle of a white one of this size, or of one of the value `around`, as large as it fits:
/// [3, 1, H, W].
at::Tensor letterboxed(const at::Tensor& picture, int64_t height, int64_t width, double around = 1);

DenoiserCase vace_case();
std::vector<InputCase> vace_input_cases();

}  // namespace tessera::models::wan
