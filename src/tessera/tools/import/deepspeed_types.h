#pragma once
// The part of DeepSpeed's JSON that is about types: what is computed, exchanged and stored in which precision.
#include <vector>

#include "tessera/tools/options/dialect.h"

namespace tessera::tools {

std::vector<Rule> deepspeed_type_rules();

}  // namespace tessera::tools
