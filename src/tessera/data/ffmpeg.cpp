#include "tessera/data/ffmpeg.h"

#include "tessera/base/check.h"

namespace tessera::data {

FramePtr new_frame(AVPixelFormat format, int width, int height) {
  FramePtr frame(av_frame_alloc());
  frame->format = format;
  frame->width = width;
  frame->height = height;
  const int status = av_frame_get_buffer(frame.get(), 64);
  if (status < 0) throw Error(Exit::memory, "data.video", "no memory for a frame: " + ffmpeg_error(status));
  return frame;
}

void scale_frame(const AVFrame& from, AVFrame& to, ScalerPtr& kept) {
  const auto format = static_cast<AVPixelFormat>(from.format);
  kept.reset(sws_getCachedContext(
      kept.release(), from.width, from.height, format, to.width, to.height, static_cast<AVPixelFormat>(to.format),
      SWS_BICUBIC | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INT | SWS_FULL_CHR_H_INP, nullptr, nullptr, nullptr));
  check_input(kept != nullptr, "data.decode", "FFmpeg cannot turn this pixel format into RGB",
              "encode the file again, or remove it");
  // The matrix the stream names; BT.601 where it names none, as the ffmpeg program does. RGB goes through one and back.
  const AVPixFmtDescriptor* form = av_pix_fmt_desc_get(format);
  const bool rgb = form && (form->flags & AV_PIX_FMT_FLAG_RGB);
  sws_setColorspaceDetails(kept.get(), sws_getCoefficients(rgb ? SWS_CS_DEFAULT : from.colorspace),
                           from.color_range == AVCOL_RANGE_JPEG, sws_getCoefficients(SWS_CS_DEFAULT), 1, 0, 1 << 16,
                           1 << 16);
  sws_scale(kept.get(), from.data, from.linesize, 0, from.height, to.data, to.linesize);
}

}  // namespace tessera::data
