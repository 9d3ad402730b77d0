#pragma once
// Colours of a picture's ICC profile as those of sRGB, by LittleCMS. A build without it (no_icc.cpp) converts none.
//
//   const IccProfile profile(bytes);
//   if (profile.kind() == IccProfile::Kind::other) profile.convert(rgba, pixels);
#include <cstdint>
#include <memory>
#include <string_view>

namespace tessera::data {

class IccProfile {
 public:
  enum class Kind {
    srgb,        ///< as good as sRGB: no level changes by more than one
    other,       ///< to be converted
    unconverted  ///< other, or not known to be sRGB, and convert() cannot be called: no RGB, damaged, no LittleCMS
  };
  explicit IccProfile(std::string_view bytes);
  ~IccProfile();
  IccProfile(const IccProfile&) = delete;

  Kind kind() const { return kind_; }
  /// RGBA of 8 bits each in place; alpha stays.
  void convert(uint8_t* rgba, int64_t pixels) const;

 private:
  struct Transform;
  std::unique_ptr<Transform> transform_;
  Kind kind_ = Kind::unconverted;
};

bool converts_icc();  ///< false in a build without LittleCMS

}  // namespace tessera::data
