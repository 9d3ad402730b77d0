#pragma once
// A caption, and what its encoders make of it: the embeddings that a model takes.
//
//   EncodedText text = pass.encode({"a cat"});
#include <compare>
#include <string>

#include "tessera/data/cache.h"
#include "tessera/torch_headers.h"

namespace tessera::prepare {

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
