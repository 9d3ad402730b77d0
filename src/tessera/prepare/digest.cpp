#include "tessera/prepare/digest.h"

#include <algorithm>

#include "tessera/base/random.h"

namespace tessera::prepare {

namespace {

using Of = std::function<std::string(size_t)>;

std::string digest(size_t count, const Of& path, const Of& of) {
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

}  // namespace

std::string digest_of_rows(const std::vector<data::Item>& items) {
  const auto path = [&](size_t i) { return items[i].path.string(); };
  return std::to_string(items.size()) + " rows\n" + digest(items.size(), path, [&](size_t i) {
           std::string text = path(i) + '\n';
           for (const std::string& caption : items[i].captions) text += caption + '\n';
           return text;
         });
}

std::string digest_of_clips(const data::ClipPlan& plan, const std::vector<data::Item>& items, const Of& more) {
  const auto path = [&](size_t c) { return items[static_cast<size_t>(plan.clips[c].item)].path.string(); };
  return std::to_string(plan.clips.size()) + " clips\n" + digest(plan.clips.size(), path, [&](size_t c) {
           return path(c) + '\n' + plan.preprocessing(plan.clips[c]) + '\n' + more(c);
         });
}

}  // namespace tessera::prepare
