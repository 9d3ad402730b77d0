#include "tessera/data/text/text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "tessera/base/text.h"

namespace tessera::data {

namespace {

/// The character references of HTML 4 as "name hex" pairs. In HTML 5 those below U+0100 also work without a semicolon.
constexpr const char* kHtmlEntities =
    "QUOT 22 quot 22 AMP 26 amp 26 LT 3c lt 3c GT 3e gt 3e nbsp a0 iexcl a1 cent a2 pound a3 curren a4 yen a5 "
    "brvbar a6 sect a7 uml a8 COPY a9 copy a9 ordf aa laquo ab not ac shy ad REG ae reg ae macr af deg b0 plusmn b1 "
    "sup2 b2 sup3 b3 acute b4 micro b5 para b6 middot b7 cedil b8 sup1 b9 ordm ba raquo bb frac14 bc frac12 bd "
    "frac34 be iquest bf Agrave c0 Aacute c1 Acirc c2 Atilde c3 Auml c4 Aring c5 AElig c6 Ccedil c7 Egrave c8 "
    "Eacute c9 Ecirc ca Euml cb Igrave cc Iacute cd Icirc ce Iuml cf ETH d0 Ntilde d1 Ograve d2 Oacute d3 Ocirc d4 "
    "Otilde d5 Ouml d6 times d7 Oslash d8 Ugrave d9 Uacute da Ucirc db Uuml dc Yacute dd THORN de szlig df agrave "
    "e0 aacute e1 acirc e2 atilde e3 auml e4 aring e5 aelig e6 ccedil e7 egrave e8 eacute e9 ecirc ea euml eb "
    "igrave ec iacute ed icirc ee iuml ef eth f0 ntilde f1 ograve f2 oacute f3 ocirc f4 otilde f5 ouml f6 divide f7 "
    "oslash f8 ugrave f9 uacute fa ucirc fb uuml fc yacute fd thorn fe yuml ff OElig 152 oelig 153 Scaron 160 "
    "scaron 161 Yuml 178 fnof 192 circ 2c6 tilde 2dc Alpha 391 Beta 392 Gamma 393 Delta 394 Epsilon 395 Zeta 396 "
    "Eta 397 Theta 398 Iota 399 Kappa 39a Lambda 39b Mu 39c Nu 39d Xi 39e Omicron 39f Pi 3a0 Rho 3a1 Sigma 3a3 Tau "
    "3a4 Upsilon 3a5 Phi 3a6 Chi 3a7 Psi 3a8 Omega 3a9 alpha 3b1 beta 3b2 gamma 3b3 delta 3b4 epsilon 3b5 zeta 3b6 "
    "eta 3b7 theta 3b8 iota 3b9 kappa 3ba lambda 3bb mu 3bc nu 3bd xi 3be omicron 3bf pi 3c0 rho 3c1 sigmaf 3c2 "
    "sigma 3c3 tau 3c4 upsilon 3c5 phi 3c6 chi 3c7 psi 3c8 omega 3c9 thetasym 3d1 upsih 3d2 piv 3d6 ensp 2002 emsp "
    "2003 thinsp 2009 zwnj 200c zwj 200d lrm 200e rlm 200f ndash 2013 mdash 2014 lsquo 2018 rsquo 2019 sbquo 201a "
    "ldquo 201c rdquo 201d bdquo 201e dagger 2020 Dagger 2021 bull 2022 hellip 2026 permil 2030 prime 2032 Prime "
    "2033 lsaquo 2039 rsaquo 203a oline 203e frasl 2044 euro 20ac image 2111 weierp 2118 real 211c trade 2122 "
    "alefsym 2135 larr 2190 uarr 2191 rarr 2192 darr 2193 harr 2194 crarr 21b5 lArr 21d0 uArr 21d1 rArr 21d2 dArr "
    "21d3 hArr 21d4 forall 2200 part 2202 exist 2203 empty 2205 nabla 2207 isin 2208 notin 2209 ni 220b prod 220f "
    "sum 2211 minus 2212 lowast 2217 radic 221a prop 221d infin 221e ang 2220 and 2227 or 2228 cap 2229 cup 222a "
    "int 222b there4 2234 sim 223c cong 2245 asymp 2248 ne 2260 equiv 2261 le 2264 ge 2265 sub 2282 sup 2283 nsub "
    "2284 sube 2286 supe 2287 oplus 2295 otimes 2297 perp 22a5 sdot 22c5 lceil 2308 rceil 2309 lfloor 230a rfloor "
    "230b loz 25ca spades 2660 clubs 2663 hearts 2665 diams 2666 lang 27e8 rang 27e9";

/// The code point at `at`, which moves behind it; -1 and one byte on where the text is not UTF-8.
int32_t next(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0; };
  const int lead = byte(at);
  const int more = lead < 0x80                   ? 0
                   : lead >= 0xC2 && lead < 0xE0 ? 1
                   : (lead & 0xF0) == 0xE0       ? 2
                   : lead >= 0xF0 && lead < 0xF5 ? 3
                                                 : -1;
  if (more < 0) return ++at, -1;
  int32_t point = more == 0 ? lead : lead & (0x3F >> more);
  for (int i = 1; i <= more; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return ++at, -1;
    point = point << 6 | (byte(at + i) & 0x3F);
  }
  constexpr std::array<int32_t, 4> kSmallest = {0, 0x80, 0x800, 0x10000};
  if (point < kSmallest[more] || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000)) return ++at, -1;
  at += 1 + more;
  return point;
}

void append(std::string& to, int32_t point) {
  const auto tail = [&](int shift) { to += static_cast<char>(0x80 | (point >> shift & 0x3F)); };
  if (point < 0x80) {
    to += static_cast<char>(point);
  } else if (point < 0x800) {
    to += static_cast<char>(0xC0 | point >> 6), tail(0);
  } else if (point < 0x10000) {
    to += static_cast<char>(0xE0 | point >> 12), tail(6), tail(0);
  } else {
    to += static_cast<char>(0xF0 | point >> 18), tail(12), tail(6), tail(0);
  }
}

bool within(int32_t point, int32_t first, int32_t last) { return first <= point && point <= last; }

bool is_space(int32_t p) {  // Python's \s, which the reference pipelines use
  return within(p, 9, 13) || within(p, 0x1C, 0x20) || p == 0x85 || p == 0xA0 || p == 0x1680 ||
         within(p, 0x2000, 0x200A) || p == 0x2028 || p == 0x2029 || p == 0x202F || p == 0x205F || p == 0x3000;
}

const std::unordered_map<std::string_view, int32_t>& entities() {
  static const auto table = [] {
    std::unordered_map<std::string_view, int32_t> made;
    std::string_view rest = kHtmlEntities;
    const auto word = [&] {
      const std::string_view found = rest.substr(0, rest.find(' '));
      rest.remove_prefix(std::min(rest.size(), found.size() + 1));
      return found;
    };
    while (!rest.empty()) {
      const std::string_view name = word();
      made[name] = static_cast<int32_t>(std::stol(std::string(word()), nullptr, 16));
    }
    return made;
  }();
  return table;
}

/// What HTML 5 makes of a number: 0x80..0x9F mean Windows-1252, non-characters vanish, the impossible is U+FFFD.
void append_reference(std::string& to, int64_t number) {
  static constexpr std::array<int32_t, 32> kWindows1252 = {
      0x20AC, 0x81,   0x201A, 0x192,  0x201E, 0x2026, 0x2020, 0x2021, 0x2C6,  0x2030, 0x160,
      0x2039, 0x152,  0x8D,   0x17D,  0x8F,   0x90,   0x2018, 0x2019, 0x201C, 0x201D, 0x2022,
      0x2013, 0x2014, 0x2DC,  0x2122, 0x161,  0x203A, 0x153,  0x9D,   0x17E,  0x178};
  if (number == 0 || number > 0x10FFFF || (number >= 0xD800 && number < 0xE000)) return append(to, 0xFFFD);
  const auto point = static_cast<int32_t>(number);
  if (within(point, 0x80, 0x9F)) return append(to, kWindows1252[point - 0x80]);
  if (within(point, 1, 8) || point == 0xB || within(point, 0xE, 0x1F) || point == 0x7F ||
      within(point, 0xFDD0, 0xFDEF) || (point & 0xFFFE) == 0xFFFE)
    return;
  append(to, point);
}

/// Bytes of `text` (which begins behind "&") that a reference takes, its character appended; 0: it is no reference.
size_t take_reference(std::string_view text, std::string& to) {
  const auto run = [&](size_t from, auto allowed) {
    size_t end = from;
    while (end < text.size() && allowed(static_cast<unsigned char>(text[end]))) ++end;
    return end;
  };
  const auto with_semicolon = [&](size_t end) { return end + (end < text.size() && text[end] == ';'); };
  if (text.starts_with('#')) {
    const bool hex = text.size() > 1 && (text[1] == 'x' || text[1] == 'X');
    const size_t first = hex ? 2 : 1;
    const size_t end = hex ? run(first, ::isxdigit) : run(first, ::isdigit);
    if (end == first) return 0;
    int64_t number = 0;
    for (const char digit : text.substr(first, end - first))
      number = std::min<int64_t>(0x110000,
                                 number * (hex ? 16 : 10) + (digit <= '9' ? digit - '0' : (digit | 32) - 'a' + 10));
    append_reference(to, number);
    return with_semicolon(end);
  }
  const size_t end = run(0, ::isalnum);
  if (with_semicolon(end) > end) {
    if (const auto found = entities().find(text.substr(0, end)); found != entities().end())
      return append(to, found->second), end + 1;
  }
  for (size_t length = std::min<size_t>(end, 8); length > 1; --length) {
    const auto found = entities().find(text.substr(0, length));
    if (found != entities().end() && found->second < 0x100) return append(to, found->second), length;
  }
  return 0;
}

/// One code point as ftfy would leave it; most stay.
void append_plain(std::string& to, int32_t p) {
  static constexpr std::array<const char*, 7> kLigatures = {"ff",  "fi",      "fl", "ffi",
                                                            "ffl", "\u017Ft", "st"};  // U+FB00..
  if (p < 0) return append(to, 0xFFFD);
  if (p == 0x2BC || within(p, 0x2018, 0x201B)) return append(to, '\'');
  if (within(p, 0x201C, 0x201F)) return append(to, '"');
  if (within(p, 0xFB00, 0xFB06)) return void(to += kLigatures[p - 0xFB00]);
  if (within(p, 0xFF01, 0xFF5E)) return append(to, p - 0xFF01 + '!');
  const bool control = within(p, 0, 8) || p == 0xB || within(p, 0xE, 0x1F) || p == 0x7F || within(p, 0x206A, 0x206F) ||
                       p == 0xFEFF || within(p, 0xFFF9, 0xFFFC);
  if (!control) append(to, p);
}

}  // namespace

size_t invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    if (next(text, at) < 0) return here;
  }
  return std::string_view::npos;
}

std::string unescape_html(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t taken = text[at] == '&' ? take_reference(text.substr(at + 1), out) : 0;
    if (taken == 0) out += text[at];
    at += 1 + taken;
  }
  return out;
}

namespace {

/// Runs of white space one space, none at the ends; what is not UTF-8 U+FFFD.
std::string single_spaces(std::string_view text) {
  std::string out;
  bool gap = false;
  for (size_t at = 0; at < text.size();) {
    const int32_t point = next(text, at);
    if (is_space(point)) {
      gap = !out.empty();
      continue;
    }
    if (gap) out += ' ';
    gap = false;
    append(out, point < 0 ? 0xFFFD : point);
  }
  return out;
}

/// Entities are resolved where there is no mark-up, so that "&ldquo;" too becomes a straight quote.
std::string resolved_entities(std::string_view text) {
  return text.find('<') == std::string_view::npos ? unescape_html(text) : std::string(text);
}

}  // namespace

std::string clean_text(std::string_view text) {
  const std::string resolved = repair_encoding(resolved_entities(text));
  std::string plain;
  for (size_t at = 0; at < resolved.size();) append_plain(plain, next(resolved, at));
  return single_spaces(unescape_html(unescape_html(compose(std::move(plain)))));
}

std::string_view without_space(std::string_view text, bool before, bool behind) {
  size_t first = text.size(), last = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    if (is_space(next(text, at))) continue;
    first = std::min(first, here);
    last = at;
  }
  if (last == 0) return before || behind ? std::string_view(text.data(), 0) : text;  // nothing but space
  const size_t begin = before ? first : 0;
  return text.substr(begin, (behind ? last : text.size()) - begin);
}

std::string lower_and_strip(std::string_view text) {
  const std::string lower = lower_case(std::string(text));
  return std::string(without_space(lower, true, true));
}

std::string clip_text(std::string_view text) { return lower_case(single_spaces(fix_text(text))); }

namespace {

/// Bytes of a terminal's escape ("ESC[0;1m") at the begin of `text`; 0: there is none.
size_t escape_length(std::string_view text) {
  if (!text.starts_with("\x1b[")) return 0;
  size_t end = 2;
  while (end < text.size() && (std::isdigit(static_cast<unsigned char>(text[end])) || text[end] == ';')) ++end;
  return end < text.size() && std::isalpha(static_cast<unsigned char>(text[end])) ? end + 1 : 0;
}

/// What ftfy changes beside append_plain's; false: nothing.
bool append_fixed(std::string& to, int32_t point) {
  static const std::unordered_map<int32_t, const char*> kLigatures = {
      {0x132, "IJ"},      {0x133, "ij"}, {0x149, "\u02BCn"}, {0x1C4, "D\u017D"}, {0x1C5, "D\u017E"},
      {0x1C6, "d\u017E"}, {0x1C7, "LJ"}, {0x1C8, "Lj"},      {0x1C9, "lj"},      {0x1CA, "NJ"},
      {0x1CB, "Nj"},      {0x1CC, "nj"}, {0x1F1, "DZ"},      {0x1F2, "Dz"},      {0x1F3, "dz"}};
  if (const auto found = kLigatures.find(point); found != kLigatures.end()) return to += found->second, true;
  if (point == 0x3000) return to += ' ', true;
  if (!within(point, 0xFF5F, 0xFFEF)) return false;
  return to += compatible(point), true;
}

}  // namespace

std::string fix_text(std::string_view text) {
  const std::string resolved = repair_encoding(resolved_entities(text));
  std::string fixed;
  for (size_t at = 0; at < resolved.size();) {
    if (const size_t escape = escape_length(std::string_view(resolved).substr(at)); escape > 0) {
      at += escape;
      continue;
    }
    int32_t point = next(resolved, at);
    if (within(point, 0x80, 0x9F)) {  // they mean what the same numbers mean in HTML
      std::string meant;
      size_t begin = 0;
      append_reference(meant, point);
      point = next(meant, begin);
    }
    if (!append_fixed(fixed, point)) append_plain(fixed, point);
  }
  return compose(std::move(fixed));
}

Letter letter_of(int32_t point) { return is_space(point) ? Letter::space : category_of(point); }

std::vector<std::string_view> clip_words(std::string_view text) {
  std::vector<std::string_view> words;
  const auto ends_with_any = [](std::string_view rest) -> size_t {
    for (const std::string_view own : {"<|startoftext|>", "<|endoftext|>", "'s", "'t", "'re", "'ve", "'m", "'ll", "'d"})
      if (rest.starts_with(own)) return own.size();
    return 0;
  };
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    const Letter kind = letter_of(next(text, end));
    if (const size_t own = ends_with_any(text.substr(at)); own > 0) {
      end = at + own;
    } else if (kind == Letter::letter || kind == Letter::other) {
      for (size_t after = end; after < text.size() && letter_of(next(text, after)) == kind;) end = after;
    }
    if (kind != Letter::space) words.push_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

namespace {

/// Unicode's white space, without the separators of information that Python counts to it.
Letter qwen_letter(int32_t point) { return within(point, 0x1C, 0x1F) ? Letter::other : letter_of(point); }

bool ends_line(char c) { return c == '\n' || c == '\r'; }

/// Bytes of a contraction's end ("'ll") that `text` begins with; 0: none. U+017F is an s without its case.
size_t contraction(std::string_view text) {
  if (!text.starts_with('\'')) return 0;
  const auto small = [&](size_t i) { return i < text.size() && text[i] > 0 ? static_cast<char>(text[i] | 0x20) : ' '; };
  const char first = small(1), second = small(2);
  if (text.substr(1).starts_with("\u017F")) return 3;
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  const bool two = ((first == 'r' || first == 'v') && second == 'e') || (first == 'l' && second == 'l');
  return two ? 3 : 0;
}

class QwenWords {
 public:
  explicit QwenWords(std::string_view text) : text_(text) {}

  /// The end of the word that begins at `at`.
  size_t end(size_t at) const {
    if (const size_t own = contraction(text_.substr(at)); own > 0) return at + own;
    size_t after = at;
    const Letter kind = qwen_letter(next(text_, after));
    if (kind == Letter::number) return after;
    if (kind == Letter::letter) return behind(Letter::letter, at);
    if (!ends_line(text_[at]) && kind_at(after) == Letter::letter) return behind(Letter::letter, after);
    if (const size_t signs = text_[at] == ' ' ? after : at; kind_at(signs) == Letter::other) {
      size_t end = behind(Letter::other, signs);
      while (end < text_.size() && ends_line(text_[end])) ++end;
      return end;
    }
    return space_end(at);
  }

 private:
  Letter kind_at(size_t at) const { return at < text_.size() ? qwen_letter(next(text_, at)) : Letter::space; }
  /// Of the run of that kind that begins at `at`.
  size_t behind(Letter kind, size_t at) const {
    for (size_t after = at; after < text_.size() && qwen_letter(next(text_, after)) == kind;) at = after;
    return at;
  }
  /// White space up to its last line end; without one all of it at the end of the text, else all but its last character.
  size_t space_end(size_t at) const {
    size_t end = at, last = at, line = at;
    while (kind_at(end) == Letter::space && end < text_.size()) {
      last = end;
      next(text_, end);
      if (ends_line(text_[last])) line = end;
    }
    if (line > at) return line;
    return end == text_.size() || last == at ? end : last;
  }

  const std::string_view text_;
};

}  // namespace

std::vector<std::string_view> qwen_words(std::string_view text) {
  std::vector<std::string_view> words;
  const QwenWords split(text);
  for (size_t at = 0; at < text.size();) {
    const size_t end = split.end(at);
    words.push_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

std::string glyph_text(std::string_view prompt) {
  constexpr std::pair<std::string_view, std::string_view> kQuotes[] = {{"\"", "\""}, {"\u201C", "\u201D"}};
  std::vector<std::string_view> texts;
  for (size_t at = 0; at < prompt.size();) {
    size_t behind = at + 1;
    for (const auto& [open, close] : kQuotes) {
      if (!prompt.substr(at).starts_with(open)) continue;
      const std::string_view rest = prompt.substr(at + open.size()), text = rest.substr(0, rest.find(close));
      if (text.size() == rest.size() || text.find('\n') != text.npos) continue;
      if (std::ranges::find(texts, text) == texts.end()) texts.push_back(text);
      behind = at + open.size() + text.size() + close.size();
    }
    at = behind;
  }
  std::string formatted;
  for (const std::string_view text : texts) formatted.append("Text \"").append(text).append("\". ");
  return formatted;
}

namespace {

/// Bytes 0x80..0x9F of Windows-1252; those that mean nothing there stand for themselves.
constexpr std::array<uint32_t, 32> kHigh = {0x20AC, 0x81,   0x201A, 0x192,  0x201E, 0x2026, 0x2020, 0x2021,
                                            0x2C6,  0x2030, 0x160,  0x2039, 0x152,  0x8D,   0x17D,  0x8F,
                                            0x90,   0x2018, 0x2019, 0x201C, 0x201D, 0x2022, 0x2013, 0x2014,
                                            0x2DC,  0x2122, 0x161,  0x203A, 0x153,  0x9D,   0x17E,  0x178};

std::optional<uint8_t> byte_in_1252(uint32_t point) {
  const bool high = point >= 0x80 && point < 0xA0;
  if (point <= 0xFF && !high) return static_cast<uint8_t>(point);
  const auto found = std::ranges::find(kHigh, point);
  if (found == kHigh.end()) return std::nullopt;
  return static_cast<uint8_t>(0x80 + (found - kHigh.begin()));
}
std::optional<uint8_t> byte_in_latin(uint32_t point) {
  return point <= 0xFF ? std::optional(static_cast<uint8_t>(point)) : std::nullopt;
}

/// What ftfy (6.3, badness.py) counts as a sign of the mistake, of the pairs that these encodings have. Behind "Ã" and
/// "Â" it leaves those that occur in right text too.
bool looks_wrong(const std::vector<uint32_t>& line) {
  constexpr std::array<uint32_t, 6> kInRightText = {0xA5, 0x201E, 0x2026, 0x152, 0x17D, 0x2019};
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] >= 0x80 && line[i] <= 0x9F) return true;
    if (i + 1 == line.size()) continue;
    if (line[i] == 0xE2 && line[i + 1] == 0x20AC) return true;
    const auto byte = byte_in_1252(line[i + 1]);
    const bool follows =
        byte && *byte >= 0x80 && *byte < 0xC0 && std::ranges::find(kInRightText, line[i + 1]) == kInRightText.end();
    if ((line[i] == 0xC2 || line[i] == 0xC3) && follows) return true;
  }
  return false;
}

bool is_utf8(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8 character = utf8_at(text, at);
    if (!character.valid) return false;
    at += character.bytes;
  }
  return true;
}

/// One step for a line; empty: there is none.
std::optional<std::string> repaired_once(const std::string& text) {
  std::vector<uint32_t> points;
  for (size_t at = 0; at < text.size();) {
    const Utf8 character = utf8_at(text, at);
    if (!character.valid) return std::nullopt;
    points.push_back(character.code), at += character.bytes;
  }
  if (!looks_wrong(points)) return std::nullopt;
  for (const auto byte_in : {byte_in_latin, byte_in_1252}) {
    std::string bytes;
    for (const uint32_t point : points)
      if (const auto byte = byte_in(point)) bytes += static_cast<char>(*byte);
    if (bytes.size() == points.size() && is_utf8(bytes)) return bytes;
  }
  return std::nullopt;
}

}  // namespace

std::string repair_encoding(std::string_view text) {
  std::string out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line(text.substr(begin, end - begin));
    while (auto repaired = repaired_once(line)) line = std::move(*repaired);  // each is shorter
    out += line;
    if (end < text.size()) out += '\n';
    begin = end + 1;
  }
  return out;
}

}  // namespace tessera::data
