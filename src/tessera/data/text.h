#pragma once
// Captions as the encoders expect them: UTF-8 in and out, entities resolved, white space single.
//
//   clean_text(" &quot;curly&quot;\n quotes\u201d ");     // "curly" quotes"
#include <string>
#include <string_view>

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
/// none at the ends. ftfy's repair of wrongly decoded text is left out.
std::string clean_text(std::string_view text);

/// Unicode's lower case, whatever the language: a capital sigma at the end of a word becomes a final one. A build
/// without ICU changes ASCII letters alone.
std::string lower_case(const std::string& text);

/// lower_case, without Unicode white space at the ends: what pipelines of Sana do to every prompt.
std::string lower_and_strip(std::string_view text);

}  // namespace tessera::data
