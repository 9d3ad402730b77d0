#pragma once
// Makes a checkpoint whole, with what other programs read of it beside its parts.
//
//   commit_with(partial, final, world, manifest, [&] { write_lora(TrainingCheckpoint(partial), partial / "lora"); });
#include <functional>

#include "tessera/checkpoint/manifest.h"

namespace tessera::checkpoint {

/// As commit (training.h). `beside` adds to `partial`, which reads as a whole checkpoint by then; after it the manifest
/// is written again, so that it is the last (see [Note: whole or absent]).
void commit_with(const Path& partial, const Path& final, int world, Manifest manifest,
                 const std::function<void()>& beside);

}  // namespace tessera::checkpoint
