#pragma once
// Captions as the encoders expect them: UTF-8 in and out, entities resolved, white space single.
//
//   clean_text(" &quot;curly&quot;\n quotes\u201d ");     // "curly" quotes"
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

/// Position of the first byte that is not UTF-8 (overlong forms and surrogates are not), or npos.
size_t invalid_utf8(std::string_view text);

/// HTML character references, as HTML 5 resolves them, for the names of HTML 4 ("&nbsp;", "&#39;", "&ampx").
std::string unescape_html(std::string_view text);

/// Unicode's canonical composition (NFC) of UTF-8: accents joined to their letters, stacked marks in their order. A
/// build without ICU (no_compose.cpp) returns the text as it is; the tokenizer's own normaliser then joins accents, but
/// leaves stacked marks in the order they were typed.
std::string compose(std::string text);

/// What text pipelines of Wan do: the common part of ftfy (straight quotes, ligatures and full-width letters as plain
/// ones, no control characters, canonical composition), HTML unescaped twice, runs of Unicode white space one space,
/// none at the ends. Of ftfy's repair of wrongly decoded text the part that mojibake.h has.
std::string clean_text(std::string_view text);

/// What ftfy.fix_text does, with mojibake.h's part of its repair: of clean_text without its white space, and also
/// ligatures of every kind, half-width letters, escapes of terminals and control characters of Latin-1. A build without
/// ICU leaves half-width letters.
std::string fix_text(std::string_view text);

/// Unicode's compatibility form (NFKC) of one character; itself in a build without ICU.
std::string compatible(int32_t point);

/// What CLIP's tokenizer does to a text: fix_text, runs of white space one space, none at the ends, lower case.
std::string clip_text(std::string_view text);

enum class Letter { space, letter, number, other };
/// Of Unicode's general categories: L*, N*; white space as Python has it. In a build without ICU everything beyond ASCII
/// that is no white space is a letter.
Letter letter_of(int32_t point);
Letter category_of(int32_t point);  ///< without white space: the part that ICU knows

/// The words that CLIP's tokenizer encodes by themselves: its special tokens, the ends of English contractions, runs of
/// letters, single numbers, and runs of anything else; white space is left out.
std::vector<std::string_view> clip_words(std::string_view text);

/// The words that Qwen2's tokenizer encodes by themselves, which make up the text together: the ends of English
/// contractions, runs of letters with one sign or blank before them, single numbers, runs of other signs with a blank
/// before and line ends behind them, and white space, of which the last blank belongs to the next word.
std::vector<std::string_view> qwen_words(std::string_view text);

/// What stands in double quotes in a prompt, "straight" or \u201Ccurly\u201D, for an encoder of written text (byT5):
/// `Text "A". Text "B". ` of each text once; empty where there is none. Quotes that a line end divides are none.
std::string glyph_text(std::string_view prompt);

/// Unicode's lower case, whatever the language: a capital sigma at the end of a word becomes a final one. A build
/// without ICU changes ASCII letters alone.
std::string lower_case(const std::string& text);

/// Without the Unicode white space at either end, or at both.
std::string_view without_space(std::string_view text, bool before, bool behind);

/// lower_case, without Unicode white space at the ends: what pipelines of Sana do to every prompt.
std::string lower_and_strip(std::string_view text);

// Text that was UTF-8 and was read as Windows-1252 or Latin-1: "schÃ¶n" for "schön".
//
//   repair_encoding("sch\u00C3\u00B6n \u00E2\u20AC\u0153x\u00E2\u20AC\u009D");     // "schön “x”"

/// The part of ftfy's repair that cannot go wrong: a line of which every character is one of Windows-1252 (else Latin-1)
/// and whose bytes there are UTF-8, where it has a sign that ftfy takes for the mistake: a control character of Latin-1,
/// "â€", or "Ã" or "Â" before what a byte of UTF-8 becomes. As often as it applies. ftfy also repairs other encodings and
/// single words of a line that is not wrong as a whole: these stay as they are here.
std::string repair_encoding(std::string_view text);

}  // namespace tessera::data
