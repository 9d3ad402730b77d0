// diffusion-pipe's data set TOML. Its one [[directory]] comes under the names of the top.
#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/tools/import/dialects.h"

namespace tessera::tools {

namespace {

/// One area, its square's side in `side`, at the ratios between min_ar and max_ar.
void ratio_buckets(Translator& t, const std::string& side, std::vector<std::string> options) {
  for (const char* option : {"enable_ar_bucket", "min_ar", "max_ar", "num_ar_buckets"}) options.push_back(option);
  std::vector<std::string> frames = split_list(t.value("frame_buckets", "1"));
  if (std::ranges::find(frames, "1") == frames.end()) frames.insert(frames.begin(), "1");  // always one of pictures
  std::string buckets;
  for (const std::string& f : frames)
    buckets += f + "xRATIOS_" + side + "_" + t.value("min_ar") + "_" + t.value("max_ar") + "_" +
               t.value("num_ar_buckets") + kListSeparator;
  t.set("data.buckets", buckets, options,
        "frames x shapes of the area of a square, at these ratios of width to height");
}

/// Areas by their side ([512]) or as width and height, at each number of frames.
void pipe_shapes(Translator& t) {
  if (t.has("size_buckets")) {
    std::string buckets;
    for (const std::string& item : split_list(t.value("size_buckets"))) {
      const std::vector<std::string> whf = split_list(item);
      if (whf.size() != 3)
        throw UserError(Exit::usage, "import", "size_buckets: expected [[width, height, frames], ...]");
      buckets += whf[2] + "x" + whf[1] + "x" + whf[0] + kListSeparator;
    }
    t.set("data.buckets", buckets, {"size_buckets"}, "frames x height x width");
    for (const char* option : {"resolutions", "frame_buckets"})
      if (t.has(option)) t.imply(option, "size_buckets lists the shapes");
    return;
  }
  if (!t.has("resolutions")) return t.has("frame_buckets") ? t.refuse("frame_buckets", "without resolutions") : void();
  std::vector<std::string> options = {"resolutions"};
  if (t.has("frame_buckets")) options.push_back("frame_buckets");
  if (t.flag("enable_ar_bucket")) {
    const std::vector<std::string> areas = split_list(t.value("resolutions"));
    const bool ratios = t.has("min_ar") && t.has("max_ar") && t.has("num_ar_buckets") && !t.has("ar_buckets");
    if (ratios && areas.size() == 1 && split_list(areas[0]).size() == 1)
      return ratio_buckets(t, split_list(areas[0])[0], options);
    options.push_back("enable_ar_bucket");
    for (const std::string& option : options)
      t.refuse(option, "one square's side, min_ar, max_ar and num_ar_buckets make shapes; list others in data.buckets");
    return;
  }
  std::string buckets;
  for (const std::string& item : split_list(t.value("resolutions"))) {
    const std::vector<std::string> side = split_list(item);
    if (side.empty() || side.size() > 2)
      throw UserError(Exit::usage, "import", "resolutions: expected [[width, height], ...] or sides of squares");
    const std::string width = side[0], height = side.size() > 1 ? side[1] : side[0];
    for (const std::string& frames : split_list(t.value("frame_buckets", "1")))
      buckets += frames + "x" + height + "x" + width + kListSeparator;
  }
  t.set("data.buckets", buckets, options, "frames x height x width");
}

void pipe_dataset_together(Translator& t) {
  pipe_shapes(t);
  if (t.has("enable_ar_bucket") && !t.is_answered("enable_ar_bucket"))
    t.imply("enable_ar_bucket", "data.buckets lists the shapes; a clip goes to the one that fits best");
  for (const char* name : {"min_ar", "max_ar", "num_ar_buckets", "ar_buckets"})
    if (t.has(name) && !t.is_answered(name)) t.imply(name, "it belongs to enable_ar_bucket");
  t.assume("data.fps", "16", "diffusion-pipe resamples to the model's rate");
}

std::vector<Rule> pipe_dataset_rules() {
  std::vector<Rule> table = {
      joined("resolutions", "`data.buckets`, with frame_buckets: [[1280, 720]], or squares of [512]"),
      joined("frame_buckets", "`data.buckets`"),
      joined("size_buckets", "`data.buckets`"),
      joined("enable_ar_bucket",
             "`data.buckets` = FRAMESxRATIOS_SIDE_MIN_MAX_COUNT, of one side in resolutions; else refused"),
      sets("path", "data.path"),
      sets("num_repeats", "data.repeats"),
      refused("directory", "several data sets are not supported: put all clips into one folder or table"),
      refused("mask_path", "loss masks are not supported"),
      refused("control_path", "control videos are not supported"),
      refused("caption_prefix", "captions are used unchanged"),
      refused("cache_shuffle_num", "captions are used unchanged"),
      refused("subsample_ratio", "all clips are used"),
      implied("cache_shuffle_delimiter", "it belongs to cache_shuffle_num"),
      implied("skip_empty_caption", "tessera prepare reports empty captions"),
  };
  for (const char* name : {"min_ar", "max_ar", "num_ar_buckets", "ar_buckets"})
    table.push_back(joined(name, "as enable_ar_bucket"));
  return table;
}

}  // namespace

const Dialect& diffusion_pipe_dataset() {
  static const Dialect dialect = {"diffusion-pipe's data set", "a diffusion-pipe data set", pipe_dataset_rules(),
                                  pipe_dataset_together};
  return dialect;
}

}  // namespace tessera::tools
