#include "tessera/data/clips.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <set>

#include "tessera/base/check.h"
#include "tessera/checkpoint/dtype.h"
#include "tessera/data/buckets/bucket_draws.h"
#include "tessera/data/files/file_kinds.h"
#include "tessera/data/files/tensor_file.h"
#include "tessera/data/frame_folder.h"

namespace tessera::data {

namespace {

constexpr std::array<std::pair<const char*, ClipMode>, 5> kModes = {{{"head", ClipMode::head},
                                                                     {"uniform", ClipMode::uniform},
                                                                     {"chunks", ClipMode::chunks},
                                                                     {"slide", ClipMode::slide},
                                                                     {"full", ClipMode::full}}};

std::string number(const char* form, double value) {
  char text[48];
  std::snprintf(text, sizeof text, form, value);
  return text;
}

/// Among the buckets of each number of frames the best one for the clip, longest first; of mode full the longest alone.
/// A video goes to one frame too. None, and why, where none fits.
std::vector<BucketChoice> choose_lengths(const ClipRules& rules, const ClipSize& size, std::string& problem) {
  std::set<int64_t, std::greater<>> lengths;
  for (const Bucket& bucket : rules.buckets) lengths.insert(bucket.frames);
  std::vector<BucketChoice> chosen;
  for (const int64_t frames : lengths) {
    std::vector<Bucket> same;
    std::vector<int> indices;
    for (size_t b = 0; b < rules.buckets.size(); ++b)
      if (rules.buckets[b].frames == frames) same.push_back(rules.buckets[b]), indices.push_back(static_cast<int>(b));
    BucketChoice choice = choose_bucket(same, size, rules.max_crop);
    if (choice.bucket < 0) {
      problem = choice.problem;  // in the end the one of the shortest
      continue;
    }
    choice.bucket = indices[static_cast<size_t>(choice.bucket)];
    chosen.push_back(choice);
    if (!rules.every_length || rules.mode == ClipMode::full) break;
  }
  return chosen;
}

/// What names a clip in the draws: its path below the folder that all clips share, so that a moved data set draws alike.
class DrawNames {
 public:
  explicit DrawNames(const std::vector<Item>& items) {
    for (const Item& item : items) {
      const Path folder = item.path.parent_path();
      if (&item == &items.front()) root_ = folder;
      const auto [end, other] = std::mismatch(root_.begin(), root_.end(), folder.begin(), folder.end());
      if (end == root_.end()) continue;
      Path shared;
      for (auto part = root_.begin(); part != end; ++part) shared /= *part;
      root_ = shared;
    }
  }
  std::string of(const Item& item) const {
    return root_.empty() ? item.path.string() : item.path.lexically_relative(root_).string();
  }

 private:
  Path root_;
};

/// Buckets of one file and what each does to the picture; none, and a problem booked, when none fits.
std::vector<BucketChoice> place(const Item& item, const Probes& probes, const ClipRules& rules, ClipSize& size,
                                double& rate, const DrawNames& names, int64_t& left_out, Problems& problems) {
  try {
    if (is_latent(item.path)) {
      BucketChoice choice;
      choice.bucket = bucket_of_latent(rules, item.path);
      size.frames = rules.buckets[static_cast<size_t>(choice.bucket)].frames;
      return {choice};
    }
    const VideoInfo info = probes.info(item.path);
    size = {info.height, info.width, frames_at(info, rules.fps), is_image(item.path) || info.frames == 1};
    rate = rules.fps > 0 ? rules.fps : info.fps > 0 ? info.fps : kFolderFps;
  } catch (const UserError& error) {
    problems.add(item.where, error);
    return {};
  }
  std::string problem;
  if (rules.every_length || rules.mode == ClipMode::full) {
    if (auto chosen = choose_lengths(rules, size, problem); !chosen.empty()) return chosen;
  } else {
    const BucketChoice choice = rules.draws()
                                    ? choose_drawn(rules.buckets, size, rules.max_crop, rules.seed, names.of(item))
                                    : choose_bucket(rules.buckets, size, rules.max_crop);
    if (choice.bucket >= 0) return {choice};
    if (choice.problem.empty()) {
      ++left_out;
      return {};
    }
    problem = choice.problem;
  }
  const bool named = item.where == item.path.string();
  problems.add(item.where, (named ? "" : item.path.string() + ": ") + problem);
  return {};
}

}  // namespace

ClipMode clip_mode_of(std::string_view name) {
  for (const auto& [known, mode] : kModes)
    if (name == known) return mode;
  throw UserError(Exit::usage, "data.clip_mode",
                  "'" + std::string(name) + "': expected head, uniform, chunks, slide or full");
}

bool ClipRules::draws() const {
  return std::ranges::any_of(buckets, [](const Bucket& b) { return b.take < 1 || b.keep < 1; });
}

std::vector<Bucket> buckets_of_full(const Bucket& most) {
  constexpr int64_t kFrames = 4;  // that a latent frame stands for, but for the first
  const double ratio = static_cast<double>(most.height) / static_cast<double>(most.width);
  std::vector<Bucket> buckets;
  for (int64_t n = (most.frames - 1) / kFrames; n >= 0; --n)
    buckets.push_back({kFrames * n + 1, most.height, most.width, most.ratio > 0 ? most.ratio : ratio});
  return buckets;
}

int64_t frames_at(const VideoInfo& info, double fps) {
  if (fps <= 0 || info.fps <= 0 || info.frames <= 1) return info.frames;  // a folder of frames has no rate
  // decode_clip shows each frame until the next one's time, the last until a millionth of a frame before its end
  return static_cast<int64_t>(fps * (static_cast<double>(info.frames) - 1e-6) / info.fps) + 1;
}

std::vector<int64_t> clip_starts(const ClipRules& rules, int64_t available, int64_t frames) {
  std::vector<int64_t> starts = {0};
  const int64_t last = available - frames;
  if (last <= 0 || rules.mode == ClipMode::head || rules.mode == ClipMode::full) return starts;
  if (rules.mode == ClipMode::uniform) {
    for (int64_t k = 1; k < rules.samples; ++k)
      if (const int64_t start = last * k / (rules.samples - 1); start > starts.back()) starts.push_back(start);
    return starts;
  }
  const int64_t slide = rules.stride > 0 ? rules.stride : std::max<int64_t>(1, frames / 2);
  const int64_t step = rules.mode == ClipMode::chunks ? frames : slide;
  for (int64_t start = step; start <= last; start += step) starts.push_back(start);
  return starts;
}

ClipSpec ClipPlan::spec(const Clip& clip) const {
  const Bucket& bucket = rules.buckets.at(static_cast<size_t>(clip.bucket));
  return {.frames = static_cast<int>(bucket.frames),
          .height = static_cast<int>(bucket.height),
          .width = static_cast<int>(bucket.width),
          .fps = rules.fps,
          .start = clip.seconds};
}

std::string ClipPlan::preprocessing(const Clip& clip) const {
  std::string text = "cover+crop fps=" + number("%g", rules.fps);
  if (clip.start > 0) text += " start=" + std::to_string(clip.start);
  return text;
}

std::string ClipPlan::summary() const {
  std::string text;
  for (size_t b = 0; b < rules.buckets.size(); ++b) {
    const Use& use = uses.at(b);
    if (use.clips == 0 && rules.buckets[b].ratio > 0) continue;  // the tables have many
    text += (text.empty() ? "  " : "\n  ") + rules.buckets[b].text() + ": " + std::to_string(use.clips) +
            (use.clips == 1 ? " clip" : " clips");
    if (use.enlarged > 0)
      text += ", " + std::to_string(use.enlarged) + " enlarged, by " + number("%.2f", use.most_enlarged) + " at most";
    if (use.most_crop >= 0.005) text += ", up to " + number("%.0f", 100 * use.most_crop) + " % of a frame cropped";
  }
  return text;
}

int bucket_of_latent(const ClipRules& rules, const Path& latent) {
  check_input(rules.latent_of != nullptr, "data.clips", latent.string() + ": latents, expected a picture or a video",
              "train on latents: data.latents = \"npy\", or \"column\" for those that a column of the table names");
  const NpyShape stored = tensor_shape(latent), shape = latent_shape(stored);
  std::string shapes;
  for (size_t b = 0; b < rules.buckets.size(); ++b) {
    const NpyShape wanted = rules.latent_of(rules.buckets[b]);
    if (wanted == shape) return static_cast<int>(b);
    if (b < 8) shapes += (b > 0 ? ", " : "") + checkpoint::shape_text(wanted) + " of " + rules.buckets[b].text();
  }
  if (rules.buckets.size() > 8) shapes += " and " + std::to_string(rules.buckets.size() - 8) + " more";
  throw UserError(
      Exit::input, "data.clips",
      latent.string() + ": latents of shape " + checkpoint::shape_text(stored) + " are of no bucket, expected " +
          shapes,
      "train in the shapes that they were encoded in: data.buckets, and with the autoencoder that made them: data.vae");
}

void check_no_bucket_is_empty(const ClipPlan& plan) {
  const std::vector<Bucket>& buckets = plan.rules.buckets;
  const bool of_table = std::any_of(buckets.begin(), buckets.end(), [](const Bucket& b) { return b.ratio > 0; });
  for (size_t b = 0; b < buckets.size() && buckets.size() > 1 && !of_table; ++b)
    check_input(plan.uses.at(b).clips > 0, "data.buckets",
                "no clip is of the shape " + buckets[b].text() + "; clips of each:\n" + plan.summary(),
                "\nremove it from data.buckets, or add clips of that shape");
}

ClipPlan plan_clips(const std::vector<Item>& items, const Probes& probes, const ClipRules& rules, Problems& problems) {
  check_internal(!rules.buckets.empty(), "data.clips", "no buckets");
  ClipPlan plan{rules, {}, std::vector<ClipPlan::Use>(rules.buckets.size())};
  const auto is_encoded = [](const Item& item) { return is_latent(item.path); };
  const bool blind = !has_video() && !std::any_of(items.begin(), items.end(), is_encoded) &&
                     rules.buckets.size() == 1 && rules.mode == ClipMode::head;
  const DrawNames names(items);
  int64_t left_out = 0;
  std::set<std::string> told;  // repeats of an item that does not fit
  for (size_t i = 0; i < items.size(); ++i) {
    const Item& item = items[i];
    if (told.contains(item.where)) continue;
    std::vector<BucketChoice> choices(1);
    choices[0].bucket = 0;
    ClipSize size;
    double rate = 0;
    if (!blind) choices = place(item, probes, rules, size, rate, names, left_out, problems);
    if (choices.empty()) told.insert(item.where);
    for (const BucketChoice& choice : choices) {
      const int64_t frames = rules.buckets[static_cast<size_t>(choice.bucket)].frames;
      for (const int64_t start : clip_starts(rules, blind ? frames : size.frames, frames)) {
        plan.clips.push_back({static_cast<int64_t>(i), choice.bucket, start,
                              start > 0 ? static_cast<double>(start) / rate : 0, size.image ? 0 : rate});
        ClipPlan::Use& use = plan.uses[static_cast<size_t>(choice.bucket)];
        ++use.clips;
        use.enlarged += choice.enlarge > 1;
        use.most_enlarged = std::max(use.most_enlarged, choice.enlarge);
        use.most_crop = std::max(use.most_crop, choice.crop);
      }
    }
  }
  if (left_out > 0)
    problems.note("the draws of data.buckets leave out " + std::to_string(left_out) + " of " +
                  std::to_string(items.size()) + " clips");
  return plan;
}

}  // namespace tessera::data
