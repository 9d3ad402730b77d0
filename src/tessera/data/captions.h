#pragma once
// Several captions of one clip: by name, in files beside it, drawn by shares or by their CLIP scores.
//
//   const CaptionRules rules{.shares = {{"prompt", 5}, {"_long", 95}}, .files = {"_long"}};
//   CaptionFiles files("shards/00000", rules);                       // shards/00000_long.json
//   Captions captions = choose_captions({{"prompt", "a cat"}, {"_long", "..."}}, files.scores("cat"), rules);
//
// A caption file is {KEY: {NAME: TEXT, ...}, ...}, a score file {KEY: {NAME: SCORE, ...}, ...}, where KEY is the
// clip's name without its ending. A file of motion is {KEY: {NAME: NUMBER or [NUMBER, ...], ...}, ...}: the first counts.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/json.h"
#include "tessera/data/files/problems.h"

namespace tessera::data {

using Path = std::filesystem::path;

using NamedCaptions = std::map<std::string, std::string>;
using NamedNumbers = std::vector<std::pair<std::string, double>>;

/// What names are drawn, and from which files. The default caption is `prompt`.
struct CaptionRules {
  NamedNumbers shares = {};             ///< names and how often they are drawn; no effect with score_files
  std::vector<std::string> files = {};  ///< what follows a clip's or archive's name: "_long" is a_long.json of a.png
  std::vector<std::string> score_files = {};
  double score_min = 0;  ///< captions with smaller scores are not drawn, where one has more
  double drop_below =
      0;  ///< clips whose prompt has a smaller score in NAME_prompt_clip_score.json are left out; 0: none
  /// Files of how much clips move, named as `files` are: each caption of such a clip ends in motion_ending(). Of several
  /// numbers for a clip the mean, or the largest.
  std::vector<std::string> motion_files = {};
  bool largest_motion = false;
  /// Columns of a table whose numbers end the captions of a row: column_ending().
  std::vector<std::string> columns = {};
  double fps = 0;                ///< that clips are resampled to, which column fps then says; 0: they are not
  double score_temperature = 1;  ///< a caption is drawn by score^(1 / temperature); least 0.01

  std::vector<std::string> endings = {};  ///< of the files beside clips that hold their captions; empty: the usual ones
  bool lines = false;                     ///< each line of such a file is a caption of its own
  std::string prefix;                     ///< in front of every caption as it is written
  std::string trigger;                    ///< stands for [trigger]; where a caption has none, in front of it
  int64_t shuffles = 0;          ///< a caption becomes so many, its tags in another order each; 0: itself alone
  int64_t keep_tokens = 0;       ///< tags at the front that stay where they are
  std::string delimiter = ", ";  ///< of tags

  bool any() const {
    return !shares.empty() || !files.empty() || !score_files.empty() || drop_below > 0 || !motion_files.empty();
  }
};

/// " motion score: 12.", with which captions of SANA-Video end; the score is cut to a whole number.
std::string motion_ending(double score);

/// " 24 FPS, 5 motion score.", with which captions of Open-Sora 2.0 end: of columns fps and motion_score. Numbers are
/// rounded to whole ones; none: an empty text.
std::string column_ending(const NamedNumbers& numbers);

/// At least one text; `weights` of each, empty where all are drawn alike.
struct Captions {
  std::vector<std::string> texts;
  std::vector<double> weights;
};

/// What is drawn for a clip with these captions. With score files: those of at least score_min by their scores; none of
/// them: the one with the highest score; no scores: `prompt`. Else by shares; the share of a name that the clip lacks
/// goes to `prompt`, or with `lenient` to the others. Throws UserError (input) when nothing is left to draw, showing
/// `where`.
Captions choose_captions(const NamedCaptions& named, const NamedNumbers& scores, const CaptionRules& rules,
                         const std::string& where, bool lenient = false);

/// The caption and score files beside one clip, or beside an archive of many.
class CaptionFiles {
 public:
  /// `base`: path of the clip or archive without its ending. Throws UserError (input) for files that are not JSON.
  CaptionFiles(const Path& base, const CaptionRules& rules);

  /// Adds the captions of `key`. A file's `prompt` is named by what the file's name ends in ("_long", dots as "_")
  /// where `renames`, as in archives; other names stay.
  void add_captions(const std::string& key, bool renames, NamedCaptions& named) const;
  NamedNumbers scores(const std::string& key) const;
  /// motion_ending() of the clip, empty where no file knows it.
  std::string motion(const std::string& key) const;
  /// Whether the clip is left out for the score of its prompt.
  bool drops(const std::string& key) const;
  /// Of rules.files, rules.score_files and rules.motion_files, those that are not there.
  const std::vector<std::string>& missing() const { return missing_; }

 private:
  struct File {
    std::string suffix, name;
    checkpoint::Json json;
  };
  static NamedNumbers read_scores(const std::vector<File>& files, const std::string& key);

  std::vector<File> captions_, scores_, prompt_scores_, motion_;
  bool largest_motion_;
  double drop_below_;
  std::vector<std::string> missing_;
};

/// Which files of the rules were not found and which clips were left out, counted over a data set.
class MissingFiles {
 public:
  void count(const CaptionFiles& files);
  void dropped() { ++dropped_; }
  /// A note for each.
  void tell(Problems& problems, const std::string& of) const;

 private:
  int64_t looked_ = 0, dropped_ = 0;
  std::map<std::string, int64_t> missing_;
};

/// The captions of a clip as they are trained: with the trigger and the prefix, and in place of each as many variants with
/// shuffled tags as the rules say, which the text alone decides. Weights are shared out among variants.
Captions dressed(Captions captions, const CaptionRules& rules);
/// A caption with another word wherever the trigger stands; itself without a trigger.
std::string with_class(std::string caption, const std::string& trigger, const std::string& word);
/// What stays of a caption that is dropped: prefix and trigger; empty without them.
std::string kept_of_dropped(const CaptionRules& rules);
/// The tags of a text, so many in front in their places and the others in the order `order` (tag i of the result was
/// order[i] of them).
std::string with_tags_in_order(const std::string& text, const std::string& delimiter, int64_t keep,
                               const std::function<std::vector<size_t>(size_t count)>& order);

/// Texts of a JSON object by name; null is an empty caption. Others are left out.
NamedCaptions named_captions(const checkpoint::Json& object);

}  // namespace tessera::data
