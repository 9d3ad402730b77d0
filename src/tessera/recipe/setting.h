#pragma once
// A key of recipes as a row of a table: how it is written, where its value lands, its range, and when it does nothing.
//
//   const Setting row = {"train.power", Kind::number, "1", "power of polynomial",
//                        into<&Recipe::lr_schedule, &recipe::LrSchedule::power>,
//                        {.range = above(0), .idle = {{is_polynomial, "it belongs to ..."}}, .in_stages = true}};
#include <limits>
#include <string>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/recipe/recipe.h"

namespace tessera::recipe {

/// A value as the user wrote it.
struct Given {
  const std::string& key;
  const std::string& text;
  /// Throws UserError (usage): "KEY = 'TEXT': expected ..."
  [[noreturn]] void fail(const std::string& expected, const std::string& hint = "") const;
};

/// Reads a value into the recipe; null where resolve() does it, because other keys have a say in it.
using Read = void (*)(Recipe&, const Given&);

/// What each number of a value must be.
struct Range {
  double least = -std::numeric_limits<double>::infinity(), most = std::numeric_limits<double>::infinity();
  bool open = false;   ///< without its ends
  bool below = false;  ///< without its upper end
};
constexpr Range at_least(double least) { return {.least = least}; }
constexpr Range above(double least) { return {.least = least, .open = true}; }

/// What is known of a run when keys are judged.
struct Facts {
  const Recipe& recipe;
  const Mesh& mesh;                        ///< of the ranks that run
  bool (*several_experts)(const Recipe&);  ///< several experts of which each step trains one; reads files: called late
  bool (*own_windows)(const Recipe&);      ///< experts have a range of timesteps each
  bool gated() const { return recipe.experts.router == "gate"; }
  bool searches() const { return recipe.plan.file.empty() || recipe.plan.file == "auto"; }
};
/// A condition without which the key does nothing.
struct Needs {
  bool (*met)(const Facts&);
  const char* otherwise;  ///< after "KEY = VALUE has no effect: "
};

inline constexpr Needs kSearched = {[](const Facts& f) { return f.searches(); }, "plan.file decides"};
/// With a gate, other needs decide.
inline constexpr Needs kSeveral = {[](const Facts& f) { return f.gated() || f.several_experts(f.recipe); },
                                   "the run has one denoiser and no other expert"};

inline constexpr Needs kMasked = {[](const Facts& f) { return f.recipe.masked(); },
                                  "no clip has a mask: set data.mask_path, data.mask_suffix or data.alpha_mask"};

struct Setting {
  std::string key;
  Kind kind;
  std::string fallback;  ///< default, as written in a recipe without quotes
  std::string help;      ///< one line, with the unit
  Read read = nullptr;
  struct More {
    std::string choices = {};  ///< "a|b|c" for Kind::choice
    Range range = {};
    std::vector<Needs> needs = {};
    bool in_stages = false;  ///< a [[stage]] may change it; all other keys describe what a run builds once: the model,
                             ///< its encoders, the ranks, the placement and dtypes of tensors
    bool prepared = false;   ///< read and encoded before a part of the run begins, as data.* are
  } more = {};
};

/// Throws UserError (usage) naming key, value and what is allowed.
void check_range(const Setting& setting, const std::string& text);

// Values by the type of their field; words as plans write them. Of optional ones "auto" is none.
void read_value(std::string& to, const Given& given);
void read_value(int64_t& to, const Given& given);
void read_value(double& to, const Given& given);
void read_value(bool& to, const Given& given);
void read_value(std::vector<std::string>& to, const Given& given);
/// FILE:STRENGTH, or FILE alone, by comma.
void read_value(std::vector<LoraStrength>& to, const Given& given);
void read_value(plan::Masters& to, const Given& given);
void read_value(plan::Moments& to, const Given& given);
void read_value(DType& to, const Given& given);
void read_value(std::optional<plan::Tier>& to, const Given& given);
void read_value(std::optional<plan::Update>& to, const Given& given);
void read_value(std::optional<plan::Strategy>& to, const Given& given);
void read_value(std::optional<plan::Policy>& to, const Given& given);
void read_value(std::optional<plan::PipelineSchedule>& to, const Given& given);

/// A text that has no meaning when it is empty.
void read_named(std::string& to, const Given& given);
template <auto... Path>
void named(Recipe& recipe, const Given& given) {
  read_named(field<Path...>(recipe), given);
}

template <auto... Path>
void into(Recipe& recipe, const Given& given) {
  read_value(field<Path...>(recipe), given);
}

/// A path of weights, or a model of the hub, which stands for its place in the cache of this machine where it is there. A
/// folder of a whole model stands for the part that the key wants (checkpoint/model_folder.h has both). The recipe's text
/// stays as it was written.
void read_weights_path(std::string& to, const Given& given);
template <auto... Path>
void weights_path(Recipe& recipe, const Given& given) {
  read_weights_path(field<Path...>(recipe), given);
}

/// A number of up to nine digits, or nullopt for "auto"; `words` stand for numbers. `other_form`: a further form, which
/// the caller reads and an error names.
std::optional<int> automatic(const Given& given, const std::vector<std::pair<std::string, int>>& words = {},
                             const std::string& other_form = {});
/// The same for counts, which are at least 1.
std::optional<int> automatic_count(const Given& given);
/// A number where a word may stand as well; `expected` names both.
double checked_number(const Given& given, const std::string& text, const std::string& expected);

// The only list of a recipe's keys.
//
//   for (const Setting& setting : settings()) ... setting.key, setting.help ...

/// All rows, in the order of help and of resolved recipes.
const std::vector<Setting>& settings();
/// Of the tables of lists, data.set.N.repeats: keys of a set alone, then keys of data.* that a set may have for itself,
/// which are read as these. No value is there unless it was written.
const std::vector<Setting>& set_settings();

// a function for each table
std::vector<Setting> run_settings();
std::vector<Setting> model_settings();
std::vector<Setting> data_settings();
std::vector<Setting> train_settings();
std::vector<Setting> lora_settings();
std::vector<Setting> diffusion_settings();
std::vector<Setting> distill_settings();
std::vector<Setting> experts_settings();
std::vector<Setting> mesh_settings();
std::vector<Setting> plan_settings();
std::vector<Setting> checkpoint_settings();
std::vector<Setting> eval_settings();
std::vector<Setting> sample_settings();
std::vector<Setting> fault_settings();

}  // namespace tessera::recipe
