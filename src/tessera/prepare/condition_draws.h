#pragma once
// What a clip is given in training where its row does not say it: masks and pictures that are drawn, as VideoX-Fun's
// trainers draw them (diffusion.condition_draws).
//
//   const auto draw = clip_draw(recipe.diffusion.draws, item, spec, number);      // none where nothing is drawn
//   Pictures pictures = shown_pictures(item, spec, *job.model, draw);             // by the draw, or as the row says
//   net::Guides guides = shown_guides(item, spec, wanted, most, draw);
//
// [Note: drawn conditions] A clip has as many draws as the recipe says, by its name and their number alone: every layout,
// a run that goes on, a cache and a run without one have the same. Which of them a sample takes is drawn by seed, epoch
// and place in the data set, as its caption is. Each draw is an entry of the cache, whose key says what could be drawn.
#include <optional>

#include "tessera/base/random.h"
#include "tessera/families/frames/pixel_masks.h"
#include "tessera/prepare/controls.h"
#include "tessera/prepare/pictures.h"

namespace tessera::prepare {

/// One draw of a clip's.
struct ClipDraw {
  families::ConditionDraws of;
  RandomKey key;
  bool happens(double families::ConditionShares::*share) const;
};
std::optional<ClipDraw> clip_draw(const families::ConditionDraws& draws, const data::Item& item,
                                  const data::ClipSpec& spec, int64_t number);
/// Which of its draws a sample takes; 0 where there is one or none.
int64_t draw_of_sample(const families::ConditionDraws& draws, uint64_t seed, int64_t epoch, int64_t index);
/// What is drawn, as text for the key of an entry; empty without draws.
std::string draw_text(const families::ConditionDraws& draws, int64_t number);

/// [1, F, H, W]: 1 is to be made.
at::Tensor drawn_mask(const ClipDraw& draw, int64_t frames, int64_t height, int64_t width);
/// A frame of the clip that is its reference: the first one, or any.
int64_t drawn_frame(const ClipDraw& draw, int64_t frames);

using MaybeDraw = std::optional<ClipDraw>;
/// clip_pictures(), or those of the draw, whose own pictures a row keeps; for a model that follows clips, what an image
/// encoder sees of them.
Pictures shown_pictures(const data::Item& item, const data::ClipSpec& spec, const net::Denoiser& model,
                        const MaybeDraw& draw);
/// controls_of(), with a frame of the clip as its reference where the row names none.
Controls shown_controls(const data::Item& item, const data::ClipSpec& spec, const net::Conditions& wanted,
                        const MaybeDraw& draw);
/// clip_guides(), with a mask and pictures of the draw.
net::Guides shown_guides(const data::Item& item, const data::ClipSpec& spec, const net::Conditions& wanted,
                         int64_t most, const MaybeDraw& draw);

}  // namespace tessera::prepare
