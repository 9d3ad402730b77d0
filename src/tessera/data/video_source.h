#pragma once
// A file's video stream or picture, opened and decoded by FFmpeg frame by frame. For video_decode.cpp.
//
//   Source source("clips/a.mp4");
//   FramePtr frame; double time;
//   while (source.next(frame, time)) ...
#include <optional>
#include <string>

#include "tessera/data/ffmpeg.h"
#include "tessera/data/icc.h"
#include "tessera/data/video_file.h"

namespace tessera::data {

inline constexpr const char* kMendFile = "a file cut short must be copied again, another encoded again or removed";

/// How stored pixels lie in the picture as it is shown: one of eight ways.
struct Turn {
  bool swap = false;                    ///< rows are shown as columns
  bool flip_x = false, flip_y = false;  ///< stored columns, stored rows are shown from the last to the first
  bool operator==(const Turn&) const = default;

  /// The stored row and column of a pixel that is shown at (y, x); h and w are those of what is stored.
  int row(int y, int x, int h) const { return flip_y ? h - 1 - (swap ? x : y) : swap ? x : y; }
  int column(int y, int x, int w) const { return flip_x ? w - 1 - (swap ? y : x) : swap ? y : x; }
};

class InMemory;  // a file that is deflated in its archive

class Source {
 public:
  explicit Source(const Path& path);
  ~Source();

  /// All but the number of frames and what follows from it.
  VideoInfo info() const;
  double fps() const;
  const Turn& turn() const { return turn_; }
  bool picture() const { return picture_; }
  bool interlaced(const AVFrame& frame) const;
  bool top_first(const AVFrame& frame) const;
  /// Nits of the screen that an HDR video was made on, as its frame or its container says; 0: neither does.
  double peak(const AVFrame& frame) const;
  const IccProfile* profile() const { return profile_.get(); }  ///< of a picture whose colours are to be converted
  const std::string& damage() const { return damage_; }         ///< why decoding stopped before the end of the file
  int64_t listed() const { return listed_count().frames; }      ///< frames of an index of all of them; 0: there is none

  /// The next frame, its time in seconds since the first; false at the end or at the first damage.
  bool next(FramePtr& frame, double& time);

  /// Goes on from the last key frame at or before `seconds`, where the file has an index that knows it; else nothing
  /// changes. Before the first next() only.
  bool skip_to(double seconds);

  /// info() with the number of frames: from the index where that lists all of them, else by reading the file to its
  /// end. Before the first next() only, and nothing can be decoded after it.
  VideoInfo counted();

 private:
  struct Count {
    int64_t frames = 0, first = INT64_MAX, last = INT64_MIN;  // and their first and last stamp
    bool stamped = true;                                      // all of them
    void add(int64_t stamp);
  };
  Count listed_count() const;
  [[noreturn]] void fail(const std::string& what, int status = 0) const;
  void open(const Path& path);
  void open_decoder();
  void read_header(const Path& path);
  void look_at_first();
  void take_turn(const int32_t* of_frame);
  void take_colours(const AVFrame& frame);
  bool shows_through();
  double pixel_aspect() const;  // width of a pixel by its height
  void count(const AVPacket& packet);
  bool feed();
  bool decode(FramePtr& frame, double& time);

  std::string name_;
  std::unique_ptr<InMemory> inflated_;
  struct Close {
    void operator()(AVFormatContext* format) const { avformat_close_input(&format); }
  };
  std::unique_ptr<AVFormatContext, Close> format_;
  AVStream* stream_ = nullptr;
  const AVCodec* decoder_ = nullptr;
  CodecPtr codec_;
  PacketPtr packet_{av_packet_alloc()};
  bool picture_ = false, started_ = false;
  Turn turn_;
  Traits traits_;
  std::unique_ptr<IccProfile> profile_;
  Count count_;     // of packets that were read
  FramePtr ahead_;  // the first frame, decoded to be looked at, until next() gives it
  double ahead_time_ = 0, origin_ = 0, last_ = 0;
  std::string damage_;
};

}  // namespace tessera::data
