#pragma once
// Accounts for the memory that an encoder takes while it runs: the device's, as plans count it, on whatever thread; the
// host's with data.encoders = "host". What it made belongs to the caller: host memory, where the Loader makes a sample.
//
//   extras["y"] = encoded(place, [&] { return picture_latent(codec, pictures, frames, mask_channels); });
#include "tessera/engine/memory/meter.h"
#include "tessera/recipe/recipe.h"
#include "tessera/torch_headers.h"

namespace tessera::prepare {

inline engine::Part part_of(recipe::Encoders place) {
  return place == recipe::Encoders::host ? engine::Part::host : engine::Part::compute;
}

template <class Encode>
at::Tensor encoded(recipe::Encoders place, const Encode& encode) {
  at::Tensor made;
  {
    const engine::Meter::Only part(part_of(place));
    made = encode();
  }
  return made.clone();
}

}  // namespace tessera::prepare
