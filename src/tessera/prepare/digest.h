#pragma once
// Digests of long lists that ranks compare, so that ranks with different files can name the first difference.
//
//   comm.check_agreement("data set", digest_of_rows(items));
#include <functional>
#include <string>
#include <vector>

#include "tessera/data/clips.h"

namespace tessera::prepare {

/// The rows of a data set, before anything is made from them: their number, then a line for every 64, the first and last
/// path and a hash of all that is said of them.
std::string digest_of_rows(const std::vector<data::Item>& items);

/// Likewise the clips of a plan; `more(c)` is what else is said of clip c.
std::string digest_of_clips(const data::ClipPlan& plan, const std::vector<data::Item>& items,
                            const std::function<std::string(size_t)>& more);

}  // namespace tessera::prepare
