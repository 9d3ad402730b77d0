#include "tessera/models/opensora/condition.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/models/common/unknown.h"

namespace tessera::models::opensora {

using at::Tensor;

namespace {

/// What a kind gives: at the begin, at the end, or at both; latent frames of an autoencoder that is not causal, 0: one
/// picture.
struct Kind {
  const char* name;
  bool head, tail;
  int64_t latents = 0;
};
constexpr Kind kKinds[] = {{"t2v", false, false},
                           {"i2v_head", true, false},
                           {"i2v_tail", false, true},
                           {"i2v_loop", true, true},
                           {"v2v_head", true, false, 8},
                           {"v2v_tail", false, true, 8},
                           {"v2v_head_easy", true, false, 16},
                           {"v2v_tail_easy", false, true, 16}};
constexpr int64_t kStride = 4;  // frames of a latent frame

const Kind& kind_of(const std::string& name) {
  std::vector<std::string> known;
  for (const Kind& kind : kKinds) {
    if (name == kind.name) return kind;
    known.emplace_back(kind.name);
  }
  unknown_name("condition", name, known);
}

int64_t latents_of(const Kind& kind, bool causal) { return kind.latents == 0 ? 1 : kind.latents + (causal ? 1 : 0); }

Tensor nothing(at::IntArrayRef latent, const at::TensorOptions& options) {
  return at::zeros({latent[0] + 1, latent[1], latent[2], latent[3]}, options);
}

void put(const Tensor& cond, int64_t at, const Tensor& piece) {
  const Tensor there = cond.narrow(1, at, piece.size(1));
  there.narrow(0, 0, 1).fill_(1);
  there.narrow(0, 1, piece.size(0)).copy_(piece);
}

}  // namespace

std::vector<ConditionWeight> fitting(const std::vector<ConditionWeight>& weights, int64_t latent_frames, bool causal) {
  std::vector<ConditionWeight> fit;
  for (const ConditionWeight& weight : weights) {
    const Kind& kind = kind_of(weight.kind);
    if (kind.latents == 0 || latent_frames > latents_of(kind, causal)) fit.push_back(weight);
  }
  return fit;
}

std::string chosen(const std::vector<ConditionWeight>& weights, double u) {
  double sum = 0, until = 0;
  for (const ConditionWeight& weight : weights) sum += weight.weight;
  if (!(sum > 0))
    throw UserError(Exit::usage, "condition", "no kind of condition has a weight above 0", "give t2v one");
  for (const ConditionWeight& weight : weights)
    if (until += weight.weight; u * sum < until) return weight.kind;
  return weights.back().kind;
}

std::vector<GivenFrames> given_frames(const std::string& name, int64_t frames, int64_t latent_frames, bool causal) {
  const Kind& kind = kind_of(name);
  if (latent_frames < 2) return {};  // a picture
  const int64_t latents = latents_of(kind, causal);
  const int64_t count = kind.latents == 0 ? 1 : causal ? kind.latents * kStride + 1 : 0;
  std::vector<GivenFrames> given;
  if (kind.head) given.push_back({0, count, 0, latents});
  if (kind.tail) given.push_back({frames - count, count, latent_frames - latents, latents});
  return given;
}

Tensor condition(const Tensor& latent, const std::vector<GivenFrames>& given, const std::vector<Tensor>& pieces) {
  const Tensor cond = nothing(latent.sizes(), latent.options());
  size_t next = 0;
  for (const GivenFrames& frames : given) {
    check_internal(frames.count == 0 || next < pieces.size(), "condition", "a piece of given frames is missing");
    const Tensor piece = frames.count == 0 ? latent.narrow(1, frames.at, frames.latents) : pieces[next++];
    check_internal(piece.size(1) == frames.latents, "condition", "given frames became other latent frames");
    put(cond, frames.at, piece);
  }
  return cond;
}

Tensor reference_condition(const std::string& name, at::IntArrayRef latent, const std::vector<Tensor>& references,
                           bool causal) {
  const Kind& kind = kind_of(name);
  const Tensor cond =
      nothing(latent, references.empty() ? at::TensorOptions(at::kFloat) : references.front().options());
  if (latent[1] < 2 || references.empty()) return cond;
  const int64_t latents = latents_of(kind, causal);
  for (const Tensor& reference : references)
    check_input(reference.size(1) >= latents && latents <= latent[1], "condition",
                name + " takes " + std::to_string(latents) + " latent frames, the reference has " +
                    std::to_string(reference.size(1)) + " and the video " + std::to_string(latent[1]),
                "give a longer one");
  if (kind.head) put(cond, 0, references.front().narrow(1, 0, latents));
  if (kind.tail)
    put(cond, latent[1] - latents, references.back().narrow(1, references.back().size(1) - latents, latents));
  return cond;
}

}  // namespace tessera::models::opensora
