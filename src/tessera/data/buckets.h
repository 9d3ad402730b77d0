#pragma once
// The shapes a data set is trained in, and which of them a clip belongs to.
//
//   std::vector<Bucket> buckets = {parse_bucket("33x480x832"), parse_bucket("33x832x480"), parse_bucket("1x768x768")};
//   BucketChoice choice = choose_bucket(buckets, {.height = 1080, .width = 1920, .frames = 75}, /*max_crop=*/0.5);
//   choice.bucket;                       // 0; or -1, and `problem` says why none fits
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::data {

struct Bucket {
  int64_t frames = 0, height = 0, width = 0;  ///< pixels
  double ratio = 0;                           ///< height by width as a table of ratios has it; 0: of no table
  int64_t batch = 0;                          ///< samples of its global batches; 0: as many as all have
  /// Shares of the clips that are drawn (bucket_draws.h), and which buckets are of one size: those of one level.
  double take = 1, keep = 1;
  int level = 0;
  int64_t area = 0;  ///< pixels that a clip is held against by these draws; 0: those of the shape, of a table its first
  bool operator==(const Bucket&) const = default;
  std::string text() const;  ///< "33x480x832"
};

/// Whether they are one in the list of a run's shapes, whatever else is said of them there.
inline bool is_shape(const Bucket& a, const Bucket& b) {
  return a.frames == b.frames && a.height == b.height && a.width == b.width && a.batch == b.batch;
}

/// "33x480x832", frames x height x width. Throws UserError (usage) showing the text.
Bucket parse_bucket(const std::string& text);

/// An item of data.buckets: a shape or a table, and after it what is said of them all, "33x256px=12:0.5:0.3": samples of
/// a global batch, take, keep.
struct BucketItem {
  std::string shape;
  int64_t batch = 0;
  double take = 1, keep = 1;
  /// The size, without the frames: "256px".
  std::string size() const;
  std::string text() const;  ///< as it is parsed
};
/// Throws UserError (usage) showing the text.
BucketItem parse_bucket_item(const std::string& text);

/// A clip as it would be cut: shown size in pixels, frames at the rate of training.
struct ClipSize {
  int64_t height = 0, width = 0, frames = 0;
  bool image = false;
};

struct BucketChoice {
  int bucket = -1;         ///< index, or -1
  double crop = 0;         ///< share of the picture that cropping to the bucket's aspect ratio cuts off, 0..1
  double enlarge = 1;      ///< factor by which the picture is resized to cover the bucket; above 1 it is made larger
  std::string problem;     ///< why no bucket fits
  bool too_short = false;  ///< which is that the clip has too few frames
};

/// The bucket that cuts off least of the picture. Among those within kCropTolerance of the least: the one with most
/// frames, then the largest one that the picture fills without being enlarged, else the smallest. Images go to buckets
/// of one frame, videos to buckets of several that they are long enough for (to one frame where there are no others).
/// Where buckets are of a table of ratios, as those tables are used elsewhere: most frames, then the nearest ratio of
/// height to width, the smaller of two equally near.
BucketChoice choose_bucket(const std::vector<Bucket>& buckets, const ClipSize& clip, double max_crop);

inline constexpr double kCropTolerance = 0.05;

}  // namespace tessera::data
