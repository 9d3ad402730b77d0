#include "tessera/data/video_pixels.h"

#include <algorithm>
#include <vector>

#include "tessera/base/check.h"

namespace tessera::data {

namespace {

constexpr int kAlpha = 3, kOpaque = 255;

const AVPixFmtDescriptor* form_of(const AVFrame& frame) {
  return av_pix_fmt_desc_get(static_cast<AVPixelFormat>(frame.format));
}

/// Formats whose samples are read here as they are: RGB and grey, planar or packed, of any depth.
bool is_plain(const AVPixFmtDescriptor& form) {
  const bool grey = form.nb_components <= 2 && !(form.flags & AV_PIX_FMT_FLAG_RGB);
  return (grey || (form.flags & AV_PIX_FMT_FLAG_RGB)) && form.comp[0].depth <= 16 &&
         !(form.flags & (AV_PIX_FMT_FLAG_PAL | AV_PIX_FMT_FLAG_FLOAT | AV_PIX_FMT_FLAG_BAYER | AV_PIX_FMT_FLAG_HWACCEL |
                         AV_PIX_FMT_FLAG_BITSTREAM));
}

/// RGB videos that the scaler would send through a matrix of YUV which is not theirs, or round twice.
bool is_exact_rgb(const AVFrame& frame, bool picture) {
  const AVPixFmtDescriptor* form = form_of(frame);
  return !picture && form && (form->flags & AV_PIX_FMT_FLAG_RGB) && is_plain(*form) &&
         (frame.colorspace == AVCOL_SPC_RGB || form->comp[0].depth > 8);
}

/// Each sample of the format as 8 bits, to its place in RGBA.
void copy_plain(const AVFrame& frame, const AVPixFmtDescriptor& form, AVFrame& to) {
  std::vector<uint16_t> samples(static_cast<size_t>(frame.width));
  const bool grey = form.nb_components <= 2, alpha = form.flags & AV_PIX_FMT_FLAG_ALPHA;
  const int colours = form.nb_components - (alpha ? 1 : 0);
  const uint8_t* planes[4] = {frame.data[0], frame.data[1], frame.data[2], frame.data[3]};
  for (int y = 0; y < frame.height; ++y) {
    uint8_t* row = to.data[0] + y * static_cast<ptrdiff_t>(to.linesize[0]);
    for (int x = 0; x < frame.width; ++x) row[4 * x + kAlpha] = kOpaque;
    for (int c = 0; c < form.nb_components; ++c) {
      av_read_image_line2(samples.data(), planes, frame.linesize, &form, 0, y, c, frame.width, 0, sizeof samples[0]);
      const int most = (1 << form.comp[c].depth) - 1;
      for (int x = 0; x < frame.width; ++x) {
        const auto level = static_cast<uint8_t>((samples[static_cast<size_t>(x)] * 255 + most / 2) / most);
        if (c >= colours)
          row[4 * x + kAlpha] = level;
        else if (grey)
          std::fill(row + 4 * x, row + 4 * x + 3, level);
        else
          row[4 * x + c] = level;
      }
    }
  }
}

/// Palettes of native-endian ARGB.
void copy_palette(const AVFrame& frame, AVFrame& to) {
  const auto* colours = reinterpret_cast<const uint32_t*>(frame.data[1]);
  for (int y = 0; y < frame.height; ++y) {
    const uint8_t* from = frame.data[0] + y * static_cast<ptrdiff_t>(frame.linesize[0]);
    uint8_t* row = to.data[0] + y * static_cast<ptrdiff_t>(to.linesize[0]);
    for (int x = 0; x < frame.width; ++x) {
      const uint32_t argb = colours[from[x]];
      for (const int shift : {16, 8, 0, 24}) *row++ = static_cast<uint8_t>(argb >> shift);
    }
  }
}

FramePtr rgba_of(const AVFrame& frame) {
  FramePtr to = new_frame(AV_PIX_FMT_RGBA, frame.width, frame.height);
  const AVPixFmtDescriptor* form = form_of(frame);
  ScalerPtr scaler;
  if (frame.format == AV_PIX_FMT_PAL8)
    copy_palette(frame, *to);
  else if (form && is_plain(*form))
    copy_plain(frame, *form, *to);
  else
    scale_frame(frame, *to, scaler);
  return to;
}

bool shows_through(const AVFrame& rgba) {
  for (int y = 0; y < rgba.height; ++y) {
    const uint8_t* row = rgba.data[0] + y * static_cast<ptrdiff_t>(rgba.linesize[0]);
    for (int x = 0; x < rgba.width; ++x)
      if (row[4 * x + kAlpha] != kOpaque) return true;
  }
  return false;
}

}  // namespace

bool has_alpha(const AVFrame& frame) {
  const AVPixFmtDescriptor* form = form_of(frame);
  return form && (form->flags & (AV_PIX_FMT_FLAG_ALPHA | AV_PIX_FMT_FLAG_PAL));
}

bool is_transparent(const AVFrame& frame) { return has_alpha(frame) && shows_through(*rgba_of(frame)); }

Traits traits_of_colours(const AVFrame& frame, bool picture) {
  Traits traits;
  if (is_exact_rgb(frame, picture)) traits.add(Trait::rgb);
  if (frame.color_trc == AVCOL_TRC_SMPTE2084) traits.add(Trait::pq);
  if (frame.color_trc == AVCOL_TRC_ARIB_STD_B67) traits.add(Trait::hlg);
  return traits;
}

FramePtr opaque_rgb(const AVFrame& frame, const std::array<uint8_t, 3>& background, const IccProfile* profile,
                    bool picture) {
  const bool alpha = has_alpha(frame), exact = is_exact_rgb(frame, picture);
  if (!alpha && !exact && !profile) return nullptr;
  const FramePtr rgba = rgba_of(frame);
  if (!exact && !profile && !shows_through(*rgba)) return nullptr;
  FramePtr rgb = new_frame(AV_PIX_FMT_RGB24, frame.width, frame.height);
  for (int y = 0; y < frame.height; ++y) {
    uint8_t* from = rgba->data[0] + y * static_cast<ptrdiff_t>(rgba->linesize[0]);
    uint8_t* to = rgb->data[0] + y * static_cast<ptrdiff_t>(rgb->linesize[0]);
    if (profile) profile->convert(from, frame.width);
    for (int x = 0; x < frame.width; ++x, from += 4)
      for (size_t c = 0; c < 3; ++c)
        *to++ = static_cast<uint8_t>((from[c] * from[kAlpha] + background[c] * (kOpaque - from[kAlpha]) + kOpaque / 2) /
                                     kOpaque);
  }
  return rgb;
}

}  // namespace tessera::data
