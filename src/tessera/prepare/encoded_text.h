#pragma once
// An encoded caption: the embeddings that a model takes.
//
//   EncodedText text = pass.encode("a cat");
#include "tessera/data/cache.h"
#include "tessera/torch_headers.h"

namespace tessera::prepare {

struct EncodedText {
  at::Tensor context;      ///< [n, D] fp32
  at::Tensor pooled = {};  ///< [P] fp32 of the second text encoder; undefined for models without one
};

using data::CachedText;  // the same in host memory

}  // namespace tessera::prepare
