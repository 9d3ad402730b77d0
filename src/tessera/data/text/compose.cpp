// Canonical composition and lower case by ICU; no_compose.cpp is the one of a build without it.
#include <unicode/locid.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include "tessera/base/check.h"
#include "tessera/data/text/text.h"

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

std::string compatible(int32_t point) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* nfkc = icu::Normalizer2::getNFKCInstance(status);
  check_internal(U_SUCCESS(status), "data.text", std::string("compatibility form: ") + u_errorName(status));
  const icu::UnicodeString form = nfkc->normalize(icu::UnicodeString(point), status);
  check_internal(U_SUCCESS(status), "data.text", std::string("compatibility form: ") + u_errorName(status));
  std::string text;
  return form.toUTF8String(text);
}

Letter category_of(int32_t point) {
  const uint32_t mask = U_MASK(u_charType(point));
  return (mask & U_GC_L_MASK) != 0 ? Letter::letter : (mask & U_GC_N_MASK) != 0 ? Letter::number : Letter::other;
}

}  // namespace tessera::data
