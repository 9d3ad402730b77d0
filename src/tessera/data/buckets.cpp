#include "tessera/data/buckets.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>
#include <tuple>

#include "tessera/base/check.h"

namespace tessera::data {

namespace {

double crop_of(const Bucket& bucket, const ClipSize& clip) {
  const double ratio = (static_cast<double>(clip.width) / static_cast<double>(clip.height)) /
                       (static_cast<double>(bucket.width) / static_cast<double>(bucket.height));
  return 1 - std::min(ratio, 1 / ratio);
}

double enlarge_of(const Bucket& bucket, const ClipSize& clip) {
  return std::max(static_cast<double>(bucket.height) / static_cast<double>(clip.height),
                  static_cast<double>(bucket.width) / static_cast<double>(clip.width));
}

std::string percent(double share) { return std::to_string(std::lround(100 * share)) + " %"; }

double ratio_of(const Bucket& bucket) {
  return bucket.ratio > 0 ? bucket.ratio : static_cast<double>(bucket.height) / static_cast<double>(bucket.width);
}

/// Whether the bucket is of the clip's kind and not longer than the clip.
bool takes(const Bucket& bucket, const ClipSize& clip, bool only_images) {
  if (clip.image) return bucket.frames == 1;
  return (bucket.frames > 1 || only_images) && bucket.frames <= clip.frames;
}

std::string why_none_takes(const std::vector<Bucket>& buckets, const ClipSize& clip) {
  if (clip.image)
    return "an image is one frame, and there is no bucket of one; add, for example, 1x" +
           std::to_string(buckets[0].height) + "x" + std::to_string(buckets[0].width) + " to data.buckets";
  int64_t least = 0;
  for (const Bucket& bucket : buckets)
    if (bucket.frames > 1 && (least == 0 || bucket.frames < least)) least = bucket.frames;
  return "found " + std::to_string(clip.frames) + " frames at the rate of training, the shortest bucket needs " +
         std::to_string(std::max<int64_t>(least, 1)) +
         "; lower data.frames, add a shorter bucket, raise data.fps, or remove the clip";
}

}  // namespace

std::string Bucket::text() const {
  return std::to_string(frames) + "x" + std::to_string(height) + "x" + std::to_string(width);
}

Bucket parse_bucket(const std::string& text) {
  long long f = 0, h = 0, w = 0;
  int end = 0;
  const bool whole =
      std::sscanf(text.c_str(), "%lldx%lldx%lld%n", &f, &h, &w, &end) == 3 && static_cast<size_t>(end) == text.size();
  if (!whole || f < 1 || h < 1 || w < 1)
    throw UserError(Exit::usage, "data.buckets", "'" + text + "': expected frames x height x width",
                    "for example data.buckets = [\"33x480x832\", \"33x832x480\", \"1x768x768\"]");
  return {f, h, w};
}

std::string BucketItem::size() const {
  const size_t frames = shape.find_first_not_of("0123456789");
  return frames != std::string::npos && frames > 0 && shape[frames] == 'x' ? shape.substr(frames + 1) : shape;
}

std::string BucketItem::text() const {
  std::ostringstream text;
  text << shape;
  if (batch > 0) text << "=" << batch;
  if (batch > 0 && (take < 1 || keep < 1)) text << ":" << take;
  if (batch > 0 && keep < 1) text << ":" << keep;
  return text.str();
}

BucketItem parse_bucket_item(const std::string& text) {
  const size_t equal = text.find('=');
  BucketItem item{text.substr(0, equal)};
  if (equal == std::string::npos) return item;
  long long batch = 0;
  int end = 0;
  const std::string rest = text.substr(equal + 1);
  const auto whole = [&] { return static_cast<size_t>(end) == rest.size(); };
  const bool read =
      (std::sscanf(rest.c_str(), "%9lld%n", &batch, &end) == 1 && whole()) ||
      (std::sscanf(rest.c_str(), "%9lld:%lf%n", &batch, &item.take, &end) == 2 && whole()) ||
      (std::sscanf(rest.c_str(), "%9lld:%lf:%lf%n", &batch, &item.take, &item.keep, &end) == 3 && whole());
  const auto share = [](double p) { return p >= 0 && p <= 1; };
  if (!read || batch < 1 || !share(item.take) || !share(item.keep))
    throw UserError(
        Exit::usage, "data.buckets",
        "'" + text + "': expected SHAPE=BATCH, SHAPE=BATCH:TAKE or SHAPE=BATCH:TAKE:KEEP, shares from 0 to 1",
        "for example data.buckets = [\"33x256px=96\", \"129x256px=24:1:0.4\"]");
  item.batch = batch;
  return item;
}

BucketChoice choose_bucket(const std::vector<Bucket>& buckets, const ClipSize& clip, double max_crop) {
  BucketChoice choice;
  const bool only_images = std::all_of(buckets.begin(), buckets.end(), [](const Bucket& b) { return b.frames == 1; });
  double least_crop = 2;
  for (const Bucket& bucket : buckets)
    if (takes(bucket, clip, only_images)) least_crop = std::min(least_crop, crop_of(bucket, clip));
  if (least_crop > 1) {
    choice.problem = why_none_takes(buckets, clip);
    choice.too_short = !clip.image;
    return choice;
  }
  if (least_crop > max_crop) {
    choice.problem = "its shape of " + std::to_string(clip.width) + "x" + std::to_string(clip.height) +
                     " fits no bucket: the nearest would crop " + percent(least_crop) +
                     " of the picture, data.max_crop allows " + percent(max_crop) +
                     "; add a bucket of its shape, raise data.max_crop, or remove the clip";
    return choice;
  }
  if (std::any_of(buckets.begin(), buckets.end(), [](const Bucket& b) { return b.ratio > 0; })) {
    const double ratio = static_cast<double>(clip.height) / static_cast<double>(clip.width);
    const Bucket* nearest = nullptr;
    for (const Bucket& bucket : buckets) {
      if (!takes(bucket, clip, only_images)) continue;
      const auto rank = [&](const Bucket& b) {
        return std::tuple(-b.frames, std::abs(ratio_of(b) - ratio), ratio_of(b));
      };
      if (!nearest || rank(bucket) < rank(*nearest)) nearest = &bucket;
    }
    choice.bucket = static_cast<int>(nearest - buckets.data());
    choice.crop = crop_of(*nearest, clip);
    choice.enlarge = enlarge_of(*nearest, clip);
    return choice;
  }
  // More frames first; then pictures that need no enlarging, largest first; then the least enlarged.
  using Rank = std::tuple<int64_t, bool, int64_t>;
  Rank best{-1, false, 0};
  for (size_t i = 0; i < buckets.size(); ++i) {
    const Bucket& bucket = buckets[i];
    if (!takes(bucket, clip, only_images) || crop_of(bucket, clip) > least_crop + kCropTolerance) continue;
    if (crop_of(bucket, clip) > max_crop) continue;
    const bool fills = enlarge_of(bucket, clip) <= 1;
    const int64_t area = bucket.height * bucket.width;
    const Rank rank{bucket.frames, fills, fills ? area : -area};
    if (choice.bucket >= 0 && rank <= best) continue;
    best = rank;
    choice.bucket = static_cast<int>(i);
    choice.crop = crop_of(bucket, clip);
    choice.enlarge = enlarge_of(bucket, clip);
  }
  return choice;
}

}  // namespace tessera::data
