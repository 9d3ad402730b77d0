#pragma once
// The STDiT3 denoisers: their units, how latents become packed tokens and back, and the names of their tensors.
//
//   Stdit model(config);
//   net::Batch batch = model.pack({{.x = latent, .t = 750, .context = caption}});
//   std::vector<Tensor> velocity = model.unpack(net::run_plain(model.units(), weights, batch), batch);
//
// Its program predicts data - noise; predictions here are noise - data, as those of the other families. Latents whose
// sides are no multiples of the patch are padded with zeros on the right and at the bottom, and what is predicted there
// is left out. Extras of a sample:
//   fps [1]           frames a second; without it 24, and 120 for a picture, as in its program
//   height, width [1] of the video in pixels; without them eight times those of the latent
//   image_latent      [C, 1, H, W]: the first latent frame, without noise, which is then not predicted
//   x_mask [F]        0: the frame is given in x without noise; such frames are predicted, too
// and of 1.3, for pictures and videos that are continued:
//   mask_index [n]    int64: the given frames, which read y_null in place of the caption; none: the model says so
//   cond, cond_mask   [C, F, H, W]: given latent frames, zeros elsewhere and where they are left out; and 1 where they
//                     are, without it in the frames of mask_index
//   y_null [m, D]     the caption of no words
//
// STDiT3 as units: stem, spatial and temporal blocks in turn, head.
//
//   for (const auto& unit : make_units(config)) flow = unit->forward(ctx, flow);
//
// Shapes: B samples with T tokens together, d channels, n text rows together, R modulation rows.
//   stem   in: patches [T, c_in * p * p], positions [T, d], text [n, d_text], sinusoids of time and of frame rate
//              [R, 256] each, kept [K, p * p * c_out]; of 1.3 then patches of given frames and of their mask
//              [T, c_in * p * p] each and whether a sample has them [R, 1]
//   stream: x [T, d];  conditioning: e [R, d], e6 [R, 6, d], context [n, d], kept
//   head   out: [T, p * p * c_out], channel fastest: noise - data times a number (spec.cpp), 0 where there is no latent
// Of each pair of modulation rows the first is that of the sample's timestep, the second that of timestep 0, for frames
// without noise.
#include <array>
#include <cstdint>

#include "tessera/models/common/denoiser.h"
#include "tessera/models/stdit/files.h"
#include "tessera/ops/tensor.h"

namespace tessera::models::stdit {

/// Row spaces: the tokens, with the rotary table of the temporal blocks; each sample's text; the tokens once more, with
/// the rotary table of the spatial blocks (of models that have one) and the rows of `kept` as their modulation rows.
enum Space { kTokens, kText, kSameTokens };

/// Tables of Tokens::segments. The rows of a frame; the rows of a place, or of a window, over the frames; the frames of
/// a sample that read the same text, with it (1.3).
enum Table { kWithinFrames, kOverFrames, kFramesToText };

/// Inputs of the stem.
enum Input { kPatches, kPositions, kTexts, kTimes, kRates, kKeptPlaces, kGivenPatches, kMaskPatches, kHasGiven };

std::vector<std::unique_ptr<net::Unit>> make_units(const Config& config);

class Stdit final : public FamilyDenoiser<Config> {
 public:
  explicit Stdit(const Config& config);

  net::Batch pack(const std::vector<net::Sample>& samples) const override;
  net::Conditions conditions() const override;
  net::Sample blank(const std::array<int64_t, 4>& latent) const override;
  std::vector<std::map<std::string, at::Tensor>> unpack_input_grads(
      const std::vector<at::Tensor>& grads, const net::Batch& batch,
      const std::vector<net::Sample>& samples) const override;
  std::vector<at::Tensor> unpack(const at::Tensor& out, const net::Batch& batch) const override;
  at::Tensor pack_target(const at::Tensor& target) const override;
  int64_t token_count(const std::array<int64_t, 4>& latent) const override;
  std::string foreign_name(const std::string& name, const std::string& naming) const override;

 private:
  Initial initial(const plan::ParamSpec& param) const override;
};

// Latents as rows of patches whose last row and column may reach over the edge, and where the tokens of a latent are.
//
//   fill_input(rows, latent, patch);                         // rows [f * h * w, C * p * p], which are zero before
//   fill_output(rows, target, patch);                        // rows [f * h * w, p * p * C or more], channel fastest

/// Frames, rows and columns of the tokens of a latent [C, F, H, W].
std::array<int64_t, 3> grid_of(at::IntArrayRef latent, int64_t patch);
inline int64_t count_of(const std::array<int64_t, 3>& grid) { return grid[0] * grid[1] * grid[2]; }

/// A patch's places outside the latent keep what the rows have.
void fill_input(const at::Tensor& rows, const at::Tensor& latent, int64_t patch);
at::Tensor from_input(const at::Tensor& rows, at::IntArrayRef latent, int64_t patch);

/// The latent's channels are the first of each place.
void fill_output(const at::Tensor& rows, const at::Tensor& latent, int64_t patch);
at::Tensor from_output(const at::Tensor& rows, at::IntArrayRef latent, int64_t patch);

}  // namespace tessera::models::stdit
