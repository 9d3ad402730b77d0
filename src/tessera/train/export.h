#pragma once
// Trained weights as other programs read them: a folder with config.json and safetensors files, with an
// index where they are several.
#include <filesystem>
#include <string>

#include "tessera/comm/comm.h"
#include "tessera/engine/store/store.h"
#include "tessera/net/model.h"
#include "tessera/weights/convert_source.h"

namespace tessera::train {

/// Bytes of an exported file, as `tessera convert` has it. A unit lies in one file, which may be larger for it.
inline constexpr int64_t kExportedFileBytes = int64_t{5} << 30;

/// The naming of what a run exports: diffusers' where its base at `path` has that, so that what read the base reads the
/// result. Empty for any other base, and for none: the model's own files' (net::Denoiser::file_naming).
std::string export_naming(const std::string& path);

/// All ranks take part; rank 0 writes. Memory: one gathered unit. fp32.
void export_model(const net::Denoiser& model, engine::Store& store, comm::Comm& comm, int rank,
                  const std::filesystem::path& folder, const std::string& naming = {});

/// The same from the parameters of a training checkpoint; one rank calls it. Memory: one unit.
void export_saved(const net::Denoiser& model, const weights::Source& saved, const std::filesystem::path& folder,
                  const std::string& naming = {}, int64_t file_bytes = kExportedFileBytes);

}  // namespace tessera::train
