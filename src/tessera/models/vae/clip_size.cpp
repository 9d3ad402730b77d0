#include "tessera/models/vae/clip_size.h"

#include "tessera/base/check.h"

namespace tessera::models {

namespace {
std::string text(const ClipSize& clip) {
  return std::to_string(clip.frames) + " x " + std::to_string(clip.height) + " x " + std::to_string(clip.width);
}
}  // namespace

void refuse_size(const char* where, const ClipSize& clip, const std::string& rule, const ClipSize& nearest) {
  throw UserError(Exit::usage, where, text(clip) + " (frames x height x width): " + rule,
                  "change data.frames, data.size or data.buckets, for instance to " + text(nearest));
}

}  // namespace tessera::models
