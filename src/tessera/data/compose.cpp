// Canonical composition and lower case by ICU; no_compose.cpp is the one of a build without it.
#include <unicode/locid.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>
#include <unicode/unistr.h>

#include "tessera/base/check.h"
#include "tessera/data/text.h"

namespace tessera::data {

std::string compose(std::string text) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* nfc = icu::Normalizer2::getNFCInstance(status);
  std::string composed;
  icu::StringByteSink<std::string> sink(&composed);
  if (U_SUCCESS(status)) nfc->normalizeUTF8(0, text, sink, nullptr, status);
  check_internal(U_SUCCESS(status), "data.text", std::string("canonical composition: ") + u_errorName(status));
  return composed;
}

std::string lower_case(const std::string& text) {
  std::string lower;
  icu::UnicodeString::fromUTF8(text).toLower(icu::Locale::getRoot()).toUTF8String(lower);
  return lower;
}

}  // namespace tessera::data
