#pragma once
// A model as the engine and the training loop see it: units, how samples become packed inputs, and key names.
#include <map>

#include "tessera/net/unit.h"

namespace tessera::net {

/// One training or sampling example of a denoiser. Latents [C, F, H, W], context [n, D_text], fp32.
struct Sample {
  Tensor x;        ///< noisy latent
  double t = 0;    ///< timestep on the 0..1000 scale, may be fractional
  Tensor context;  ///< text embedding, unpadded rows
  Tensor target;   ///< same shape as x's prediction; undefined when sampling
  double weight = 1;
  std::map<std::string, Tensor> extra;  ///< family-specific: y, clip_fea, image_latent, audio, pose, glyphs
};

/// What a model follows that is given clips to edit or to move by: pixels in [-1, 1].
struct Guides {
  int64_t frames = 0, height = 0, width = 0;  ///< of the clip that is made
  std::map<std::string, Tensor> clips;        ///< [3, frames, height, width] of each that is there, by its column
  std::vector<Tensor> references;             ///< pictures [3, h, w] of any size
  Tensor
      before;  ///< [3, n, height, width], what a longer one ends in so far and this one begins with; undefined: nothing
  bool sampled = false;  ///< as a pipeline makes inputs of them, where a trainer does otherwise
};

/// Inputs of a denoiser beside latent, time and text: images, audio and poses, of the clip or given ones.
struct Conditions {
  bool first_image = false, last_image = false;  ///< extra "y": mask and latent of these frames, grey between them
  int64_t mask_channels = 0;                     ///< of y, before the latent's
  std::string image_extra;  ///< name of the extra with the rows of an image encoder; empty: no such input
  int64_t clip_dim = 0;     ///< width of these rows; 0: no such input
  int64_t clip_rows = 0;    ///< rows of one image
  /// They belong to a first latent frame that is given, and come with it alone; samplers cut that picture from a file by
  /// Lanczos (models/common/picture_resize.h).
  bool image_with_first = false;
  bool clean_first = false;   ///< accepts extra "image_latent", [C, 1, h, w]: a first latent frame without noise
  bool always_clean = false;  ///< needs it in every sample
  bool clean_beside =
      false;              ///< reads it beside a first frame that has noise as the others: samplers put it there last
  int64_t audio_dim = 0;  ///< width of extra "audio", [audio_layers, audio_rows * (F - 1), audio_dim] for x of F latent
                          ///< frames: audio of all frames but the first; 0: no audio input
  int64_t audio_layers = 0, audio_rows = 0;
  /// Captions go to the text encoder as they are written, padded to context_length() tokens, and the model attends to the
  /// rows of the padding too.
  bool padded_text = false;
  int64_t pooled_dim =
      0;  ///< width of extra "pooled", one vector a caption from a second text encoder; 0: no such input
  /// Width of extra "glyphs", the rows of what a prompt has in quotes from a second text encoder, and the most of them; a
  /// prompt without quotes has none. 0: no such input.
  int64_t glyph_dim = 0, glyph_rows = 0;
  /// Accepts extra "cond", [1 + C, F, h, w]: a mask of frames that are given, and their latents, beside the noisy ones;
  /// with frame_masks instead [C, F, h, w] of the frames "mask_index", which read "y_null" (diffusion/given_frames.h).
  bool given_frames = false;
  /// Accepts extra "t", [F], a timestep for each latent frame, and clips a chunk of frames at a time (net/tokens.h).
  bool chunks_in_time = false;
  bool frame_masks = false;  ///< accepts extra "x_mask", [F]: frames of x with a 0 are given, without noise
  int64_t control_dim = 0;   ///< channels of y before its mask: the latent of a control video, zeros when absent
  int64_t reference_dim =
      0;  ///< channels of extra "reference", [C, 1, h, w]: the latent of a picture, zeros when absent
  int64_t camera_scale =
      0;                 ///< accepts extra "camera", [frames of the clip, 16]; pixels of a latent's cell; 0: no camera
  int64_t pose_dim = 0;  ///< channels of extra "pose", a latent of the size of x, zeros when absent; 0: no such input
  /// Columns of the clips that Denoiser::guide() reads, and the most pictures of references; none: no such input. Latent
  /// frames of references stand before those of the clip, in x as in the extras.
  std::vector<std::string> guides = {};
  int64_t references = 0;
  bool always_reference = false;  ///< every sample begins with one: the clip's first frame where the row names none
  int64_t face_size = 0;          ///< side of the frames of guide "face" in pixels; 0: no such guide
  bool goes_on = false;           ///< guide() reads Guides::before: a longer video is made in windows
  bool takes_images() const { return first_image || last_image; }
};

/// A packed micro-batch: the inputs of the stem, and the tables of its tokens.
struct Batch {
  std::vector<Tensor> inputs;  ///< boundary inputs of the first unit, made by Denoiser::pack
  Tokens tokens;
  std::vector<std::array<int64_t, 4>> shapes;  ///< latent shape of each sample's prediction
  /// Rows of the last unit's output that are predictions, [begin, end) for each sample; empty: all its tokens. The
  /// other rows belong to given inputs, such as a first frame without noise.
  std::vector<std::array<int64_t, 2>> predicted;
  std::array<int64_t, 2> predictions_of(size_t sample) const {
    if (!predicted.empty()) return predicted[sample];
    return {tokens.offsets[sample], tokens.offsets[sample + 1]};
  }
  /// Indices of the inputs that have a row for each token: ranks that share a sequence get their rows of these. All
  /// other inputs are whole on every rank; a stem that makes tokens of them cuts its stream to [tokens.begin,
  /// tokens.end) itself.
  std::vector<int> token_inputs = {0};
};

/// Sizes of a denoiser that are known without a sample.
struct DenoiserSizes {
  int64_t channels = 0;        ///< of the latents that it denoises
  int64_t context_dim = 0;     ///< width of a context
  int64_t context_length = 0;  ///< most rows of a context
  int64_t heads = 1;           ///< of its self-attention: sp x tp must divide them
};

class VideoCodec;
struct Direction;  // passes.h

class Denoiser {
 public:
  explicit Denoiser(const DenoiserSizes& sizes) : sizes_(sizes) {}
  virtual ~Denoiser() = default;
  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  /// The same list, whose units may be replaced (models/common/adapted.h).
  std::vector<std::unique_ptr<Unit>>& adaptable_units() { return units_; }
  virtual Batch pack(const std::vector<Sample>& samples) const = 0;
  virtual Conditions conditions() const { return {}; }
  /// The extras that a model makes of what it follows (Conditions::guides).
  virtual std::map<std::string, Tensor> guide(const VideoCodec& /*codec*/, const Guides& /*guides*/) const {
    return {};
  }
  /// What an image encoder sees of it, [3, h, w]; undefined: nothing.
  virtual Tensor seen(const Guides& /*guides*/) const { return {}; }
  /// The latent that is denoised: a clip's, behind those of the references that its extras have.
  virtual Tensor with_references(const Tensor& latent, const std::map<std::string, Tensor>& /*extra*/) const {
    return latent;
  }
  /// A sample of zeros with a latent of that shape and every input of pack() at its largest size; plans are made for
  /// it.
  virtual Sample blank(const std::array<int64_t, 4>& latent) const = 0;
  /// Gradients of the packed inputs as gradients of each sample's x, context and extras, by these names (for
  /// verification): the inverse of pack.
  virtual std::vector<std::map<std::string, Tensor>> unpack_input_grads(const std::vector<Tensor>& grads,
                                                                        const Batch& batch,
                                                                        const std::vector<Sample>& samples) const = 0;
  /// Predictions [T, c_out * patch] of the last unit to latents, one a sample, fp32.
  virtual std::vector<Tensor> unpack(const Tensor& out, const Batch& batch) const = 0;
  /// A latent-shaped tensor [C, F, H, W] in the layout of the last unit's output, [tokens, c_out * patch].
  virtual Tensor pack_target(const Tensor& target) const = 0;
  /// Tokens of one latent.
  virtual int64_t token_count(const std::array<int64_t, 4>& latent) const = 0;
  /// Columns of the last unit's rows behind those of the prediction: numbers of the sample, the same in all its rows.
  virtual int64_t numbers_beside() const { return 0; }
  /// In forward mode (passes.h), which tensors of the shared conditioning move with a sample's latent and timestep;
  /// empty: the family has no forward mode.
  virtual std::vector<bool> moving_conditioning() const { return {}; }
  /// The tangents of pack()'s inputs, undefined for those that stand still.
  virtual std::vector<Tensor> pack_directions(const Batch& batch, const std::vector<Direction>& directions) const;
  /// The form of its teacher: without the parameters that distillation adds. Null: the family has no students.
  virtual std::unique_ptr<Denoiser> teacher_form() const { return nullptr; }
  /// Name of a parameter -> its name in a naming: "official", "diffusers", or "tessera", our own. Parameters that files
  /// hold together have names of parts (checkpoint/row_part.h).
  virtual std::string foreign_name(const std::string& name, const std::string& naming) const = 0;
  /// The naming of the weights that a run writes: one that other programs read.
  virtual std::string file_naming() const { return "official"; }
  /// Why flow matching, the training that there is, does not train this model; empty: it does.
  virtual std::string why_not_trained() const { return {}; }
  /// Writes the initial values of elements [first, first + count) of a parameter, the same on every layout.
  virtual void initialise(const plan::ParamSpec& param, uint64_t seed, int64_t first, int64_t count,
                          float* out) const = 0;
  virtual std::string config_json() const = 0;  ///< official config.json
  /// The sigma from which on the high-noise expert denoises: that of the released pair, else a default for a new pair.
  virtual double released_boundary() const { return 0.5; }
  int64_t heads() const { return sizes_.heads; }
  int64_t in_channels() const { return sizes_.channels; }
  int64_t context_dim() const { return sizes_.context_dim; }
  int64_t context_length() const { return sizes_.context_length; }

 protected:
  std::vector<std::unique_ptr<Unit>> units_;

 private:
  const DenoiserSizes sizes_;
};

/// A video autoencoder, without gradients.
class VideoCodec {
 public:
  virtual ~VideoCodec() = default;
  virtual std::string fingerprint() const = 0;  ///< name and weights' hash, part of cache keys
  virtual std::array<int64_t, 4> latent_shape(int64_t frames, int64_t height, int64_t width) const = 0;
  virtual Tensor encode(const Tensor& pixels) const = 0;  ///< [3, F, H, W] in [-1, 1] -> [C, f, h, w]
  virtual Tensor decode(const Tensor& latent) const = 0;  ///< and back, not clamped
};

}  // namespace tessera::net
