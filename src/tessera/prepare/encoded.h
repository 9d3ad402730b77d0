#pragma once
// Where an encoder computes, and whose memory it takes: the device's, as plans count it, on whatever thread; with
// data.encoders = "host" the host's, although the run may have a GPU. What it made belongs to the caller: host memory, where
// the Loader makes a sample.
//
//   extras["y"] = encoded(place, [&] { return picture_latent(codec, pictures, frames, mask_channels); });
#include <compare>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/data/cache.h"
#include "tessera/data/clips.h"
#include "tessera/device/backend.h"
#include "tessera/engine/store/meter.h"
#include "tessera/net/model.h"
#include "tessera/recipe/recipe.h"
#include "tessera/torch_headers.h"

namespace tessera::prepare {

class EncoderPlace {
 public:
  explicit EncoderPlace(recipe::Encoders place)
      : part_(place == recipe::Encoders::host ? engine::Part::host : engine::Part::compute) {
    if (place == recipe::Encoders::host) host_.emplace();
  }

 private:
  std::optional<device::OnHost> host_;
  engine::Meter::Only part_;
};

template <class Encode>
at::Tensor encoded(recipe::Encoders place, const Encode& encode) {
  at::Tensor made;
  {
    const EncoderPlace here(place);
    made = encode();
  }
  return made.clone();
}

// A caption, and what its encoders make of it: the embeddings that a model takes.
//
//   EncodedText text = pass.encode({"a cat"});

struct Words {
  std::string text;
  bool of_picture = false;  ///< behind data.instruction_image
  auto operator<=>(const Words&) const = default;
};

struct EncodedText {
  at::Tensor context;      ///< [n, D] fp32
  at::Tensor pooled = {};  ///< [P] fp32 of a second text encoder; undefined for models without one
  at::Tensor glyphs = {};  ///< [g, G] fp32 of one that reads what stands in quotes; undefined where nothing does
};

using data::CachedText;  // the same in host memory

// Digests of long lists that ranks compare, so that ranks with different files can name the first difference.
//
//   comm.check_agreement("data set", digest_of_rows(items));

/// The rows of a data set, before anything is made from them: their number, then a line for every 64, the first and last
/// path and a hash of all that is said of them.
std::string digest_of_rows(const data::Items& items);

/// Such a text of a list that is gone through once.
class Digest {
 public:
  /// `said`: all that is said of what has this path.
  void add(const std::string& path, const std::string& said);
  std::string text(const char* things);  ///< "3 clips\n..."

 private:
  void end_line();
  std::string lines_, first_, last_, said_;
  size_t count_ = 0, in_line_ = 0;
};

// Conditions of VideoX-Fun's models from pixels: a clip of which a part is given, by a mask; a picture as the first frame
// of nothing else.
//
//   Tensor y = given_latent(codec, pixels, mask);                     // [4 + C, f, h, w]
//   y = cat({control, in_front(codec.encode(start), f)});             // a model without a mask
//
// Nothing is said by zeros in three places: an absent control or start picture is a latent of zeros, which is not the
// latent of grey; an absent reference is a latent of zeros whose tokens stay; an absent picture of CLIP is features of
// zeros, which the model still embeds.
//
// Where the trainer does otherwise than it means to, ours does what is meant: its script for 2.1 without references stops
// at a name that it never set; one sample of a 5B batch that makes its first frame takes the given first frame from all
// others; a first frame without noise counts in its loss, although nothing tells the model the noise that it is asked for;
// its posterior samples have a deviation in other units than their mean, where ours are the mean.

/// What is given of each latent frame's four frames, [4, f, h, w] between 0 and 1: 1 - mask, shrunk with the values
/// between, the first latent frame by itself. mask [1, F, H, W]: 1 is to be made. Wan's own masks are 0 and 1.
at::Tensor given_channels(const at::Tensor& mask, const std::array<int64_t, 4>& latent);

/// y: given_channels() and the latent of the clip with grey in place of what is to be made. pixels [3, F, H, W] in
/// [-1, 1]. `nothing_is_zero`: where all is to be made y is zeros, else the latent of grey.
at::Tensor given_latent(const net::VideoCodec& codec, const at::Tensor& pixels, const at::Tensor& mask,
                        bool nothing_is_zero = true);

/// A latent frame [C, 1, h, w] in front of zeros, `frames` in all.
at::Tensor in_front(const at::Tensor& latent, int64_t frames);

/// Of a model with a timestep a token: which of its latent's cells are made, [1, f, h, w]; those of all frames but the
/// first are. Times the timestep it is that of each cell.
at::Tensor made_cells(const at::Tensor& mask, const std::array<int64_t, 4>& latent);

/// The latent with its first frame replaced by that of `given` where the first frame is given whole.
bool gives_first(const at::Tensor& cells);
at::Tensor with_first(const at::Tensor& latent, const at::Tensor& given, const at::Tensor& cells);

}  // namespace tessera::prepare
