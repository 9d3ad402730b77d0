#pragma once
// Text that was UTF-8 and was read as Windows-1252 or Latin-1: "schÃ¶n" for "schön".
//
//   repair_encoding("sch\u00C3\u00B6n \u00E2\u20AC\u0153x\u00E2\u20AC\u009D");     // "schön “x”"
#include <string>
#include <string_view>

namespace tessera::data {

/// The part of ftfy's repair that cannot go wrong: a line of which every character is one of Windows-1252 (else Latin-1)
/// and whose bytes there are UTF-8, where it has a sign that ftfy takes for the mistake: a control character of Latin-1,
/// "â€", or "Ã" or "Â" before what a byte of UTF-8 becomes. As often as it applies. ftfy also repairs other encodings and
/// single words of a line that is not wrong as a whole: these stay as they are here.
std::string repair_encoding(std::string_view text);

}  // namespace tessera::data
