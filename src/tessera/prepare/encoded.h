#pragma once
// Where an encoder computes, and whose memory it takes: the device's, as plans count it, on whatever thread; with
// data.encoders = "host" the host's, although the run may have a GPU. What it made belongs to the caller: host memory, where
// the Loader makes a sample.
//
//   extras["y"] = encoded(place, [&] { return picture_latent(codec, pictures, frames, mask_channels); });
#include <compare>
#include <optional>
#include <string>

#include "tessera/data/cache.h"
#include "tessera/device/backend.h"
#include "tessera/engine/memory/meter.h"
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

}  // namespace tessera::prepare
