#pragma once
// Decoded frames whose pixels FFmpeg's scaler would not show as they are: with an alpha channel, of a colour profile, RGB
// of any depth. For video_source.cpp and video_decode.cpp.
//
//   if (FramePtr rgb = opaque_rgb(frame, white, profile, picture)) frame = std::move(rgb);
#include <array>

#include "tessera/data/ffmpeg.h"
#include "tessera/data/icc.h"
#include "tessera/data/reading.h"

namespace tessera::data {

/// Whether the frame's format has an alpha channel; some of these have no pixel that is not opaque.
bool has_alpha(const AVFrame& frame);
bool is_transparent(const AVFrame& frame);  ///< has one that is not

/// What of the frame's colours is read in its own way: HDR, RGB.
Traits traits_of_colours(const AVFrame& frame, bool picture);

/// The frame as RGB24 of its own size, composed on the background, its profile's colours those of sRGB. Null where the
/// scaler may have the frame itself.
FramePtr opaque_rgb(const AVFrame& frame, const std::array<uint8_t, 3>& background, const IccProfile* profile,
                    bool picture);

}  // namespace tessera::data
