#pragma once
// Digests of long lists that ranks compare, so that ranks with different files can name the first difference.
//
//   comm.check_agreement("data set", digest(items.size(), path_of, text_of));
#include <algorithm>
#include <string>

#include "tessera/base/random.h"

namespace tessera::prepare {

/// A line for every 64 of `count` things: the first and last path, and a hash of `of(i)` of each.
template <class Path, class Of>
std::string digest(size_t count, const Path& path, const Of& of) {
  constexpr size_t kTogether = 64;
  std::string text;
  for (size_t begin = 0; begin < count; begin += kTogether) {
    const size_t end = std::min(begin + kTogether, count);
    std::string of_these;
    for (size_t i = begin; i < end; ++i) of_these += of(i);
    text += path(begin) + " to " + path(end - 1) + ": " + std::to_string(hash_text(of_these)) + '\n';
  }
  return text;
}

}  // namespace tessera::prepare
