#include "tessera/data/media/fields.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tessera/base/check.h"

namespace tessera::data {

namespace {

constexpr int kStill = 3;  // levels of 8 bits that noise may change a pixel by

/// A plane of samples of type T; `before` may be null.
template <class T>
struct Plane {
  const uint8_t *now, *before;
  uint8_t* to;
  ptrdiff_t now_row, before_row, to_row;
  int rows, samples;
  int still, most;  // in levels of the plane

  const T* row(int y) const { return reinterpret_cast<const T*>(now + y * now_row); }
  const T* row_before(int y) const { return reinterpret_cast<const T*>(before + y * before_row); }

  void fill(int first_field) const {
    for (int y = 0; y < rows; ++y) {
      T* out = reinterpret_cast<T*>(to + y * to_row);
      if (y % 2 == first_field)
        std::memcpy(out, row(y), static_cast<size_t>(samples) * sizeof(T));
      else
        fill_row(y, out);
    }
  }

  void fill_row(int y, T* out) const {
    const int above = y > 0 ? y - 1 : y + 1, below = y + 1 < rows ? y + 1 : y - 1;
    if (rows < 2) return static_cast<void>(std::memcpy(out, row(y), static_cast<size_t>(samples) * sizeof(T)));
    const bool wide = y >= 3 && y + 3 < rows;
    const T *a = row(above), *b = row(below), *own = row(y);
    const T *a2 = wide ? row(y - 3) : a, *b2 = wide ? row(y + 3) : b;
    const auto moves = [&](int x) {
      return std::abs(own[x] - row_before(y)[x]) > still || std::abs(a[x] - row_before(above)[x]) > still ||
             std::abs(b[x] - row_before(below)[x]) > still;
    };
    for (int x = 0; x < samples; ++x) {
      if (before && !moves(x)) {
        out[x] = own[x];
        continue;
      }
      const int sum = wide ? 9 * (a[x] + b[x]) - a2[x] - b2[x] : 8 * (a[x] + b[x]);
      out[x] = static_cast<T>(std::clamp((sum + 8) >> 4, 0, most));
    }
  }
};

}  // namespace

FramePtr one_moment(const AVFrame& frame, const AVFrame* before, bool top_first) {
  const auto format = static_cast<AVPixelFormat>(frame.format);
  const AVPixFmtDescriptor* form = av_pix_fmt_desc_get(format);
  constexpr uint64_t kOther = AV_PIX_FMT_FLAG_BE | AV_PIX_FMT_FLAG_BITSTREAM | AV_PIX_FMT_FLAG_PAL |
                              AV_PIX_FMT_FLAG_FLOAT | AV_PIX_FMT_FLAG_HWACCEL;
  if (!form || (form->flags & kOther) || form->comp[0].shift != 0 || form->comp[0].depth < 8) return nullptr;
  const bool same =
      before && before->format == frame.format && before->width == frame.width && before->height == frame.height;
  FramePtr to = new_frame(format, frame.width, frame.height);
  if (av_frame_copy_props(to.get(), &frame) < 0) throw Error(Exit::memory, "data.video", "no memory for a frame");
  const int depth = form->comp[0].depth;
  for (int p = 0; p < 4 && frame.data[p]; ++p) {
    const bool chroma = (p == 1 || p == 2) && !(form->flags & AV_PIX_FMT_FLAG_RGB);
    const int rows = chroma ? AV_CEIL_RSHIFT(frame.height, form->log2_chroma_h) : frame.height;
    const int bytes = av_image_get_linesize(format, frame.width, p);
    const auto fill = [&]<class T>(T) {
      const Plane<T> plane{frame.data[p],
                           same ? before->data[p] : nullptr,
                           to->data[p],
                           frame.linesize[p],
                           same ? before->linesize[p] : 0,
                           to->linesize[p],
                           rows,
                           bytes / static_cast<int>(sizeof(T)),
                           kStill << (depth - 8),
                           (1 << depth) - 1};
      plane.fill(top_first ? 0 : 1);
    };
    if (depth > 8)
      fill(uint16_t{});
    else
      fill(uint8_t{});
  }
  return to;
}

}  // namespace tessera::data
