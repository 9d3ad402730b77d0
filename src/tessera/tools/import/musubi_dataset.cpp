// musubi-tuner's data set TOML. Its [general] table and its one [[datasets]] come under one name each.
#include <algorithm>
#include <charconv>
#include <set>

#include "tessera/base/check.h"
#include "tessera/tools/import/dialects.h"

namespace tessera::tools {

namespace {

void source(Translator& t) {
  int named = 0;
  for (const char* option : {"video_directory", "image_directory"})
    if (t.has(option)) t.set("data.path", t.value(option), {option}), ++named;
  for (const char* option : {"video_jsonl_file", "image_jsonl_file"}) {
    if (!t.has(option)) continue;
    ++named;
    const std::string file = t.value(option);
    t.set("data.metadata", file, {option});
    t.set("data.path", file.rfind('/') == std::string::npos ? "." : file.substr(0, file.rfind('/')), {option});
  }
  if (named != 1)
    throw UserError(Exit::usage, "import", named == 0 ? "the data set names no clips" : "a data set has one source",
                    "give one of video_directory, video_jsonl_file, image_directory, image_jsonl_file");
}

bool of_images(const Translator& t) { return t.has("image_directory") || t.has("image_jsonl_file"); }

/// Its autoencoders make a latent frame of each 4 frames after the first.
constexpr int64_t kFramesOfLatent = 4;

int64_t frame_count(const Translator& t, const std::string& text) {
  int64_t frames = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, frames);
  if (error != std::errc() || stop != end || frames < 1)
    throw UserError(Exit::usage, "import",
                    t.find("target_frames")->shown() + ": '" + text + "': expected whole numbers of frames from 1 on",
                    "for example [1, 25, 45]");
  return frames;
}

/// The lengths that it trains: each cut to 4 n + 1 frames, once, shortest first.
std::vector<std::string> lengths(const Translator& t, bool full) {
  if (of_images(t)) return {"1"};
  if (full) return {t.value("max_frames", "129")};  // cut for each video, as data.clip_mode = "full" does
  std::set<int64_t> frames;
  for (const std::string& text : split_list(t.value("target_frames", "1")))
    frames.insert((frame_count(t, text) - 1) / kFramesOfLatent * kFramesOfLatent + 1);
  std::vector<std::string> texts;
  for (const int64_t f : frames) texts.push_back(std::to_string(f));
  return texts;
}

/// What a reader of the recipe is told where a listed length was cut; else nothing.
std::string told_of_cut(const Translator& t, const std::vector<std::string>& lengths) {
  for (const std::string& text : split_list(t.value("target_frames", "1")))
    if (std::ranges::find(lengths, text) == lengths.end()) return "cut to 4 n + 1 frames, as musubi-tuner does";
  return {};
}

/// Every listed length at the shapes of the one area, as a video or picture has its own; a video is in all of the lengths
/// that it is long enough for.
void musubi_buckets(Translator& t, const std::vector<std::string>& size, const std::vector<std::string>& frames,
                    std::vector<std::string> options, const std::string& cut) {
  options.push_back("enable_bucket");
  std::string buckets;
  for (const std::string& f : frames) buckets += f + "xAREA_" + size[0] + "x" + size[1] + kListSeparator;
  t.set("data.buckets", buckets, options, "shapes of this area, in steps of 16" + (cut.empty() ? "" : "; " + cut));
  if (frames.size() > 1) t.set("data.clip_lengths", "every", options, "a video is an item of each length that it has");
}

/// Every listed length at the one resolution: a shape each where there are several, and a video is in all of them that
/// it is long enough for.
void musubi_shapes(Translator& t) {
  const std::vector<std::string> size = split_list(t.value("resolution", "960,544"));
  if (size.size() != 2)
    throw UserError(Exit::usage, "import", "resolution: expected [width, height]", "for example [832, 480]");
  const bool full = t.value("frame_extraction", "head") == "full";
  const char* longest = full ? "max_frames" : "target_frames";
  const std::vector<std::string> frames = lengths(t, full);
  std::vector<std::string> options;
  for (const char* option : {"resolution", longest})
    if (t.has(option)) options.push_back(option);
  if (full && t.has("target_frames")) t.imply("target_frames", "frame_extraction = full takes all frames of a video");
  if (t.flag("enable_bucket")) return musubi_buckets(t, size, frames, options, full ? "" : told_of_cut(t, frames));
  if (t.has("enable_bucket")) t.imply("enable_bucket", "all clips have one shape");
  if (options.empty() && !full) return;
  if (frames.size() == 1) {
    if (options.empty())
      t.assume("data.frames", frames[0], "musubi-tuner's max_frames");
    else
      t.set("data.frames", frames[0], options, full || of_images(t) ? "" : told_of_cut(t, frames));
    if (t.has("resolution")) t.set("data.size", size[1] + "," + size[0], options, "height, width");
    return;
  }
  std::string buckets;
  for (const std::string& f : frames) buckets += f + "x" + size[1] + "x" + size[0] + kListSeparator;
  const std::string cut = told_of_cut(t, frames);
  t.set("data.buckets", buckets, options, "frames x height x width" + (cut.empty() ? "" : "; " + cut));
  t.set("data.clip_lengths", "every", options, "a video is an item of each length that it has");
}

void extraction(Translator& t) {
  static const std::pair<const char*, const char*> kModes[] = {
      {"head", "head"}, {"chunk", "chunks"}, {"slide", "slide"}, {"uniform", "uniform"}, {"full", "full"}};
  const std::string mode = t.value("frame_extraction", "head");
  if (t.has("frame_extraction")) {
    bool known = false;
    for (const auto& [theirs, ours] : kModes)
      if (mode == theirs) t.set("data.clip_mode", ours, {"frame_extraction"}), known = true;
    if (!known)
      throw UserError(Exit::usage, "import", t.find("frame_extraction")->shown() + " is not known",
                      "did you mean " + nearest(mode, {"head", "chunk", "slide", "uniform", "full"}).front() + "?");
  }
  const auto belongs = [&](const char* option, const char* to, const char* key) {
    if (mode != to) {
      if (t.has(option)) t.imply(option, std::string("it belongs to frame_extraction = ") + to);
    } else if (t.has(option)) {
      t.set(key, t.value(option), {option});
    } else {
      t.assume(key, "1", std::string("musubi-tuner's ") + option);
    }
  };
  belongs("frame_stride", "slide", "data.clip_stride");
  belongs("frame_sample", "uniform", "data.clip_samples");
  if (t.has("max_frames") && mode != "full") t.imply("max_frames", "it belongs to frame_extraction = full");
}

void musubi_dataset_together(Translator& t) {
  source(t);
  musubi_shapes(t);
  extraction(t);
  const int64_t batch = t.integer("batch_size", 1) * t.context().accumulation;
  if (t.has("batch_size"))
    t.set_batch(batch, {"batch_size"},
                t.value("batch_size") + " x " + std::to_string(t.context().accumulation) + " (accumulation)");
  else
    t.assume("train.global_batch", std::to_string(batch * t.dp_size().value_or(1)), "musubi-tuner's batch of 1");
  if (t.has("source_fps"))
    t.assume("data.fps", "16", "musubi-tuner resamples to the model's rate");
  else
    t.assume("data.fps", "0", "without source_fps musubi-tuner takes every frame");
}

std::vector<Rule> musubi_dataset_rules() {
  std::vector<Rule> table = {
      joined("resolution", "`data.size`, height first, or `data.buckets`"),
      joined(
          "target_frames",
          "`data.frames`, or a shape each in `data.buckets` with `data.clip_lengths = \"every\"`; cut to 4 n + 1 frames"),
      joined("video_directory", "`data.path`"),
      joined("image_directory", "`data.path`, with `data.frames = 1`"),
      joined("video_jsonl_file", "`data.metadata`"),
      joined("image_jsonl_file", "`data.metadata`, with `data.frames = 1`"),
      joined("frame_extraction", "`data.clip_mode`: head, chunk chunks, slide, uniform, full"),
      joined("frame_stride", "`data.clip_stride`, of slide"),
      joined("frame_sample", "`data.clip_samples`, of uniform"),
      joined("max_frames", "`data.frames`, of full"),
      sets("cache_directory", "data.cache"),
      sets("num_repeats", "data.repeats"),
      joined("batch_size", "its share of `train.global_batch`"),
      only("caption_extension", {".txt"}, "captions are .txt files beside the clips", "captions are .txt files"),
      joined("enable_bucket", "`data.buckets` = FRAMESxAREA_WIDTHxHEIGHT: shapes of the resolution's area"),
      implied("bucket_no_upscale", "tessera prepare says how many clips are enlarged"),
      implied("source_fps", "the frame rate is read from the file; without it no frame is left out, `data.fps = 0`"),
      refused("datasets", "several data sets are not supported: put all clips into one folder or table"),
      implied("skip_existing", "always on: cached samples are not encoded again"),
  };
  for (const char* name : {"control_directory", "control_resolution", "no_resize_control", "multiple_target"})
    table.push_back(refused(name, "control videos are not supported"));
  for (const char* name : {"fp_latent_window_size", "fp_1f_clean_indices", "fp_1f_target_index", "fp_1f_no_post"})
    table.push_back(refused(name, "FramePack is not supported"));
  return table;
}

}  // namespace

const Dialect& musubi_dataset() {
  static const Dialect dialect = {"musubi-tuner's data set", "a musubi-tuner data set", musubi_dataset_rules(),
                                  musubi_dataset_together};
  return dialect;
}

}  // namespace tessera::tools
