// ICC profiles in a build without LittleCMS; icc.cpp is the other one.
#include "tessera/base/check.h"
#include "tessera/data/icc.h"

namespace tessera::data {

struct IccProfile::Transform {};

/// A profile says its name in its first hundreds of bytes, in 8 or 16 bits a letter.
IccProfile::IccProfile(std::string_view bytes) {
  const std::string_view wide("s\0R\0G\0B", 7);
  const bool named = bytes.find("sRGB") != bytes.npos || bytes.find(wide) != bytes.npos;
  kind_ = named ? Kind::srgb : Kind::unconverted;
}

IccProfile::~IccProfile() = default;

void IccProfile::convert(uint8_t*, int64_t) const { throw InternalError("data.icc", "no LittleCMS converts profiles"); }

bool converts_icc() { return false; }

}  // namespace tessera::data
