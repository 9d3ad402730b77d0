#pragma once
// Interlaced frames as frames of one moment, that of their first field. For video_decode.cpp.
//
//   if (frame.interlaced_frame) shown = one_moment(frame, before.get(), /*top_first=*/true);
#include "tessera/data/media/ffmpeg.h"

namespace tessera::data {

/// The rows of the second field are kept where nothing moves since the frame before (null: it is not known), and are
/// interpolated from those of the first field elsewhere. A format whose samples are not whole bytes gives null.
FramePtr one_moment(const AVFrame& frame, const AVFrame* before, bool top_first);

}  // namespace tessera::data
