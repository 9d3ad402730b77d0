#pragma once
// Imports the dtypes of DeepSpeed's JSON: the precision of compute, communication and storage.
#include <vector>

#include "tessera/tools/options/dialect.h"

namespace tessera::tools {

std::vector<Rule> deepspeed_type_rules();

}  // namespace tessera::tools
