#pragma once
// Reads FSDP options in the forms that trainers publish: in tables of several names, and as quoted Python calls.
//
//   bare_words(given);     // "fsdp.mixed_precision" = "MixedPrecision(param_dtype=torch.bfloat16)" is param_dtype
#include <vector>

#include "tessera/tools/options/dialect.h"

namespace tessera::tools {

/// Takes away what stands before a word (fsdp_config., fsdp_, --), and makes an option of each argument of a call. An
/// argument without a name is an option by itself: partial(checkpoint_wrapper, ...). Throws UserError (usage) for a
/// call that does not end.
void bare_words(std::vector<Given>& given);

}  // namespace tessera::tools
