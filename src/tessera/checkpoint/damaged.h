#pragma once
// What is said of checkpoints that are damaged or not complete, and which one to go on from instead.
//
//   throw UserError(Exit::input, "checkpoint.load", what, earlier_than(folder));
#include <string>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/checkpoint/file.h"

namespace tessera::checkpoint {

/// Folders of steps that have no manifest and are newer than the newest whole one: copies that were cut short.
std::vector<Path> without_manifest(const Path& checkpoints);

/// The flag that goes on from the whole checkpoint before this one.
std::string earlier_than(const Path& checkpoint);

/// The error of reading a file of the checkpoint in `folder`, with that advice.
UserError damaged(const UserError& error, const Path& folder);

}  // namespace tessera::checkpoint
