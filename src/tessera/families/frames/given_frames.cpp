#include "tessera/families/frames/given_frames.h"

#include <algorithm>
#include <set>

#include "tessera/base/check.h"

namespace tessera::families {

namespace {

/// What a kind gives: at the begin, at the end, or at both; latent frames of an autoencoder that is not causal, 0: one
/// picture.
struct GivenKind {
  const char* name;
  bool head, tail;
  int64_t latents = 0;
};
constexpr GivenKind kKinds[] = {{"t2v", false, false},
                                {"i2v_head", true, false},
                                {"i2v_tail", false, true},
                                {"i2v_loop", true, true},
                                {"v2v_head", true, false, 8},
                                {"v2v_tail", false, true, 8},
                                {"v2v_head_easy", true, false, 16},
                                {"v2v_tail_easy", false, true, 16}};
constexpr int64_t kStride = 4;  // frames of a latent frame
const std::string kNames = "given.";

const GivenKind& kind_of(const std::string& name) {
  for (const GivenKind& kind : kKinds)
    if (name == kind.name) return kind;
  std::string all;
  for (const std::string& known : given_kinds()) all += (all.empty() ? "" : ", ") + known;
  throw UserError(Exit::usage, "conditions", "unknown kind '" + name + "'",
                  "did you mean " + nearest(name, given_kinds()).front() + "? There are " + all);
}

int64_t latents_of(const GivenKind& kind, bool causal) {
  return kind.latents == 0 ? 1 : kind.latents + (causal ? 1 : 0);
}

/// Of a causal autoencoder.
int64_t frames_of(const GivenKind& kind) { return kind.latents == 0 ? 1 : kind.latents * kStride + 1; }

}  // namespace

std::vector<std::string> given_kinds() {
  std::vector<std::string> names;
  for (const GivenKind& kind : kKinds) names.emplace_back(kind.name);
  return names;
}

GivenPlaces places_of(const std::string& name) {
  const GivenKind& kind = kind_of(name);
  return {kind.head, kind.tail, kind.latents == 0 && (kind.head || kind.tail)};
}

std::string kind_giving(bool first, bool last, bool video) {
  if (video) return "v2v_head";
  if (first && last) return "i2v_loop";
  return first ? "i2v_head" : last ? "i2v_tail" : "t2v";
}

std::string given_examples() {
  return "t2v=1,i2v_head=5,i2v_loop=1,i2v_tail=1, and v2v_head, v2v_tail (33 frames), v2v_head_easy, v2v_tail_easy (65) for "
         "clips that are longer";
}

int64_t latents_given(const std::string& name, bool causal) { return latents_of(kind_of(name), causal); }

std::vector<Weighted> fitting(const std::vector<Weighted>& weights, int64_t latent_frames, bool causal) {
  std::vector<Weighted> fit;
  for (const Weighted& weight : weights) {
    const GivenKind& kind = kind_of(weight.name);
    if (kind.latents == 0 || latent_frames > latents_of(kind, causal)) fit.push_back(weight);
  }
  return fit;
}

std::string chosen(const std::vector<Weighted>& weights, double u) {
  double sum = 0, until = 0;
  for (const Weighted& weight : weights) sum += weight.weight;
  if (!(sum > 0))
    throw UserError(Exit::usage, "conditions", "no kind that the clip is long enough for has a weight above 0",
                    "give t2v one");
  for (const Weighted& weight : weights)
    if (until += weight.weight; u * sum < until) return weight.name;
  return weights.back().name;
}

bool is_causal(int64_t frames, int64_t latent_frames) { return frames == kStride * (latent_frames - 1) + 1; }

std::string GivenFrames::name() const {
  return kNames + (noisy ? "noisy" : std::to_string(begin) + "-" + std::to_string(begin + count));
}

bool is_given_name(const std::string& name) { return name.starts_with(kNames); }

std::vector<GivenFrames> given_frames(const std::string& name, int64_t frames, int64_t latent_frames, bool causal) {
  const GivenKind& kind = kind_of(name);
  if (latent_frames < 2) return {};  // a picture
  const int64_t latents = latents_of(kind, causal);
  const int64_t count = kind.latents == 0 || causal ? frames_of(kind) : 0;
  std::vector<GivenFrames> given;
  if (kind.head) given.push_back({0, count, 0, latents});
  if (kind.tail) given.push_back({frames - count, count, latent_frames - latents, latents});
  return given;
}

std::vector<GivenFrames> all_given(const std::vector<Weighted>& kinds, int64_t frames, int64_t latent_frames) {
  const bool causal = is_causal(frames, latent_frames);
  std::vector<GivenFrames> all;
  for (const Weighted& kind : fitting(kinds, latent_frames, causal))
    for (const GivenFrames& given : given_frames(kind.name, frames, latent_frames, causal))
      if (kind.weight > 0 && given.count > 0 && std::ranges::find(all, given) == all.end()) all.push_back(given);
  return all;
}

int64_t Windows::count() const {
  return length == 0 ? 1 : std::max<int64_t>(1, div_up(frames - overlap, length - overlap));
}

int64_t to_and_fro(int64_t place, int64_t frames) {
  if (frames < 2) return 0;
  const int64_t turned = place % (2 * frames - 2);
  return std::min(turned, 2 * frames - 2 - turned);
}

std::string given_text(const std::vector<Weighted>& kinds) {
  std::set<std::string> all;
  for (const Weighted& weight : kinds) {
    const GivenKind& kind = kind_of(weight.name);
    if (!(weight.weight > 0)) continue;
    const std::string count = kind.latents == 0 ? "" : std::to_string(frames_of(kind));
    if (kind.head) all.insert("first" + count);
    if (kind.tail) all.insert("last" + count);
  }
  std::string text;
  for (const std::string& one : all) text += (text.empty() ? "" : " ") + one;
  return text;
}

}  // namespace tessera::families
