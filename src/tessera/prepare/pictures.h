#pragma once
// Pictures a clip is made from: where they come from, and what an image-to-video model takes of them.
//
//   Pictures pictures = clip_pictures(item, spec, conditions);        // the clip's own, or those of its row
//   extras["y"] = picture_latent(*job.codec, pictures, 81, 4);        // [4 + C, f, h, w]
#include <functional>
#include <string>
#include <vector>

#include "tessera/data/cache.h"
#include "tessera/data/dataset.h"
#include "tessera/data/video.h"
#include "tessera/families/frames/given_frames.h"
#include "tessera/net/model.h"
#include "tessera/recipe/recipe.h"

namespace tessera::prepare {

/// [3, H, W] in [-1, 1], or bytes; undefined: there is none.
struct Pictures {
  at::Tensor first, last;
  at::Tensor shown = {};  ///< what the image encoder sees in place of `first`: a reference; undefined: nothing else
  data::Path video = {};  ///< that the sample goes on from or leads to; empty: none
  /// What the sample is made from, which of that is to change, and pictures of what it shows; or empty.
  data::Path guide = {}, guide_mask = {};
  std::vector<data::Path> references = {};
  data::Path pose = {}, face = {};  ///< that it follows frame by frame
  /// The clip itself, [3, F, H, W], outside of a mask [1, F, H, W]: 1 is to be made. A mask of ones gives zeros in place of
  /// the latent of grey.
  at::Tensor clip = {}, made = {};
  bool nothing_is_zero = true;
};

/// Which frames a sample is given, for models that are given some beside the noisy ones: sample.condition, or what the
/// other keys make of auto; none for other models. Throws UserError (usage) where keys do not go together.
std::string sampled_condition(const recipe::Recipe::Diffusion& diffusion, const recipe::Recipe::Sample& sample,
                              const net::Conditions& wanted);

/// The pictures that the row names, else the clip's first and last frame, as many as the model takes, in the clip's
/// size. Throws UserError (input) naming the file.
Pictures clip_pictures(const data::Item& item, const data::ClipSpec& spec, const net::Conditions& wanted);

/// The row's own pictures, by the role that they have in the key of the clip's entry.
std::vector<data::RowFile> picture_files(const data::Item& item, const net::Conditions& wanted);

/// The pixels of what a sample follows, in its size, and faces in theirs; of the pictures the first `most`, in their own.
/// Of a sample in windows what is shown in one of them, of videos that are too short to and fro. Throws UserError (input)
/// naming the file.
net::Guides read_guides(const Pictures& files, const data::ClipSpec& spec, const net::Conditions& wanted, int64_t most,
                        const families::Windows& windows = {}, int64_t window = 0);
/// The windows of a sample of a model that goes on: as many as sample.clips asks for, or its video of poses lasts; of
/// others none. Throws UserError (usage) where that is shorter.
families::Windows sample_windows(const recipe::Recipe::Sample& sample, const Pictures& files,
                                 const data::ClipSpec& spec, const net::Conditions& wanted);
/// Of samples.
data::ClipSpec sampled_clip(const recipe::Recipe::Data& data);
/// The row's own; a clip that follows itself is refused. `pictures_alone`: without clips.
net::Guides clip_guides(const data::Item& item, const data::ClipSpec& spec, const net::Conditions& wanted, int64_t most,
                        bool pictures_alone = false);

/// The name in a clip's entry of its mask of what counts in the loss, [f, h, w] between 0 and 1.
inline constexpr const char* kLossMask = "loss_mask";
bool has_mask(const data::MaskFiles& masks, const data::Item& item);
/// How it is made, as text for the entry's key; empty where there is none.
std::string mask_text(const data::MaskFiles& masks, const data::Item& item);
/// The mask of the clip's latent, of shape [C, f, h, w]. Throws UserError (input) for one that is not as its clip is.
at::Tensor loss_mask(const data::MaskFiles& masks, const data::Item& item, const data::ClipSpec& spec,
                     at::IntArrayRef latent);

/// All that is shown in the row's sample beside its clip: these pictures and the video of poses.
std::vector<data::RowFile> shown_files(const data::Item& item, const net::Conditions& wanted);

/// The images of each prompt: the files of sample.image and sample.last_image, repeated if there are fewer ("clip": of
/// the prompt's own clip). If these are empty, the images of its clip if the model needs one, else none. A prompt's
/// clip is the one with this caption, or the first of `clips`, which is called only for it. Throws UserError (usage) if
/// an image is needed and there is neither file nor clip.
std::vector<Pictures> prompt_pictures(const recipe::Recipe& recipe, const std::vector<std::string>& prompts,
                                      const std::function<data::Items()>& clips, const net::Conditions& wanted);

/// The latent [C, f, h, w] of some of a clip's frames, encoded on their own.
at::Tensor encode_given(const net::VideoCodec& codec, const data::Frames& clip, const families::GivenFrames& given);

/// y of a sample by its pictures and the kind of model; undefined: it has none, of a model that also takes none.
at::Tensor image_input(const net::VideoCodec& codec, const Pictures& pictures, int64_t frames,
                       const net::Conditions& wanted);

/// y: where pictures are given, as `mask_channels` channels of 0 and 1, and the latent of the clip of these pictures
/// with grey between them. The mask has a channel for each frame that a latent frame stands for; the first latent frame
/// of a causal autoencoder stands for one frame, which fills its channels.
at::Tensor picture_latent(const net::VideoCodec& codec, const Pictures& pictures, int64_t frames,
                          int64_t mask_channels);

}  // namespace tessera::prepare
