#pragma once
// What an autoencoder takes while it runs is the device's memory, as plans count it, on whatever thread; what it made
// belongs to the caller: host memory, where the Loader makes a sample.
//
//   extras["y"] = encoded([&] { return picture_latent(codec, pictures, frames, mask_channels); });
#include "tessera/engine/memory/meter.h"
#include "tessera/torch_headers.h"

namespace tessera::prepare {

template <class Encode>
at::Tensor encoded(const Encode& encode) {
  at::Tensor made;
  {
    const engine::Meter::Scope device(engine::Part::compute);
    made = encode();
  }
  return made.clone();
}

}  // namespace tessera::prepare
