// A build without ICU: texts keep the order of their marks. compose.cpp is the other one.
#include "tessera/data/text.h"

namespace tessera::data {

std::string compose(std::string text) { return text; }

}  // namespace tessera::data
