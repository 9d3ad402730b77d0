#include "tessera/data/icc.h"

#include <lcms2.h>

#include <array>
#include <cstdlib>

namespace tessera::data {

namespace {
struct CloseProfile {
  void operator()(void* profile) const { cmsCloseProfile(profile); }
};
using ProfilePtr = std::unique_ptr<void, CloseProfile>;
}  // namespace

struct IccProfile::Transform {
  cmsHTRANSFORM handle = nullptr;
  ~Transform() {
    if (handle) cmsDeleteTransform(handle);
  }
};

IccProfile::IccProfile(std::string_view bytes) : transform_(std::make_unique<Transform>()) {
  static const bool quiet = (cmsSetLogErrorHandler([](cmsContext, cmsUInt32Number, const char*) {}), true);
  (void)quiet;  // a damaged profile is told by its kind
  const ProfilePtr from(cmsOpenProfileFromMem(bytes.data(), static_cast<cmsUInt32Number>(bytes.size())));
  const ProfilePtr srgb(cmsCreate_sRGBProfile());
  if (!from || !srgb || cmsGetColorSpace(from.get()) != cmsSigRgbData) return;
  transform_->handle =
      cmsCreateTransform(from.get(), TYPE_RGBA_8, srgb.get(), TYPE_RGBA_8, INTENT_RELATIVE_COLORIMETRIC,
                         cmsFLAGS_BLACKPOINTCOMPENSATION | cmsFLAGS_COPY_ALPHA | cmsFLAGS_NOCACHE);
  if (!transform_->handle) return;
  constexpr int kSteps = 6, kStep = 255 / (kSteps - 1);
  kind_ = Kind::srgb;
  for (int i = 0; i < kSteps * kSteps * kSteps; ++i) {
    const std::array<int, 3> level = {i % kSteps * kStep, i / kSteps % kSteps * kStep, i / kSteps / kSteps * kStep};
    std::array<uint8_t, 4> pixel = {static_cast<uint8_t>(level[0]), static_cast<uint8_t>(level[1]),
                                    static_cast<uint8_t>(level[2]), 255};
    convert(pixel.data(), 1);
    for (size_t c = 0; c < level.size(); ++c)
      if (std::abs(pixel[c] - level[c]) > 1) kind_ = Kind::other;
  }
}

IccProfile::~IccProfile() = default;

void IccProfile::convert(uint8_t* rgba, int64_t pixels) const {
  cmsDoTransform(transform_->handle, rgba, rgba, static_cast<cmsUInt32Number>(pixels));
}

bool converts_icc() { return true; }

}  // namespace tessera::data
