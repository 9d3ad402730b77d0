#include "tessera/prepare/condition_draws.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/data/files/file_kinds.h"
#include "tessera/job/codec.h"

namespace tessera::prepare {

using at::Tensor;
using Shares = families::ConditionShares;

namespace {

/// Indices of a draw's numbers. Those of a mask, of the order of the pictures and of single pixels are as many as needed.
enum Number : uint64_t { kFrameKind, kFrame, kMaskKind, kReferences, kShares = 16, kFlips = 64, kOrder = 96 };
constexpr uint64_t kMaskNumbers = 128, kPixels = uint64_t{1} << 32;

/// `count` of 0 .. of - 1, each once, in some order.
std::vector<int64_t> some_of(const RandomKey& key, uint64_t& next, int64_t of, int64_t count) {
  std::vector<int64_t> all(static_cast<size_t>(of));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  for (size_t i = 0; i < static_cast<size_t>(count); ++i)
    std::swap(all[i], all[i + key.below(next++, static_cast<uint64_t>(of) - i)]);
  all.resize(static_cast<size_t>(count));
  return all;
}

Tensor clip_pixels(const data::Item& item, const data::ClipSpec& spec) {
  return job::to_pixels(data::decode_clip(item.path, spec));
}

/// A mask as a clip of it is read: white is to be made.
Tensor as_clip(const Tensor& mask) { return (mask * 2 - 1).expand({3, -1, -1, -1}); }

/// [Note: a model of a clip's own pictures] Where no control or camera is followed, the pictures are the clip's beginning.
bool follows(const net::Conditions& wanted) { return wanted.control_dim > 0 || wanted.camera_scale > 0; }

/// The frame that is the reference; the first where the row names a reference.
int64_t reference_frame(const data::Item& item, int64_t frames, const net::Conditions& wanted, const ClipDraw& draw) {
  const bool own = wanted.control_dim > 0 && !item.references.empty();
  return follows(wanted) && !own ? drawn_frame(draw, frames) : 0;
}

/// Of the row's pictures some, in some order, some of them mirrored; or a frame of the clip.
void draw_references(net::Guides& guides, const Tensor& pixels, int64_t most, const ClipDraw& draw) {
  const std::vector<Tensor> own = std::exchange(guides.references, {});
  if (most == 0) return;
  if (draw.happens(&Shares::photo)) {
    guides.references = {pixels.select(1, drawn_frame(draw, guides.frames))};
    return;
  }
  const auto wanted = static_cast<int64_t>(draw.key.below(kReferences, static_cast<uint64_t>(most) + 1));
  uint64_t next = kOrder;
  const auto count = std::min<int64_t>(wanted, std::ssize(own));
  for (const int64_t i : some_of(draw.key, next, std::ssize(own), count)) {
    const bool flips = draw.key.uniform(kFlips + static_cast<uint64_t>(i)) < draw.of.shares.flip;
    const Tensor& picture = own[static_cast<size_t>(i)];
    guides.references.push_back(flips ? picture.flip(2) : picture);
  }
}

/// A model of clips that are made from others: the clip itself outside of a mask, or what the row says it is made from,
/// whose pixels the mask parts all the same while the model is shown that all is to be made.
void draw_guide(net::Guides& guides, const data::Item& item, const Tensor& pixels, const ClipDraw& draw) {
  const bool given = guides.clips.contains("guide"), own_mask = guides.clips.contains("guide_mask");
  if (given && own_mask) return;
  const Tensor mask = own_mask ? ((guides.clips.at("guide_mask").slice(0, 0, 1) + 1) / 2).clamp(0, 1)
                               : drawn_mask(draw, guides.frames, guides.height, guides.width);
  if (given && !draw.happens(&Shares::inpaint)) {
    guides.clips["guide_split"] = as_clip(mask);
    return;
  }
  check_input(!data::is_latent(item.path), "diffusion.condition_draws",
              item.path.string() + " is a latent, of which no part can be shown", "train on clips");
  guides.clips["guide"] = pixels * (mask < 0.5);
  guides.clips["guide_mask"] = as_clip(mask);
  if (draw.happens(&Shares::no_references)) guides.references.clear();
}

/// A model of a person in front of a background: without one, or with the clip's first frame as that of a window before.
void draw_background(net::Guides& guides, const Tensor& pixels, const ClipDraw& draw) {
  if (draw.happens(&Shares::no_background)) {
    guides.clips.erase("guide"), guides.clips.erase("guide_mask");
    return;
  }
  if (!draw.happens(&Shares::previous)) return;
  for (const auto& [name, absent] : {std::pair("guide", 0.0), {"guide_mask", 1.0}}) {
    Tensor& clip = guides.clips.try_emplace(name, Tensor()).first->second;
    clip = clip.defined() ? clip.clone() : at::full_like(pixels, absent);
  }
  guides.clips["guide"].select(1, 0).copy_(pixels.select(1, 0));
  guides.clips["guide_mask"].select(1, 0).fill_(-1);
}

}  // namespace

bool ClipDraw::happens(double Shares::*share) const {
  uint64_t place = 0;  // of the share among its likes
  Shares shares;
  for (const std::string& name : families::share_names()) {
    if (&families::share_of(shares, name) == &(shares.*share)) break;
    ++place;
  }
  return key.uniform(kShares + place) < of.shares.*share;
}

std::optional<ClipDraw> clip_draw(const families::ConditionDraws& draws, const data::Item& item,
                                  const data::ClipSpec& spec, int64_t number) {
  if (!draws.on()) return {};
  const std::string clip = item.path.filename().string() + "|" + std::to_string(std::llround(spec.start * 1000)) + "|" +
                           std::to_string(spec.frames);
  return ClipDraw{draws, RandomKey(hash_text("conditions of " + clip), Purpose::order, static_cast<uint64_t>(number))};
}

int64_t draw_of_sample(const families::ConditionDraws& draws, uint64_t seed, int64_t epoch, int64_t index) {
  if (draws.count < 2) return 0;
  const RandomKey key(hash_text("conditions") ^ seed, Purpose::order, static_cast<uint64_t>(epoch),
                      static_cast<uint64_t>(index));  // beside that of the order, which has the seed itself
  return static_cast<int64_t>(key.below(0, static_cast<uint64_t>(draws.count)));
}

std::string draw_text(const families::ConditionDraws& draws, int64_t number) {
  if (!draws.on()) return {};
  std::string text = "|draw " + std::to_string(number);
  Shares shares = draws.shares;
  for (const std::string& name : families::share_names())
    text += " " + std::to_string(families::share_of(shares, name));
  for (const families::Weighted& mask : draws.masks) text += " " + mask.name + "=" + std::to_string(mask.weight);
  return text;
}

Tensor drawn_mask(const ClipDraw& draw, int64_t frames, int64_t height, int64_t width) {
  uint64_t next = kMaskNumbers;
  const families::PixelDraws numbers = {
      [&](int64_t least, int64_t most) {
        return least + static_cast<int64_t>(draw.key.below(next++, static_cast<uint64_t>(most - least + 1)));
      },
      [&] { return draw.key.uniform(next++); },
      [&](int64_t of, int64_t count) { return some_of(draw.key, next, of, count); },
      [&](int64_t pixel) { return draw.key.bits(kPixels + static_cast<uint64_t>(pixel)) % 2 == 1; }};
  const int kind = families::pixel_mask_kind(frames, draw.key.uniform(kMaskKind), draw.of.masks);
  const std::vector<uint8_t> mask = families::pixel_mask(kind, {frames, height, width}, numbers);
  return at::tensor(mask, at::kByte).view({1, frames, height, width}).to(at::kFloat);
}

int64_t drawn_frame(const ClipDraw& draw, int64_t frames) {
  if (frames < 2 || draw.key.uniform(kFrameKind) < draw.of.shares.first_frame) return 0;
  return 1 + static_cast<int64_t>(draw.key.below(kFrame, static_cast<uint64_t>(frames) - 1));
}

Pictures shown_pictures(const data::Item& item, const data::ClipSpec& spec, const net::Denoiser& model,
                        const MaybeDraw& draw) {
  const net::Conditions wanted = model.conditions();
  if (!wanted.guides.empty()) {
    Pictures pictures;
    if (wanted.clip_dim > 0) pictures.shown = model.seen(clip_guides(item, spec, wanted, 1, /*pictures_alone=*/true));
    return pictures;
  }
  if (!draw || !item.first_image.empty()) return clip_pictures(item, spec, wanted);
  const Tensor pixels = clip_pixels(item, spec);
  const int64_t frame = reference_frame(item, pixels.size(1), wanted, *draw);
  const bool own = wanted.control_dim > 0 && !item.references.empty();  // which an image encoder sees
  Pictures pictures;
  pictures.shown = own ? clip_pictures(item, spec, wanted).shown : pixels.select(1, frame);
  if (wanted.mask_channels > 0) {
    pictures.clip = pixels;
    pictures.made = drawn_mask(*draw, pixels.size(1), spec.height, spec.width);
    pictures.nothing_is_zero = draw->happens(&Shares::nothing);
    if (pictures.made.select(1, 0).sum().item<double>() == 0) pictures.first = pixels.select(1, 0);
  } else if (frame == 0 && !own) {
    pictures.first = pixels.select(1, 0);
  }
  return pictures;
}

Controls shown_controls(const data::Item& item, const data::ClipSpec& spec, const net::Conditions& wanted,
                        const MaybeDraw& draw) {
  Controls controls = controls_of(item);
  if (!draw || wanted.reference_dim == 0 || !item.references.empty()) return controls;
  if (const int64_t frame = reference_frame(item, spec.frames, wanted, *draw); frame > 0)
    controls.picture = clip_pixels(item, spec).slice(1, frame, frame + 1);
  return controls;
}

net::Guides shown_guides(const data::Item& item, const data::ClipSpec& spec, const net::Conditions& wanted,
                         int64_t most, const MaybeDraw& draw) {
  net::Guides guides =
      clip_guides(item, spec, wanted, draw && !wanted.always_reference ? std::max<int64_t>(most, 4) : most);
  if (!draw) return guides;
  const Tensor pixels = clip_pixels(item, spec);
  if (wanted.always_reference) {
    draw_background(guides, pixels, *draw);
    return guides;
  }
  draw_references(guides, pixels, most, *draw);
  draw_guide(guides, item, pixels, *draw);
  return guides;
}

}  // namespace tessera::prepare
