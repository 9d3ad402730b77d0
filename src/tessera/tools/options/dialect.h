#pragma once
// The options of another program as a table: one line an option says which recipe key it becomes, that nothing needs to
// be said, or why it is refused. A translator applies a table to the options that were given; one that no line of the
// table answers cannot get past it.
//
//   const Dialect dialect = {"DiffSynth", "a DiffSynth command", {
//       sets("--learning_rate", "train.lr"),
//       implied("--dataset_num_workers", "clips are decoded ahead anyway"),
//       refused("--fp8_models", "weights are not kept in fp8")}};
//   Translation t = translate(dialect, {{"--learning_rate", "1e-4"}}, {.ranks = 8});
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/recipe/recipe_table.h"
#include "tessera/tools/options/translation.h"

namespace tessera::tools {

/// An option as it was given, by a command line or in a file.
struct Given {
  std::string name;           ///< "--learning_rate"; "zero_optimization.stage" of a file
  std::string value;          ///< items of a list end in kListSeparator; empty for a switch
  std::string typed = {};     ///< the name as it was written, where the table has it without its prefix
  std::string shown() const;  ///< "--learning_rate 1e-4", "zero_optimization.stage = 3"
};

/// What is known beside the options.
struct ImportContext {
  int ranks = 0;            ///< that will run; 0: what the command line says, else one
  std::string folder = {};  ///< of the configuration: files that it names are looked for there too
  int accumulation = 1;     ///< micro-batches a step, where the launcher says it and the trainer does not
};

/// How many words follow an option of a command line.
enum class Takes {
  value,
  nothing,
  perhaps,  ///< true or false, or nothing
  many,     ///< all up to the next option
};

/// What a line of a table stands for in a file.
enum class Covers {
  value,
  table,  ///< what stands in a table of its name: "data.caption_proportion" answers "data.caption_proportion.prompt"
  both,
};

class Translator;
using Translate = std::function<void(Translator&, const Given&)>;

struct Rule {
  std::string option;
  std::string becomes;  ///< for the table of the docs: keys, or words
  Takes takes = Takes::value;
  Translate translate;
  Covers covers = Covers::value;
};

/// The value as it is.
Rule sets(std::string option, std::string key);
/// A switch, or a flag that is true; false is what holds without it.
Rule switches(std::string option, std::string key, std::string value);
/// implied and refused cover a table of their name too.
Rule implied(std::string option, std::string why, Takes takes = Takes::value);
Rule refused(std::string option, std::string why, Takes takes = Takes::value);
/// Logging or monitoring that is not there: a warning, with a table of its name too.
Rule warned(std::string option, std::string why, Takes takes = Takes::value);
/// One of `accepted` needs no key for the reason `why`, any other value is refused for `why_not`.
Rule only(std::string option, std::vector<std::string> accepted, std::string why, std::string why_not,
          Takes takes = Takes::value);
/// Anything else; `becomes` says it in the docs.
Rule by(std::string option, std::string becomes, Translate translate, Takes takes = Takes::value);
/// Read together with other options by the dialect's `together`, which must answer it.
Rule joined(std::string option, std::string becomes, Takes takes = Takes::value);
/// The rule, of a table of its name.
Rule of_table(Rule rule, Covers covers = Covers::table);

struct Dialect {
  std::string name;  ///< title in the docs
  std::string from;  ///< "a DiffSynth command"
  std::vector<Rule> rules;
  std::function<void(Translator&)> together = {};  ///< what several options say together, and the program's defaults
  bool autos = false;                              ///< "auto" leaves an option to the recipe
};

class Translator {
 public:
  Translator(const Dialect& dialect, std::vector<Given> given, ImportContext context);

  bool has(const std::string& option) const { return find(option) != nullptr; }
  const Given* find(const std::string& option) const;
  std::string value(const std::string& option, const std::string& absent = {}) const;
  /// Throw UserError (usage) naming the option when it is no number.
  int64_t integer(const std::string& option, int64_t absent) const;
  double number(const std::string& option, double absent) const;
  bool flag(const std::string& option) const;  ///< given, and not false
  const std::vector<Given>& given() const { return given_; }
  bool is_answered(const std::string& option) const;

  /// `because`: how the value comes about where it is more than a copy; the options are named by themselves.
  void set(const std::string& key, const std::string& value, const std::vector<std::string>& options,
           const std::string& because = {});
  void imply(const std::string& option, const std::string& why);
  void refuse(const std::string& option, const std::string& why);
  void warn(const std::string& option, const std::string& why);
  /// Of what is no option by itself: a folder, a file.
  void warn_of(const std::string& what, const std::string& why) { result_.warned.push_back({what, why}); }
  /// What the other program does when nothing is said.
  void assume(const std::string& key, const std::string& value, const std::string& why);
  /// A key of a recipe that may not be there in this version: set, or `option` refused.
  bool knows(const std::string& key) const { return recipe::recipe_table().find(key) != nullptr; }

  /// Ranks that will run, when they are known.
  std::optional<int> ranks() const;
  void set_ranks(int ranks, const std::string& option);
  /// The batch is spread over: ranks that are not used up by the axes of one sample.
  std::optional<int64_t> dp_size() const;
  /// train.global_batch of so many samples a data-parallel rank and step.
  void set_batch(int64_t per_rank, const std::vector<std::string>& options, const std::string& how);

  const ImportContext& context() const { return context_; }
  Translation& result() { return result_; }
  Translation finish();

 private:
  const Given& known(const std::string& option) const;
  void answered(const std::string& option) { answered_.push_back(option); }

  const Dialect& dialect_;
  std::vector<Given> given_;
  ImportContext context_;
  Translation result_;
  std::vector<std::string> answered_;
};

/// Throws UserError (usage) naming the nearest option for one that the dialect does not have, and for values that are
/// no numbers where numbers are expected.
Translation translate(const Dialect& dialect, std::vector<Given> given, const ImportContext& context);

std::string number_text(double value);  ///< as few digits as give it back
std::string lower_case(std::string text);
bool is_true(const std::string& text);
bool is_false(const std::string& text);
/// "1280*720" or "1280x720", width first, as the value of data.size; empty when it is neither.
std::string size_value(const std::string& text);

}  // namespace tessera::tools
