#include "tessera/data/bucket_draws.h"

#include <algorithm>
#include <map>

#include "tessera/base/random.h"

namespace tessera::data {

namespace {

constexpr double kEnough = 0.8;  // of a size's area

/// Whether a picture is taken; any number of frames but one is a video's.
bool takes_picture(const DrawnLength& length, const std::function<double()>& next) {
  return length.frames == 1 && next() < length.take;
}

bool passes_over(const DrawnLength& length, DrawStyle style, const std::function<double()>& next) {
  if (!length.keep) return false;
  if (style == DrawStyle::more_frames) return next() > *length.keep;
  return *length.keep <= 0 || next() <= 1 - *length.keep;
}

bool takes_video(const DrawnLength& length, DrawStyle style, const std::function<double()>& next) {
  if (length.take >= 1) return true;
  const double u = next();
  return style == DrawStyle::more_frames ? u < length.take : u <= length.take;
}

}  // namespace

std::optional<Drawn> draw_bucket(const std::vector<DrawnSize>& sizes, const ClipSize& clip, DrawStyle style,
                                 const std::function<double(Drawn)>& next) {
  for (size_t s = 0; s < sizes.size(); ++s) {
    if (static_cast<double>(clip.height * clip.width) < kEnough * static_cast<double>(sizes[s].area)) continue;
    for (size_t l = 0; clip.image && l < sizes[s].lengths.size(); ++l)
      if (takes_picture(sizes[s].lengths[l], [&] { return next({s, l}); })) return Drawn{s, l};
    if (clip.image) continue;
    for (size_t l = 0; l < sizes[s].lengths.size(); ++l) {
      const DrawnLength& length = sizes[s].lengths[l];
      const auto number = [&] { return next({s, l}); };
      const bool long_enough =
          style == DrawStyle::more_frames ? clip.frames > length.frames : clip.frames >= length.frames;
      if (length.frames == 1 || !long_enough || passes_over(length, style, number)) continue;
      if (takes_video(length, style, number)) return Drawn{s, l};
      break;  // the next smaller size
    }
  }
  return std::nullopt;
}

std::vector<DrawnSize> drawn_sizes(const std::vector<Bucket>& buckets) {
  std::map<int, std::vector<const Bucket*>> levels;
  for (const Bucket& bucket : buckets) levels[bucket.level].push_back(&bucket);
  std::vector<DrawnSize> sizes;
  for (const auto& [level, members] : levels) {
    DrawnSize& size = sizes.emplace_back();
    const Bucket& first = *members.front();
    size.area = first.area > 0 ? first.area : first.height * first.width;  // the square of a table
    size.level = level;
    for (const Bucket* bucket : members)
      if (std::ranges::none_of(size.lengths, [&](const DrawnLength& l) { return l.frames == bucket->frames; }))
        size.lengths.push_back(
            {bucket->frames, bucket->take, bucket->keep < 1 ? std::optional(bucket->keep) : std::nullopt});
    std::ranges::stable_sort(size.lengths, std::ranges::greater(), &DrawnLength::frames);
  }
  std::ranges::stable_sort(sizes, std::ranges::greater(), &DrawnSize::area);
  return sizes;
}

BucketChoice choose_drawn(const std::vector<Bucket>& buckets, const ClipSize& clip, double max_crop, uint64_t seed,
                          const std::string& name) {
  constexpr uint64_t kDraws = uint64_t{1} << 41;  // apart from shuffles and captions
  const RandomKey key(seed, Purpose::order, hash_text(name), kDraws);
  uint64_t drawn = 0;
  const std::vector<DrawnSize> sizes = drawn_sizes(buckets);
  const auto found = draw_bucket(sizes, clip, DrawStyle::shares, [&](Drawn) { return key.uniform(drawn++); });
  if (!found) {
    // too small or too short for each is a fault of the data; what draws leave out is not
    BucketChoice fits = choose_bucket(buckets, clip, max_crop);
    if (fits.bucket >= 0) fits = {};
    return fits;
  }
  const DrawnSize& size = sizes[found->size];
  const int64_t frames = size.lengths[found->length].frames;
  std::vector<Bucket> alike;
  std::vector<int> places;
  for (size_t b = 0; b < buckets.size(); ++b)
    if (buckets[b].frames == frames && buckets[b].level == size.level)
      alike.push_back(buckets[b]), places.push_back(static_cast<int>(b));
  BucketChoice choice = choose_bucket(alike, clip, max_crop);
  if (choice.bucket >= 0) choice.bucket = places[static_cast<size_t>(choice.bucket)];
  return choice;
}

}  // namespace tessera::data
