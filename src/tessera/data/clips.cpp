#include "tessera/data/clips.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/checkpoint/dtype.h"
#include "tessera/data/bucket_draws.h"
#include "tessera/data/files/file_kinds.h"
#include "tessera/data/files/tensor_file.h"

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
/// A video goes to one frame too. Where none fits, one of no bucket that says why.
std::vector<BucketChoice> choose_lengths(const ClipRules& rules, const ClipSize& size) {
  std::set<int64_t, std::greater<>> lengths;
  for (const Bucket& bucket : rules.buckets) lengths.insert(bucket.frames);
  std::vector<BucketChoice> chosen;
  BucketChoice none;
  for (const int64_t frames : lengths) {
    std::vector<Bucket> same;
    std::vector<int> indices;
    for (size_t b = 0; b < rules.buckets.size(); ++b)
      if (rules.buckets[b].frames == frames) same.push_back(rules.buckets[b]), indices.push_back(static_cast<int>(b));
    BucketChoice choice = choose_bucket(same, size, rules.max_crop);
    if (choice.bucket < 0) {
      none = choice;  // in the end the one of the shortest
      continue;
    }
    choice.bucket = indices[static_cast<size_t>(choice.bucket)];
    chosen.push_back(choice);
    if (!rules.every_length || rules.mode == ClipMode::full) break;
  }
  if (chosen.empty()) chosen.push_back(none);
  return chosen;
}

/// What names a clip in the draws: its path below the folder that all clips share, so that a moved data set draws alike.
class DrawNames {
 public:
  explicit DrawNames(const Items& items) {
    bool first = true;
    for (const Item& item : items) {
      const Path folder = item.path.parent_path();
      if (std::exchange(first, false)) root_ = folder;
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

/// The steps of plan_clips().
class Planner {
 public:
  Planner(const Items& items, const Probes& probes, const ClipRules& rules, Problems& problems)
      : items_(items),
        probes_(probes),
        rules_(rules),
        problems_(problems),
        names_(items),
        plan_{.rules = rules, .uses = std::vector<ClipPlan::Use>(rules.buckets.size())} {
    const bool encoded = std::ranges::any_of(items, [](const Item& item) { return is_latent(item.path); });
    blind_ = !has_video() && !encoded && rules.buckets.size() == 1 && rules.mode == ClipMode::head;
  }

  ClipPlan run() {
    std::set<std::string> told;  // repeats of an item that does not fit
    for (size_t i = 0; i < items_.size(); ++i)
      if (!told.contains(items_[i].where) && !add_item(i)) told.insert(items_[i].where);
    for (std::string& note : counts_.notes(rules_.showing)) problems_.note(std::move(note));
    const auto tell = [&](int64_t count, const std::string& what, const std::string& of) {
      if (count > 0) problems_.note(what + " " + std::to_string(count) + of);
    };
    tell(left_out_, "the draws of data.buckets leave out", " of " + std::to_string(items_.size()) + " clips");
    tell(short_scenes_, "data.cuts = \"split\" leaves out", " scenes that are too short");
    tell(dropped_, "data.cuts = \"drop\" leaves out", " clips in which another scene begins");
    return std::move(plan_);
  }

 private:
  /// What is known of an item's file: its size as it is planned, where its scenes begin.
  struct Looked {
    ClipSize size;
    double rate = 0;
    Edges bars;
    std::string reading;
    std::vector<int64_t> cuts;
  };

  /// False where nothing of it is used, which is told.
  bool add_item(size_t index) {
    const Item& item = items_[index];
    Looked looked;
    try {
      if (blind_ || is_latent(item.path)) {
        BucketChoice choice;
        choice.bucket = blind_ ? 0 : bucket_of_latent(rules_, item.path);
        looked.size.frames = bucket(choice).frames;
        add_clips(index, choice, looked, 0, looked.size.frames);
        return true;
      }
      looked = look(item);
    } catch (const UserError& error) {
      problems_.add(item.where, error);
      return false;
    }
    std::vector<int64_t> begins = {0};
    if (rules_.cuts == Cuts::split) begins.insert(begins.end(), looked.cuts.begin(), looked.cuts.end());
    begins.push_back(looked.size.frames);
    bool used = false;
    int64_t short_scenes = 0;
    BucketChoice none;
    for (size_t s = 0; s + 1 < begins.size(); ++s) {
      ClipSize scene = looked.size;
      scene.frames = begins[s + 1] - begins[s];
      for (const BucketChoice& choice : choose(item, scene)) {
        if (choice.bucket >= 0) {
          add_clips(index, choice, looked, begins[s], scene.frames);
          used = true;
        } else if (choice.problem.empty()) {
          ++left_out_, used = true;  // by draws
        } else {
          none = choice, ++short_scenes;
        }
      }
    }
    if (used) {
      short_scenes_ += short_scenes;
      return true;
    }
    const bool named = item.where == item.path.string();
    const std::string text = (named ? "" : item.path.string() + ": ") + none.problem;
    if (none.too_short)
      problems_.leave_out(item.where, text);
    else
      problems_.add(item.where, text);
    return false;
  }

  Looked look(const Item& item) {
    const VideoInfo info = probes_.info(item.path);
    Looked looked;
    looked.reading = read(item.path.string(), info);
    if (rules_.beside)
      for (const auto& [role, file] : rules_.beside(item))
        if (const std::string text = read(file.string(), probes_.info(file)); !text.empty())
          looked.reading += " " + role + ":" + text.substr(1);
    looked.size = {info.height, info.width, frames_at(info, rules_.fps), is_image(item.path) || info.picture};
    looked.rate = rate_of(info, rules_.fps);
    if (!rules_.looks_through()) return looked;
    std::optional<Footage> footage = probes_.footage(item.path, rules_.fps);
    if (!footage && info.picture && !rules_.crop_bars) return looked;
    if (!footage) footage = look_through(item.path, info, rules_.fps, rules_.showing);
    looked.cuts = footage->cuts;
    if (!rules_.crop_bars || !footage->bars.any()) return looked;
    const Edges& bars = looked.bars = footage->bars;
    const auto within = [](int64_t size, double cut) { return std::max<int64_t>(1, std::lround(size * (1 - cut))); };
    looked.size.height = within(looked.size.height, bars.top + bars.bottom);
    looked.size.width = within(looked.size.width, bars.left + bars.right);
    looked.reading += " bars=";
    for (const double edge : {bars.top, bars.bottom, bars.left, bars.right})
      looked.reading += (looked.reading.back() == '=' ? "" : ",") + number("%.4g", edge);
    return looked;
  }

  /// How the file is shown, for cache keys.
  std::string read(const std::string& name, const VideoInfo& info) {
    check_hdr(name, info.traits, rules_.showing);
    const bool told = info.traits.has(Trait::unconverted) || info.traits.hdr() || info.traits.has(Trait::interlaced);
    if (told && counted_.insert(name).second) counts_.add(info.traits, name);  // not for each repeat
    return reading_text(info.traits, rules_.showing);
  }

  std::vector<BucketChoice> choose(const Item& item, const ClipSize& size) const {
    if (rules_.every_length || rules_.mode == ClipMode::full) return choose_lengths(rules_, size);
    return {rules_.draws() ? choose_drawn(rules_.buckets, size, rules_.max_crop, rules_.seed, names_.of(item))
                           : choose_bucket(rules_.buckets, size, rules_.max_crop)};
  }

  const Bucket& bucket(const BucketChoice& choice) const { return rules_.buckets[static_cast<size_t>(choice.bucket)]; }

  /// Of a scene of `available` frames from `begin` on.
  void add_clips(size_t index, const BucketChoice& choice, const Looked& looked, int64_t begin, int64_t available) {
    const int64_t frames = bucket(choice).frames;
    for (const int64_t part : clip_starts(rules_, available, frames)) {
      const int64_t start = begin + part;
      const auto inside = [&](int64_t cut) { return cut > start && cut < start + frames; };
      if (rules_.cuts == Cuts::drop && std::ranges::any_of(looked.cuts, inside)) {
        ++dropped_;
        continue;
      }
      plan_.clips.push_back({static_cast<int64_t>(index), choice.bucket, start,
                             start > 0 ? static_cast<double>(start) / looked.rate : 0,
                             looked.size.image ? 0 : looked.rate, looked.bars, looked.reading, items_[index].set});
      ClipPlan::Use& use = plan_.uses[static_cast<size_t>(choice.bucket)];
      ++use.clips;
      use.enlarged += choice.enlarge > 1;
      use.most_enlarged = std::max(use.most_enlarged, choice.enlarge);
      use.most_crop = std::max(use.most_crop, choice.crop);
    }
  }

  const Items& items_;
  const Probes& probes_;
  const ClipRules& rules_;
  Problems& problems_;
  const DrawNames names_;
  ClipPlan plan_;
  TraitCounts counts_;
  std::set<std::string> counted_;
  bool blind_ = false;
  int64_t left_out_ = 0, short_scenes_ = 0, dropped_ = 0;
};

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

void Clips::push_back(const Clip& clip) {
  constexpr size_t kRecent = 64;  // clips of one file, and of files one after the other, are alike
  const auto same = [&](const Clip& kind) {
    const auto all = [](const Clip& c) {
      return std::tie(c.bucket, c.start, c.seconds, c.rate, c.bars.top, c.bars.bottom, c.bars.left, c.bars.right,
                      c.reading, c.set);
    };
    return all(kind) == all(clip);
  };
  check_internal(clip.item >= 0 && clip.item < ~uint32_t{0}, "data.clips", "a clip of no item");
  size_t kind = kinds_.size();
  for (size_t back = 1; back <= std::min(kRecent, kinds_.size()) && kind == kinds_.size(); ++back)
    if (same(kinds_[kinds_.size() - back])) kind = kinds_.size() - back;
  if (kind == kinds_.size()) kinds_.push_back(clip);
  clips_.push_back({static_cast<uint32_t>(clip.item), static_cast<uint32_t>(kind)});
}

Clip Clips::operator[](size_t index) const {
  const Place place = clips_[index];
  Clip clip = kinds_[place.kind];
  clip.item = place.item;
  return clip;
}

Clip Clips::at(size_t index) const {
  if (index >= size()) throw std::out_of_range("data.clips: clip " + std::to_string(index));
  return (*this)[index];
}

ClipSpec ClipPlan::spec(const Clip& clip) const {
  const Bucket& bucket = rules.buckets.at(static_cast<size_t>(clip.bucket));
  return {.frames = static_cast<int>(bucket.frames),
          .height = static_cast<int>(bucket.height),
          .width = static_cast<int>(bucket.width),
          .fps = rules_of(clip).fps,
          .start = clip.seconds,
          .showing = rules_of(clip).showing,
          .bars = clip.bars};
}

void ClipPlan::add(ClipPlan set, int64_t first_item) {
  uses.resize(rules.buckets.size());
  std::vector<size_t> places;  // of the set's shapes among all
  for (const Bucket& bucket : set.rules.buckets) {
    const auto place = std::ranges::find_if(rules.buckets, [&](const Bucket& one) { return is_shape(one, bucket); });
    check_internal(place != rules.buckets.end(), "data.clips", "no set has the shape " + bucket.text());
    places.push_back(static_cast<size_t>(place - rules.buckets.begin()));
  }
  for (Clip clip : set.clips) {
    clip.item += first_item;
    clip.bucket = static_cast<int>(places[static_cast<size_t>(clip.bucket)]);
    clips.push_back(clip);
  }
  for (size_t b = 0; b < places.size(); ++b) {
    Use& use = uses[places[b]];
    const Use& more = set.uses.at(b);
    use.clips += more.clips, use.enlarged += more.enlarged;
    use.most_crop = std::max(use.most_crop, more.most_crop);
    use.most_enlarged = std::max(use.most_enlarged, more.most_enlarged);
  }
  of_sets.push_back(std::move(set.rules));
}

std::string ClipPlan::preprocessing(const Clip& clip) const { return preprocessing_before(clip) + clip.reading; }

std::string ClipPlan::preprocessing_before(const Clip& clip) const {
  std::string text = "cover+crop fps=" + number("%g", rules_of(clip).fps);
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

ClipPlan plan_clips(const Items& items, const Probes& probes, const ClipRules& rules, Problems& problems) {
  check_internal(!rules.buckets.empty(), "data.clips", "no buckets");
  return Planner(items, probes, rules, problems).run();
}

}  // namespace tessera::data
