#pragma once
// What a file is that people take for weights, by its first bytes.
//
//   what_else(ReadFile("clip.mp4"))     // "an MP4 or QuickTime video"
#include <string>

#include "tessera/checkpoint/file.h"

namespace tessera::checkpoint {

/// In words, with the article: "empty", "a text (\"[run]\")", "a PNG picture". Empty for what begins like no other
/// kind: a safetensors file, whole or not.
std::string what_else(const ReadFile& file);

}  // namespace tessera::checkpoint
