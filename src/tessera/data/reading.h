#pragma once
// What of a file is not shown as its stored numbers alone say, and how it is shown: turned, on a background, in the
// colours of SDR.
//
//   Traits traits;
//   traits.add(Trait::turned);
//   reading_text(traits, {});              // " upright": a part of the cache key, empty for a plain file
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

enum class Trait {
  turned,       ///< a picture by its EXIF data; a video beyond the turns that its container says
  dense,        ///< a picture whose pixels are said not to be square
  transparent,  ///< there is an alpha channel, and something shows through
  profiled,     ///< a picture of an ICC profile other than sRGB, which is converted
  unconverted,  ///< the same where nothing can convert it
  rgb,          ///< a video whose frames are RGB by their stream's own word, or of more than 8 bits
  pq,           ///< HDR of SMPTE ST 2084
  hlg,          ///< HDR of ARIB STD-B67
  interlaced    ///< two moments in each frame
};

class Traits {
 public:
  void add(Trait trait) { bits_ |= bit(trait); }
  void add(const Traits& more) { bits_ |= more.bits_; }
  bool has(Trait trait) const { return bits_ & bit(trait); }
  bool hdr() const { return has(Trait::pq) || has(Trait::hlg); }
  std::vector<std::string> names() const;
  /// Throws UserError (input) for a name that is none.
  static Traits of(const std::vector<std::string>& names);

 private:
  static uint32_t bit(Trait trait) { return 1U << static_cast<int>(trait); }
  uint32_t bits_ = 0;
};

/// How such files are shown, as [data] of a recipe says.
struct Showing {
  std::array<uint8_t, 3> background = {255, 255, 255};  ///< behind what is transparent
  bool tone_map = true;                                 ///< HDR becomes SDR; else it is refused
  bool deinterlace = true;
};

/// Shares of a shown picture that are cut off at its sides before anything else.
struct Edges {
  double top = 0, bottom = 0, left = 0, right = 0;
  bool any() const { return top > 0 || bottom > 0 || left > 0 || right > 0; }
};

/// "white", "black", "grey", or "#rrggbb". Throws UserError (usage).
std::array<uint8_t, 3> parse_colour(const std::string& text);

/// What makes pixels of such a file other than those of its stored numbers, for cache keys: " upright on=#ffffff". Files
/// that an earlier version showed in the same way have none.
std::string reading_text(const Traits& traits, const Showing& showing);

/// What a word of reading_text() stands for: "turned or mirrored by what their file says". Empty for any other.
std::string reading_reason(std::string_view word);

/// A line on the files of each trait that should be known, with their number and the first of them.
class TraitCounts {
 public:
  void add(const Traits& traits, const std::string& name);
  std::vector<std::string> notes(const Showing& showing) const;

 private:
  struct Count {
    int64_t files = 0;
    std::string first;
  };
  std::array<Count, 3> counts_;  // unconverted, HDR, interlaced
};

}  // namespace tessera::data
