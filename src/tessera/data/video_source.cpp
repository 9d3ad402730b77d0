#include "tessera/data/video_source.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/data/files/archive.h"
#include "tessera/data/files/parquet.h"
#include "tessera/data/files/picture_header.h"
#include "tessera/data/video_pixels.h"

namespace tessera::data {

namespace {

constexpr int64_t kMostPixels = int64_t{1} << 28;  // FFmpeg's own limit, in av_image_check_size
constexpr double kWidest = 1 << 20;                // pixels of a row
constexpr int kLookedAt = 64;                      // frames that are decoded to find one that something shows through

/// FFmpeg's name of a file, or of the bytes of one that lies in an archive.
std::string url_of(const Path& path, const std::optional<InArchive>& place) {
  if (!place) return "file:" + path.string();
  const Member& member = place->member;
  return "subfile,,start," + std::to_string(member.begin) + ",end," + std::to_string(member.begin + member.bytes) +
         ",,:file:" + place->archive.string();
}

/// The turn of an EXIF orientation.
Turn turn_of(int orientation) {
  constexpr Turn kTurns[] = {{},
                             {.flip_x = true},
                             {.flip_x = true, .flip_y = true},
                             {.flip_y = true},
                             {.swap = true},
                             {.swap = true, .flip_y = true},
                             {.swap = true, .flip_x = true, .flip_y = true},
                             {.swap = true, .flip_x = true}};
  return kTurns[orientation - 1];
}

/// Of a display matrix, whose first two rows say where a step to the right and one down in what is stored lead to.
Turn turn_of(const int32_t* matrix) {
  const double a = matrix[0], b = matrix[1], c = matrix[3], d = matrix[4];
  if (std::abs(a) + std::abs(d) >= std::abs(b) + std::abs(c)) return {.flip_x = a < 0, .flip_y = d < 0};
  return {.swap = true, .flip_x = b < 0, .flip_y = c < 0};
}

/// What an earlier version made of a container's matrix: the nearest of four turns.
Turn turn_before(const int32_t* matrix) {
  const double angle = av_display_rotation_get(matrix);  // counter-clockwise
  if (!std::isfinite(angle)) return {};
  constexpr int kOrientations[] = {1, 6, 3, 8};
  return turn_of(kOrientations[((static_cast<int>(std::lround(-angle / 90)) % 4) + 4) % 4]);
}

bool is_interlaced(AVFieldOrder order) {
  return order == AV_FIELD_TT || order == AV_FIELD_BB || order == AV_FIELD_TB || order == AV_FIELD_BT;
}

/// Whether a packet gives a frame that is shown: VP8 has others, of its own name for them in their first byte.
bool is_shown(const AVPacket& packet, AVCodecID codec) {
  if (packet.size == 0 || (packet.flags & (AV_PKT_FLAG_DISCARD | AV_PKT_FLAG_CORRUPT))) return false;
  constexpr uint8_t kShown = 0x10;
  return codec != AV_CODEC_ID_VP8 || (packet.data[0] & kShown);
}

}  // namespace

class InMemory {
 public:
  explicit InMemory(const Path& path) : bytes_(read_bytes(path)) {
    constexpr int kBuffer = 1 << 15;
    auto* buffer = static_cast<unsigned char*>(av_malloc(kBuffer));
    input_.reset(buffer ? avio_alloc_context(buffer, kBuffer, /*write_flag=*/0, this, read, nullptr, seek) : nullptr);
    if (!input_) av_free(buffer), throw Error(Exit::memory, "data.video", "no memory to read " + path.string());
  }
  InMemory(const InMemory&) = delete;
  AVIOContext* input() const { return input_.get(); }
  const std::string& bytes() const { return bytes_; }

 private:
  static int read(void* self, uint8_t* to, int most) {
    auto& file = *static_cast<InMemory*>(self);
    const size_t count = std::min(file.bytes_.size() - file.at_, static_cast<size_t>(most));
    if (count == 0) return AVERROR_EOF;
    std::memcpy(to, file.bytes_.data() + file.at_, count);
    file.at_ += count;
    return static_cast<int>(count);
  }
  static int64_t seek(void* self, int64_t offset, int whence) {
    auto& file = *static_cast<InMemory*>(self);
    const auto size = static_cast<int64_t>(file.bytes_.size());
    if (whence & AVSEEK_SIZE) return size;
    whence &= ~AVSEEK_FORCE;
    const int64_t from = whence == SEEK_CUR ? static_cast<int64_t>(file.at_) : whence == SEEK_END ? size : 0;
    if (offset < -from || offset > size - from) return AVERROR(EINVAL);
    file.at_ = static_cast<size_t>(from + offset);
    return from + offset;
  }
  struct Free {
    void operator()(AVIOContext* input) const {
      av_freep(&input->buffer);
      avio_context_free(&input);
    }
  };
  const std::string bytes_;
  size_t at_ = 0;
  std::unique_ptr<AVIOContext, Free> input_;
};

Source::Source(const Path& path) : name_(path.string()) {
  quiet_ffmpeg();
  check_input(is_file(path), "data.decode", name_ + ": no such file", "check data.path and data.metadata");
  open(path);
  open_decoder();
  if (picture_) read_header(path);
  const bool sized = codec_->width > 0 && codec_->height > 0;
  if (!sized && !picture_) fail("the video stream has no size");
  check_input(sized, "data.decode",
              name_ + ": the picture has no size that can be read: it is damaged, or has more than " +
                  std::to_string(kMostPixels / 1'000'000) + " million pixels, the most that is decoded",
              "scale it down: pictures are scaled to data.size in any case");
  look_at_first();
}

Source::~Source() = default;

void Source::fail(const std::string& what, int status) const {
  throw UserError(Exit::input, "data.decode",
                  name_ + ": " + what + (status < 0 ? " (" + ffmpeg_error(status) + ")" : ""), kMendFile);
}

void Source::open(const Path& path) {
  // "file:" and the whitelist: a name is never a protocol, and a playlist in disguise opens nothing on a network.
  AVDictionary* options = nullptr;
  av_dict_set(&options, "protocol_whitelist", "file,subfile", 0);
  AVFormatContext* opened = nullptr;
  const auto place = find_in_archive(path);
  std::string url = url_of(path, place);
  if ((place && place->member.packed >= 0) || find_in_table(path)) {
    inflated_ = std::make_unique<InMemory>(path);
    opened = avformat_alloc_context();
    if (!opened) throw Error(Exit::memory, "data.video", "no memory to read " + name_);
    opened->pb = inflated_->input();
    url.clear();  // what it is is known by its bytes alone
  }
  int status = avformat_open_input(&opened, url.c_str(), nullptr, &options);
  av_dict_free(&options);
  if (status < 0) fail("cut short, or not a video or image that FFmpeg knows", status);
  format_.reset(opened);
  status = avformat_find_stream_info(opened, nullptr);
  if (status < 0) fail("its streams cannot be read", status);
}

void Source::open_decoder() {
  AVFormatContext* opened = format_.get();
  const int index = av_find_best_stream(opened, AVMEDIA_TYPE_VIDEO, -1, -1, &decoder_, 0);
  if (index < 0 || !decoder_ || (opened->streams[index]->disposition & AV_DISPOSITION_ATTACHED_PIC))
    fail("no video stream");
  stream_ = opened->streams[index];
  for (unsigned i = 0; i < opened->nb_streams; ++i)
    if (opened->streams[i] != stream_) opened->streams[i]->discard = AVDISCARD_ALL;

  const std::string format_name = opened->iformat->name;
  picture_ = format_name == "image2" || format_name.ends_with("_pipe");
  // FFmpeg's own decoders of VP8 and VP9 leave out the alpha channel, which is a stream of its own.
  const AVDictionaryEntry* alpha = av_dict_get(stream_->metadata, "alpha_mode", nullptr, 0);
  const bool vp9 = decoder_->id == AV_CODEC_ID_VP9;
  if (alpha && std::strcmp(alpha->value, "1") == 0 && (vp9 || decoder_->id == AV_CODEC_ID_VP8)) {
    decoder_ = avcodec_find_decoder_by_name(vp9 ? "libvpx-vp9" : "libvpx");
    if (!decoder_) fail("has an alpha channel, which this build of FFmpeg cannot decode without libvpx");
  }
  codec_.reset(avcodec_alloc_context3(decoder_));
  avcodec_parameters_to_context(codec_.get(), stream_->codecpar);
  codec_->thread_count = 1;  // ranks prepare different clips at once; and damage is then reported at the frame it hits
  const int status = avcodec_open2(codec_.get(), decoder_, nullptr);
  if (status < 0) fail(std::string("no decoder for ") + decoder_->name, status);
}

/// What decoders of pictures do not tell.
void Source::read_header(const Path& path) {
  const PictureHeader header = read_picture_header(inflated_ ? inflated_->bytes() : read_bytes(path));
  if (header.animated)
    throw UserError(Exit::input, "data.decode", name_ + ": is an animated WebP, which FFmpeg cannot read",
                    "convert it to .mp4 or .gif, or to a .webp of one frame");
  if (header.cut) fail("the picture is cut short: its data end before its end marker");
  turn_ = turn_of(header.orientation);
  if (turn_ != Turn()) traits_.add(Trait::turned);
  if (pixel_aspect() != 1) traits_.add(Trait::dense);
}

/// Decodes the first frame, since streams do not say all of what frames do; next() gives it. What cannot be decoded is
/// told when it is asked for.
void Source::look_at_first() {
  if (!picture_) take_turn(nullptr);
  if (!decode(ahead_, ahead_time_)) return ahead_.reset();
  const AVFrameSideData* matrix = av_frame_get_side_data(ahead_.get(), AV_FRAME_DATA_DISPLAYMATRIX);
  if (!picture_ && matrix && matrix->size >= 9 * sizeof(int32_t))
    take_turn(reinterpret_cast<const int32_t*>(matrix->data));
  take_colours(*ahead_);
  if (!picture_ && interlaced(*ahead_)) traits_.add(Trait::interlaced);
}

/// Of the container, or of a message in the stream, which goes before it.
void Source::take_turn(const int32_t* of_frame) {
  const auto* matrix =
      reinterpret_cast<const int32_t*>(av_stream_get_side_data(stream_, AV_PKT_DATA_DISPLAYMATRIX, nullptr));
  const int32_t* now = of_frame ? of_frame : matrix;
  turn_ = now ? turn_of(now) : Turn();
  if (turn_ != (matrix ? turn_before(matrix) : Turn())) traits_.add(Trait::turned);
}

void Source::take_colours(const AVFrame& frame) {
  traits_.add(traits_of_colours(frame, picture_));
  const AVPixFmtDescriptor* form = av_pix_fmt_desc_get(static_cast<AVPixelFormat>(frame.format));
  const AVColorSpace space = frame.colorspace;
  const bool unknown = space == AVCOL_SPC_YCGCO || space == AVCOL_SPC_SMPTE2085 || space == AVCOL_SPC_ICTCP ||
                       space == AVCOL_SPC_CHROMA_DERIVED_CL || space == AVCOL_SPC_CHROMA_DERIVED_NCL;
  const char* name = av_color_space_name(space);
  if (unknown && form && !(form->flags & AV_PIX_FMT_FLAG_RGB))
    throw UserError(Exit::input, "data.decode",
                    name_ + ": its colours are coded as " + (name ? name : "something unknown") +
                        ", expected BT.709, BT.601, BT.2020 or RGB",
                    "convert it, for example with ffmpeg -i FILE -vf scale=out_color_matrix=bt709 OUT");
  size_t size = 0;
  const auto* dolby = reinterpret_cast<const AVDOVIDecoderConfigurationRecord*>(
      av_stream_get_side_data(stream_, AV_PKT_DATA_DOVI_CONF, &size));
  if (dolby && size >= sizeof *dolby && dolby->dv_profile == 5)
    throw UserError(Exit::input, "data.decode",
                    name_ + ": is Dolby Vision of profile 5, whose colours no other decoder can show",
                    "export it as HDR10, HLG or SDR");
  if (!picture_) return;
  const AVFrameSideData* icc = av_frame_get_side_data(&frame, AV_FRAME_DATA_ICC_PROFILE);
  if (!icc) return;
  auto profile = std::make_unique<IccProfile>(std::string_view(reinterpret_cast<const char*>(icc->data), icc->size));
  if (profile->kind() == IccProfile::Kind::unconverted) traits_.add(Trait::unconverted);
  if (profile->kind() != IccProfile::Kind::other) return;
  traits_.add(Trait::profiled);
  profile_ = std::move(profile);
}

double Source::peak(const AVFrame& frame) const {
  // Decoders of FFmpeg before 6.1 hand on what stands in the stream, and not what stands in WebM's and MP4's headers.
  const AVFrameSideData* side = av_frame_get_side_data(&frame, AV_FRAME_DATA_MASTERING_DISPLAY_METADATA);
  const auto* screen = reinterpret_cast<const AVMasteringDisplayMetadata*>(
      side ? side->data : av_stream_get_side_data(stream_, AV_PKT_DATA_MASTERING_DISPLAY_METADATA, nullptr));
  return screen && screen->has_luminance && screen->max_luminance.den > 0 ? av_q2d(screen->max_luminance) : 0;
}

bool Source::interlaced(const AVFrame& frame) const {
  return frame.interlaced_frame || is_interlaced(stream_->codecpar->field_order);
}

bool Source::top_first(const AVFrame& frame) const {
  if (frame.interlaced_frame) return frame.top_field_first;
  const AVFieldOrder order = stream_->codecpar->field_order;
  return order == AV_FIELD_TT || order == AV_FIELD_BT;
}

double Source::fps() const {
  for (const AVRational rate : {stream_->avg_frame_rate, stream_->r_frame_rate})
    if (rate.num > 0 && rate.den > 0) return av_q2d(rate);
  return 25;  // what FFmpeg assumes of a stream without a rate
}

double Source::pixel_aspect() const {
  const AVRational aspect = av_guess_sample_aspect_ratio(format_.get(), stream_, nullptr);
  return aspect.num > 0 && aspect.den > 0 ? av_q2d(aspect) : 1;
}

VideoInfo Source::info() const {
  VideoInfo info;
  // The density of a picture is one for printers: whoever looks at it sees its pixels as squares.
  const double width = codec_->width * (picture_ ? 1 : pixel_aspect());
  check_input(width >= 0.5 && width < kWidest, "data.decode",
              name_ + ": its pixels are said to be " + std::to_string(pixel_aspect()) + " times as wide as high, of " +
                  std::to_string(codec_->width) + " in a row",
              kMendFile);
  info.width = static_cast<int>(std::lround(width));
  info.height = codec_->height;
  if (turn_.swap) std::swap(info.width, info.height);
  info.fps = fps();
  info.picture = picture_;
  info.traits = traits_;
  return info;
}

/// Whether a frame has a pixel that is not opaque; unknown after so many frames, it counts as if. The first frame stands
/// in ahead_.
bool Source::shows_through() {
  if (!ahead_ || !has_alpha(*ahead_)) return false;
  FramePtr frame;
  double time = 0;
  for (int i = 0; i < kLookedAt; ++i) {
    if (!next(frame, time)) return false;
    if (is_transparent(*frame)) return true;
  }
  return true;
}

/// A packet whose frame decoding gives, wherever it is read.
void Source::count(const AVPacket& packet) {
  if (!is_shown(packet, decoder_->id)) return;
  count_.add(packet.pts);
}

void Source::Count::add(int64_t stamp) {
  ++frames;
  if (stamp == AV_NOPTS_VALUE)
    stamped = false;
  else
    first = std::min(first, stamp), last = std::max(last, stamp);
}

/// MP4 and MOV list each frame, and which of them their edits leave out.
Source::Count Source::listed_count() const {
  Count count;
  if (!std::string_view(format_->iformat->name).starts_with("mov") || stream_->nb_frames <= 0) return count;
  const int listed = avformat_index_get_entries_count(stream_);
  for (int i = 0; i < listed; ++i)
    if (const AVIndexEntry* entry = avformat_index_get_entry(stream_, i); !(entry->flags & AVINDEX_DISCARD_FRAME))
      count.add(entry->timestamp);
  return count;
}

VideoInfo Source::counted() {
  VideoInfo info = this->info();
  if (shows_through()) info.traits.add(Trait::transparent);
  if (picture_) {
    info.frames = 1, info.duration = 1 / info.fps;
    return info;
  }
  const Count listed = listed_count();
  info.counted = listed.frames == 0;
  if (info.counted) {
    for (int status = 0; (status = av_read_frame(format_.get(), packet_.get())) != AVERROR_EOF;) {
      if (status < 0) fail("is damaged after " + std::to_string(count_.frames) + " frames", status);
      if (packet_->stream_index == stream_->index) count(*packet_);
      av_packet_unref(packet_.get());
    }
  } else {
    count_ = listed;
  }
  // Frames of one length last as their number says, or less by what stamps in milliseconds are rounded; stamps of others
  // tell more.
  constexpr double kRounded = 0.1;  // frames
  info.frames = count_.frames;
  const auto frames = static_cast<double>(info.frames);
  info.duration = frames / info.fps;
  if (count_.stamped && count_.frames > 0) {
    const double span = static_cast<double>(count_.last - count_.first) * av_q2d(stream_->time_base) + 1 / info.fps;
    info.duration = std::abs(span * info.fps - frames) > kRounded ? span : std::min(span, info.duration);
  }
  return info;
}

/// Gives the decoder the next packet, or at the end of the file the sign to empty itself; false when there is no more.
bool Source::feed() {
  if (!damage_.empty()) return false;
  for (;;) {
    int status = av_read_frame(format_.get(), packet_.get());
    if (status >= 0 && packet_->stream_index != stream_->index) {
      av_packet_unref(packet_.get());
      continue;
    }
    if (status >= 0) count(*packet_);
    if (status >= 0 && (packet_->flags & AV_PKT_FLAG_CORRUPT)) damage_ = "the file ends within a frame";
    if (status < 0 && status != AVERROR_EOF) damage_ = ffmpeg_error(status);
    const bool usable = status >= 0 && damage_.empty();
    status = avcodec_send_packet(codec_.get(), usable ? packet_.get() : nullptr);
    av_packet_unref(packet_.get());
    if (status < 0 && damage_.empty() && status != AVERROR_EOF) damage_ = ffmpeg_error(status);
    return status >= 0;
  }
}

bool Source::decode(FramePtr& frame, double& time) {
  frame.reset(av_frame_alloc());
  for (;;) {
    const int status = avcodec_receive_frame(codec_.get(), frame.get());
    if (status == AVERROR(EAGAIN)) {
      if (!feed()) return false;
      continue;
    }
    if (status < 0) {
      if (status != AVERROR_EOF && damage_.empty()) damage_ = ffmpeg_error(status);
      return false;
    }
    if ((frame->flags & AV_FRAME_FLAG_CORRUPT) || frame->decode_error_flags) {
      damage_ = "a frame is damaged";
      return false;
    }
    const bool stamped = frame->best_effort_timestamp != AV_NOPTS_VALUE;
    const double at =
        stamped ? static_cast<double>(frame->best_effort_timestamp) * av_q2d(stream_->time_base) : last_ + 1 / fps();
    if (!std::exchange(started_, true)) origin_ = at;
    last_ = at;
    time = at - origin_;
    return true;
  }
}

bool Source::next(FramePtr& frame, double& time) {
  if (!ahead_) return decode(frame, time);
  frame = std::move(ahead_);
  time = ahead_time_;
  return true;
}

bool Source::skip_to(double seconds) {
  if (picture_ || avformat_index_get_entries_count(stream_) < 2) return false;
  if (!ahead_ || ahead_->best_effort_timestamp == AV_NOPTS_VALUE) return false;  // times count from it
  const auto stamp = static_cast<int64_t>(std::floor((origin_ + seconds) / av_q2d(stream_->time_base)));
  if (av_seek_frame(format_.get(), stream_->index, stamp, AVSEEK_FLAG_BACKWARD) < 0) return false;
  avcodec_flush_buffers(codec_.get());
  ahead_.reset();
  return true;
}

}  // namespace tessera::data
