#include "tessera/families/frames/frame_masks.h"

#include <algorithm>
#include <array>
#include <utility>

#include "tessera/base/check.h"

namespace tessera::families {

namespace {

constexpr const char* kIdentity = "identity";
constexpr const char* kRandom = "random";
constexpr const char* kInterpolate = "interpolate";
constexpr const char* kMisspelled = "intepolate";

/// Frames in a row that are given: one, or up to a quarter of all.
struct Runs {
  const char* name;
  bool quarter, anywhere, head, tail;
};
constexpr Runs kRuns[] = {{"quarter_random", true, true, false, false}, {"quarter_head", true, false, true, false},
                          {"quarter_tail", true, false, false, true},   {"quarter_head_tail", true, false, true, true},
                          {"image_random", false, true, false, false},  {"image_head", false, false, true, false},
                          {"image_tail", false, false, false, true},    {"image_head_tail", false, false, true, true}};

void give(std::vector<char>& noised, int64_t begin, int64_t count) {
  for (int64_t f = begin; f < begin + count; ++f) noised[static_cast<size_t>(f)] = 0;
}

void give_runs(std::vector<char>& noised, const Runs& kind, const MaskDraws& draws) {
  const auto frames = static_cast<int64_t>(noised.size());
  const int64_t size = kind.quarter ? draws.whole(1, std::max<int64_t>(1, frames / 4)) : 1;
  if (kind.anywhere) give(noised, draws.whole(0, frames - size), size);
  if (kind.head) give(noised, 0, size);
  if (kind.tail) give(noised, frames - size, size);
}

void leave_one(std::vector<char>& noised) {
  if (std::ranges::count(noised, 1) == 0) noised.back() = 1;
}

[[noreturn]] void unknown(const std::string& name, const std::vector<std::string>& known) {
  std::string all;
  for (const std::string& one : known) all += (all.empty() ? "" : ", ") + one;
  throw UserError(Exit::usage, "masks", "unknown kind '" + name + "'",
                  "did you mean " + nearest(name, known).front() + "? There are " + all);
}

}  // namespace

std::vector<std::string> mask_kinds() {
  std::vector<std::string> names = {kRandom, kInterpolate};
  for (const Runs& kind : kRuns) names.emplace_back(kind.name);
  return names;
}

std::string mask_kind(const std::string& name) {
  if (name == kMisspelled) return kInterpolate;
  const std::vector<std::string> known = mask_kinds();
  if (name != kIdentity && std::ranges::find(known, name) == known.end()) unknown(name, known);
  return name;
}

std::string masked_by(const std::vector<Weighted>& ratios, double u) {
  double sum = 0;
  for (const Weighted& ratio : ratios)
    if (sum += ratio.weight; u < sum) return ratio.name;
  return kIdentity;
}

std::vector<char> frame_mask_of_1_2(const std::string& name, int64_t frames, const MaskDraws& draws) {
  std::vector<char> noised(static_cast<size_t>(frames), 1);
  const std::string kind = mask_kind(name);
  if (frames < 2 || kind == kIdentity) return noised;
  if (kind == kRandom) {
    const double share = draws.real(0.1, 0.9);
    for (int64_t f = 0; f < frames; ++f) noised[static_cast<size_t>(f)] = draws.of_frame(f) > share;
    leave_one(noised);
  } else if (kind == kInterpolate) {
    for (int64_t f = draws.whole(0, 1); f < frames; f += 2) give(noised, f, 1);
  } else {
    for (const Runs& runs : kRuns)
      if (kind == runs.name) give_runs(noised, runs, draws);
  }
  return noised;
}

std::vector<char> frame_mask(const std::string& kind, int64_t frames, const MaskDraws& draws) {
  std::vector<char> noised = frame_mask_of_1_2(kind, frames, draws);
  leave_one(noised);
  return noised;
}

std::vector<std::string> beside_kinds() {
  return {"none", "i2v_head", "i2v_tail", "i2v_loop", "v2v_head", "v2v_head_noisy", "v2v_tail", "other", "other_noisy"};
}

std::string beside_kind(const std::string& name) {
  if (name == "i2v") return "i2v_head";
  const std::vector<std::string> known = beside_kinds();
  if (std::ranges::find(known, name) == known.end()) unknown(name, known);
  return name;
}

std::string beside_examples() {
  return "none=8, i2v_head=2, i2v_tail=2, i2v_loop=2, v2v_head=1, v2v_head_noisy=2, v2v_tail=1, other=1 as in Open-Sora 1.3";
}

std::vector<std::string> drop_kinds() { return {"cond", "text", "null", "keep"}; }

std::vector<char> frames_beside(const std::string& name, int64_t frames, const MaskDraws& draws) {
  const std::string kind = beside_kind(name);
  const int64_t half = frames / 2;
  const auto range = [&](int64_t begin, int64_t end) {
    std::vector<char> given(static_cast<size_t>(frames), 0);
    std::fill(given.begin() + begin, given.begin() + end, char{1});
    return given;
  };
  if (kind == "none") return range(0, 0);
  if (kind == "i2v_head") return range(0, 1);
  if (kind == "i2v_tail") return range(frames - 1, frames);
  if (kind == "v2v_head" || kind == "v2v_head_noisy") return range(0, half);
  if (kind == "v2v_tail") return range(half, frames);
  if (kind == "i2v_loop") {
    std::vector<char> given = range(0, 1);
    given.back() = 1;
    return given;
  }
  const bool at_begin = draws.real(0, 1) < 0.5;
  const int64_t edge = draws.whole(1, std::max<int64_t>(1, frames - 2));
  return at_begin ? range(0, edge) : range(edge, frames);
}

bool gives_noisy(const std::string& kind, const std::vector<char>& given) {
  return kind.ends_with("_noisy") && !given.empty() && given.front() == 1;
}

bool any_noisy(const std::vector<Weighted>& kinds) {
  return std::ranges::any_of(kinds, [](const Weighted& k) { return k.weight > 0 && k.name.ends_with("_noisy"); });
}

bool any_beside(const std::vector<Weighted>& kinds) {
  return std::ranges::any_of(kinds, [](const Weighted& k) { return k.weight > 0 && k.name != "none"; });
}

std::vector<int64_t> most_parted(const std::vector<Weighted>& kinds, int64_t frames) {
  if (frames < 2 || !any_beside(kinds)) return {};
  const bool loops = std::ranges::any_of(kinds, [](const Weighted& k) { return k.weight > 0 && k.name == "i2v_loop"; });
  if (!loops || frames < 3) return {0};
  return {0, frames - 1};
}

}  // namespace tessera::families
