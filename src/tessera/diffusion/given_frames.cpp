#include "tessera/diffusion/given_frames.h"

#include "tessera/base/check.h"

namespace tessera::diffusion {

using at::Tensor;
using families::GivenFrames;

namespace {

Tensor nothing(at::IntArrayRef latent, const at::TensorOptions& options) {
  return at::zeros({latent[0] + 1, latent[1], latent[2], latent[3]}, options);
}

void put(const Tensor& cond, int64_t at, const Tensor& piece) {
  const Tensor there = cond.narrow(1, at, piece.size(1));
  there.narrow(0, 0, 1).fill_(1);
  there.narrow(0, 1, piece.size(0)).copy_(piece);
}

}  // namespace

Tensor frame_index(const std::vector<char>& given) {
  std::vector<int64_t> index;
  for (size_t f = 0; f < given.size(); ++f)
    if (given[f]) index.push_back(static_cast<int64_t>(f));
  return at::tensor(index, at::kLong);
}

BesideInput beside_input(const std::string& drop, const Tensor& latent, const Tensor& index, const Tensor& caption,
                         const Tensor& null) {
  BesideInput input{drop == "cond" || drop == "null" ? null : caption, {}};
  if (drop == "text" || drop == "null") return input;
  input.cond = at::zeros_like(latent);
  for (int64_t i = 0; i < index.numel(); ++i) {
    const auto frame = index[i].item<int64_t>();
    input.cond.select(1, frame).copy_(latent.select(1, frame));
  }
  return input;
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
  const families::GivenPlaces places = families::places_of(name);
  const Tensor cond =
      nothing(latent, references.empty() ? at::TensorOptions(at::kFloat) : references.front().options());
  if (latent[1] < 2 || references.empty()) return cond;
  const int64_t latents = families::latents_given(name, causal);
  for (const Tensor& reference : references)
    check_input(reference.size(1) >= latents && latents <= latent[1], "condition",
                name + " takes " + std::to_string(latents) + " latent frames, the reference has " +
                    std::to_string(reference.size(1)) + " and the video " + std::to_string(latent[1]),
                "give a longer one");
  if (places.head) put(cond, 0, references.front().narrow(1, 0, latents));
  if (places.tail)
    put(cond, latent[1] - latents, references.back().narrow(1, references.back().size(1) - latents, latents));
  return cond;
}

}  // namespace tessera::diffusion
