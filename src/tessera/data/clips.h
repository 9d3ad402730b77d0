#pragma once
// From items to the clips that are trained on: which bucket each file goes to, and which parts of it are cut out.
//
//   ClipPlan plan = plan_clips(items, probes, {.buckets = buckets, .fps = 16, .mode = ClipMode::chunks}, problems);
//   decode_clip(items[plan.clips[0].item].path, plan.spec(plan.clips[0]));
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/buckets.h"
#include "tessera/data/dataset.h"
#include "tessera/data/files/tensor_file.h"
#include "tessera/data/probes.h"

namespace tessera::data {

/// Parts of a file of n frames (at the rate of training) that a bucket of F frames takes.
enum class ClipMode {
  head,     ///< the first F
  uniform,  ///< `samples` of F frames, their starts spread evenly from the first to the last possible one
  chunks,   ///< F after F; what is left at the end and shorter than F is not used
  slide,    ///< as many as there are, `stride` frames from start to start
  full      ///< the first 4 n + 1, as many as there are, at most F: buckets_of_full() lists their shapes
};
ClipMode clip_mode_of(std::string_view name);  ///< throws UserError (usage)

/// What becomes of clips in which another scene begins.
enum class Cuts { keep, split, drop };

struct ClipRules {
  std::vector<Bucket> buckets;
  double fps = 0;  ///< 0: as the source
  ClipMode mode = ClipMode::head;
  int64_t stride = 0;   ///< of slide; 0: half a clip
  int64_t samples = 2;  ///< of uniform
  /// A file goes to a bucket of every listed number of frames that it is long enough for, not to the longest alone.
  bool every_length = false;
  uint64_t seed = 0;    ///< of the draws where buckets take shares of the clips
  bool draws() const;   ///< whether they do
  double max_crop = 1;  ///< share of a picture that may be cut off, 0..1
  /// [C, f, h, w] that a bucket's clips are encoded to, where clips may be latents already.
  std::function<NpyShape(const Bucket&)> latent_of = nullptr;

  Showing showing = {};
  Cuts cuts = Cuts::keep;  ///< split: each scene of a video counts as a video of its own
  bool crop_bars = false;  ///< black bars are cut off first
  bool looks_through() const { return crop_bars || cuts != Cuts::keep; }  ///< whole videos are decoded for these
  /// Other pictures and videos that a clip of the row is made from, each with its role.
  std::function<std::vector<std::pair<std::string, Path>>(const Item&)> beside = nullptr;
};

struct Clip {
  int64_t item = 0;
  int bucket = 0;
  int64_t start = 0;         ///< frames at the rate of training
  double seconds = 0;        ///< the same as time from the first frame
  double rate = 0;           ///< its frames a second; 0: a picture, or unknown
  Edges bars = {};           ///< cut off first
  std::string reading = {};  ///< reading_text() of its file and of those beside it: " upright first:on=#ffffff"
  int set = 0;               ///< of its item
};

/// The clips of a data set, of which there may be millions: what many have alike is kept once.
class Clips {
 public:
  void push_back(const Clip& clip);
  size_t size() const { return clips_.size(); }
  bool empty() const { return clips_.empty(); }
  Clip operator[](size_t index) const;
  Clip at(size_t index) const;  ///< throws std::out_of_range
  using Iterator = ListIterator<Clips, Clip>;
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, size()}; }

 private:
  struct Place {
    uint32_t item, kind;
  };
  std::deque<Place> clips_;
  std::deque<Clip> kinds_;  // but for the item
};

struct ClipPlan {
  ClipRules rules;  ///< of several sets: with the shapes of all
  Clips clips = {};

  std::vector<ClipRules> of_sets = {};  ///< where there are several
  const ClipRules& rules_of(const Clip& clip) const {
    return of_sets.empty() ? rules : of_sets.at(static_cast<size_t>(clip.set));
  }
  /// Puts the clips of one more set behind these. `first_item`: of that set, in the list of all sets' items.
  void add(ClipPlan set, int64_t first_item);

  ClipSpec spec(const Clip& clip) const;
  /// How the clip's pixels are made from its file, for cache keys: "cover+crop fps=16", "... start=33 upright".
  std::string preprocessing(const Clip& clip) const;
  /// What an entry of a version that did not know of readings says of the same.
  std::string preprocessing_before(const Clip& clip) const;
  /// A line a bucket: how many clips, how many of them enlarged, how much of a picture is cut off at most.
  std::string summary() const;

  struct Use {
    int64_t clips = 0, enlarged = 0;
    double most_crop = 0, most_enlarged = 1;
  };
  std::vector<Use> uses;  ///< of each bucket
};

/// What mode full makes of a listed shape: itself, cut to 4 n + 1 frames, and the shorter ones down to one frame. As
/// musubi-tuner's frame_extraction = "full" has them, max_frames being the bucket's.
std::vector<Bucket> buckets_of_full(const Bucket& most);

std::vector<int64_t> clip_starts(const ClipRules& rules, int64_t available, int64_t frames);

/// The bucket whose clips are encoded to a latent of this shape. Throws UserError (input) showing the shapes of all.
int bucket_of_latent(const ClipRules& rules, const Path& latent);

/// Throws UserError (input) with the count of each where data.buckets lists a shape and no clip is of it. Of a table of
/// aspect ratios those shapes are used that clips have.
void check_no_bucket_is_empty(const ClipPlan& plan);

/// Items in order, each file's clips by start. A latent is one clip, and goes to the bucket that it was encoded for. What
/// fits no bucket or cannot be read goes to `problems`; what is too short for each bucket is left out and is no fault. An
/// item that comes several times (repeats) is told once. What should be known of files (HDR, interlaced) is noted. Without
/// FFmpeg a single bucket is believed to fit every clip's head.
ClipPlan plan_clips(const Items& items, const Probes& probes, const ClipRules& rules, Problems& problems);

}  // namespace tessera::data
