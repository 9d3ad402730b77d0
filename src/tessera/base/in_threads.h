#pragma once
// Independent work in a few threads.
//
//   for_each_in_threads(paths.size(), [&](size_t i) { sizes[i] = size_of(paths[i]); });
#include <cstddef>
#include <functional>

namespace tessera {

/// Calls `work(i)` for each i below `count`: in this thread and up to seven others, not more than the machine has cores,
/// the lowest i first. Where some throw, the exception of the lowest i is thrown once all calls have ended.
void for_each_in_threads(size_t count, const std::function<void(size_t)>& work);

}  // namespace tessera
