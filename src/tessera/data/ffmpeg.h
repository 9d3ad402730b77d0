#pragma once
// FFmpeg's objects with owners, its errors as text. Included by what is left out of a build without FFmpeg, and by nobody
// else.
extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/display.h>
#include <libavutil/dovi_meta.h>
#include <libavutil/imgutils.h>
#include <libavutil/mastering_display_metadata.h>
#include <libavutil/opt.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>
}

#include <memory>
#include <string>

namespace tessera::data {

template <auto free_by_address>
struct FreeByAddress {
  template <class T>
  void operator()(T* object) const {
    free_by_address(&object);
  }
};
struct FreeScaler {
  void operator()(SwsContext* scaler) const { sws_freeContext(scaler); }
};

using FramePtr = std::unique_ptr<AVFrame, FreeByAddress<av_frame_free>>;
using PacketPtr = std::unique_ptr<AVPacket, FreeByAddress<av_packet_free>>;
using CodecPtr = std::unique_ptr<AVCodecContext, FreeByAddress<avcodec_free_context>>;
using ScalerPtr = std::unique_ptr<SwsContext, FreeScaler>;

inline std::string ffmpeg_error(int code) {
  char text[AV_ERROR_MAX_STRING_SIZE] = {};
  av_strerror(code, text, sizeof text);
  return text;
}

/// Our errors carry what FFmpeg returns; its own lines on the terminal would only repeat them without the file's name.
inline void quiet_ffmpeg() {
  static const bool once = (av_log_set_level(AV_LOG_QUIET), true);
  (void)once;
}

/// A frame with buffers as FFmpeg wants them: its vector code reads and writes beyond the end of unpadded rows.
FramePtr new_frame(AVPixelFormat format, int width, int height);

/// `from` in the size and format of `to`, bicubic; `kept` is the scaler of the calls before, which is used again where it
/// fits. Throws UserError (input) for a format that FFmpeg's scaler cannot read.
void scale_frame(const AVFrame& from, AVFrame& to, ScalerPtr& kept);

}  // namespace tessera::data
