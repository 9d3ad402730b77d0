#include "tessera/data/reading.h"

#include <cstdio>

#include "tessera/base/check.h"

namespace tessera::data {

namespace {

struct Named {
  Trait trait;
  const char* name;
  const char* word;  ///< in cache keys; empty: pixels are as they were
  const char* reason;
};
constexpr Named kNamed[] = {
    {Trait::turned, "turned", "upright", "turned or mirrored by what their file says"},
    {Trait::dense, "dense", "stored-pixels", "pictures whose pixels are said not to be square"},
    {Trait::transparent, "transparent", "on=", "transparent in part"},
    {Trait::profiled, "profiled", "srgb", "of another colour profile than sRGB"},
    {Trait::unconverted, "unconverted", "", ""},
    {Trait::rgb, "rgb", "rgb", "videos coded in RGB"},
    {Trait::pq, "pq", "sdr", "HDR"},
    {Trait::hlg, "hlg", "sdr", "HDR"},
    {Trait::interlaced, "interlaced", "deinterlaced", "interlaced"},
};

std::string colour_text(const std::array<uint8_t, 3>& colour) {
  char text[8];
  std::snprintf(text, sizeof text, "#%02x%02x%02x", colour[0], colour[1], colour[2]);
  return text;
}

}  // namespace

std::vector<std::string> Traits::names() const {
  std::vector<std::string> all;
  for (const Named& named : kNamed)
    if (has(named.trait)) all.emplace_back(named.name);
  return all;
}

Traits Traits::of(const std::vector<std::string>& names) {
  Traits traits;
  for (const std::string& name : names) {
    bool known = false;
    for (const Named& named : kNamed)
      if (name == named.name) traits.add(named.trait), known = true;
    check_input(known, "data.probes", "'" + name + "': no trait of a file");
  }
  return traits;
}

std::array<uint8_t, 3> parse_colour(const std::string& text) {
  for (const auto& [name, level] : {std::pair("white", 255), {"grey", 128}, {"gray", 128}, {"black", 0}})
    if (text == name) return {static_cast<uint8_t>(level), static_cast<uint8_t>(level), static_cast<uint8_t>(level)};
  unsigned r = 0, g = 0, b = 0;
  const bool digits = text.size() == 7 && text[0] == '#' &&
                      text.find_first_not_of("0123456789abcdefABCDEF", 1) == std::string::npos &&
                      std::sscanf(text.c_str(), "#%2x%2x%2x", &r, &g, &b) == 3;
  if (!digits)
    throw UserError(Exit::usage, "data.background", "'" + text + "': expected a colour",
                    "for example \"white\", \"black\", \"grey\" or \"#00ff00\"");
  return {static_cast<uint8_t>(r), static_cast<uint8_t>(g), static_cast<uint8_t>(b)};
}

std::string reading_text(const Traits& traits, const Showing& showing) {
  std::string text;
  for (const Named& named : kNamed) {
    if (!traits.has(named.trait) || named.word[0] == '\0') continue;
    if (named.trait == Trait::interlaced && !showing.deinterlace) continue;
    text += std::string(" ") + named.word;
    if (named.trait == Trait::transparent) text += colour_text(showing.background);
  }
  return text;
}

std::string reading_reason(std::string_view word) {
  for (const Named& named : kNamed)
    if (const std::string_view known = named.word; !known.empty() && word.starts_with(known)) return named.reason;
  return {};
}

void TraitCounts::add(const Traits& traits, const std::string& name) {
  const bool told[] = {traits.has(Trait::unconverted), traits.hdr(), traits.has(Trait::interlaced)};
  for (size_t i = 0; i < counts_.size(); ++i)
    if (told[i] && counts_[i].files++ == 0) counts_[i].first = name;
}

std::vector<std::string> TraitCounts::notes(const Showing& showing) const {
  const std::pair<const char*, const char*> texts[] = {
      {"of a colour profile other than sRGB", "not converted, so that their colours are off"},
      {"HDR (PQ or HLG)",
       "tone-mapped to SDR by BT.2390, with white at 203 nits; data.hdr = \"refuse\" leaves them out"},
      {"interlaced", showing.deinterlace
                         ? "deinterlaced; data.deinterlace = \"off\" trains both moments of each frame"
                         : "not deinterlaced: each frame shows two moments (data.deinterlace = \"auto\")"}};
  std::vector<std::string> notes;
  for (size_t i = 0; i < counts_.size(); ++i)
    if (counts_[i].files > 0)
      notes.push_back(std::to_string(counts_[i].files) + (counts_[i].files == 1 ? " file is " : " files are ") +
                      texts[i].first + ": " + texts[i].second + "; the first: " + counts_[i].first);
  return notes;
}

}  // namespace tessera::data
