#pragma once
// Wan 2.2's Animate denoiser: an image-to-video transformer whose clip follows a video of poses, added to its patches,
// and a video of a face, which adapters after every fifth block attend to frame by frame.
//
//   Animate model(config);
//   net::Batch batch = model.pack({{.x = latent, .t = 750, .context = text, .extra = {{"y", y}, {"face", pixels}, ...}}});
//
// x is [C, F, H, W]: the latent of a reference picture, then of the clip; all of it is noisy. Extras: "y" and "clip_fea" as
// image-to-video models have them, "pose_latents" [C, F - 1, H, W], and "face" [3, 4 (F - 2) + 1, S, S], pixels in [-1, 1].
#include "tessera/models/common/denoiser.h"
#include "tessera/models/common/golden_case.h"
#include "tessera/models/wan/spec.h"

namespace tessera::models::wan {

struct AnimateConfig {
  Config base;                    ///< of type i2v
  int64_t motion_dim = 512;       ///< channels of a face frame's motion (motion_encoder_dim)
  int64_t face_size = 512;        ///< side of face frames in pixels, a power of two (motion_encoder_size)
  std::vector<int64_t> channels;  ///< of the motion encoder at a side of face_size, face_size / 2, ... 4
  int64_t style_dim = 512;        ///< what its convolutions end in (motion_style_dim)
  int64_t directions = 20;        ///< of motion (motion_dim)
  int64_t face_hidden = 1024;     ///< of the face encoder
  int64_t face_heads = 4;         ///< face tokens of a latent frame, without the learned one
  int64_t frames_at_once = 8;     ///< of faces, in the motion encoder's convolutions (motion_encoder_batch_size)

  int64_t face_tokens() const { return face_heads + 1; }  ///< of a latent frame
  bool operator==(const AnimateConfig&) const = default;
};

/// Whether a config.json, of either form, is of this model.
bool is_animate_config(std::string_view json);
/// Throws UserError (input) naming file and field.
AnimateConfig parse_animate_config(std::string_view json, const std::string& file);
std::string to_json(const AnimateConfig& config);
const std::vector<std::pair<std::string, AnimateConfig>>& animate_presets();

/// Row space after those of network.h: the face tokens of each sample's latent frames.
inline constexpr int kFace = 3;
/// Latent frames that a clip of face frames belongs to, and the other way round: a reference picture and a causal clip.
inline int64_t face_frames(int64_t latent_frames) { return 4 * (latent_frames - 2) + 1; }

/// Face frames [N, 3, S, S] of clips with `frames` latent frames each, one after the other -> face tokens [rows, d], zero
/// for the reference picture's frame. Sites are those of the stem.
at::Tensor encode_faces(net::Context& ctx, const AnimateConfig& config, const at::Tensor& pixels,
                        const std::vector<int64_t>& frames);

class Animate final : public FamilyDenoiser<AnimateConfig> {
 public:
  explicit Animate(const AnimateConfig& config);

  net::Batch pack(const std::vector<net::Sample>& samples) const override;
  net::Conditions conditions() const override;
  std::map<std::string, at::Tensor> guide(const net::VideoCodec& codec, const net::Guides& guides) const override;
  at::Tensor seen(const net::Guides& guides) const override;
  at::Tensor with_references(const at::Tensor& latent, const std::map<std::string, at::Tensor>& extra) const override;
  net::Sample blank(const std::array<int64_t, 4>& latent) const override;
  std::vector<std::map<std::string, at::Tensor>> unpack_input_grads(
      const std::vector<at::Tensor>& grads, const net::Batch& batch,
      const std::vector<net::Sample>& samples) const override;
  std::string foreign_name(const std::string& name, const std::string& naming) const override;

 private:
  Initial initial(const plan::ParamSpec& param) const override;
  const Wan base_;  ///< packs all but poses and faces
};

/// The pixels that the inputs of a window are made of.
struct AnimateSource {
  at::Tensor reference;   ///< [3, 1, H, W]
  at::Tensor background;  ///< [3, T, H, W], grey where nothing is given
  at::Tensor made;        ///< [1, T, H, W]: 1 is to be generated
  at::Tensor before;      ///< [3, n, H, W], given in place of its first n frames; undefined: nothing
  bool nearest = false;   ///< the mask is shrunk to cells as the pipeline does, without values between
};
/// y [4 + C, 1 + f, h, w]: in front the reference, which is given whole, then what is given of each latent frame's four
/// frames, and the background.
at::Tensor animate_y(const net::VideoCodec& codec, const AnimateSource& source);

DenoiserCase animate_case();
std::vector<InputCase> animate_input_cases();

}  // namespace tessera::models::wan
