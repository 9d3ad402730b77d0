#pragma once
// Trained weights as other programs read them: a folder with config.json, one safetensors file a unit and an index.
#include <filesystem>

#include "tessera/comm/comm.h"
#include "tessera/engine/store/store.h"
#include "tessera/net/model.h"
#include "tessera/weights/convert_source.h"

namespace tessera::train {

/// All ranks take part; rank 0 writes. Memory: one gathered unit. Official names, fp32.
void export_model(const net::Denoiser& model, engine::Store& store, comm::Comm& comm, int rank,
                  const std::filesystem::path& folder);

/// The same from the parameters of a training checkpoint; one rank calls it. Memory: one unit.
void export_saved(const net::Denoiser& model, const weights::Source& saved, const std::filesystem::path& folder);

}  // namespace tessera::train
