#pragma once
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
#include <memory>

#include "tessera/models/stdit/config.h"
#include "tessera/net/unit.h"

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

}  // namespace tessera::models::stdit
