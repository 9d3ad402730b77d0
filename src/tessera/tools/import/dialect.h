#pragma once
// The result of importing another trainer's options: recipe keys that they set, options that need none, and refused
// ones.
//
//   Translation t = import_file("ds_config.json", {});
//   std::cout << t.to_toml();              // lr = 1e-4    # optimizer.params.lr = 1e-4
//   load_recipe("", t.overrides());
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/recipe/recipe.h"
#include "tessera/recipe/recipe_table.h"
#include "tessera/recipe/run_recipe.h"

namespace tessera::tools {

struct Translation {
  struct Setting {
    std::string key, value;  ///< of a recipe
    std::string because;     ///< the options it comes from, and how where that is more than a copy
    bool assumed = false;    ///< no option said it: it is what the other program does of itself
  };
  struct Remark {
    std::string option;  ///< as it was given
    std::string why;
  };

  std::string from;               ///< "a DeepSpeed configuration"
  std::vector<Setting> settings;  ///< each key once; what is said replaces what is assumed
  std::vector<Remark> implied;    ///< holds without a key
  /// What has no effect though training goes on: logging and monitoring that is not there, files that are missing.
  std::vector<Remark> warned;
  std::vector<Remark> refused;  ///< cannot be had, with the reason
  /// What the configuration's writer has to mend: an option that its program does not have, two that say different things.
  std::vector<Remark> mistakes;
  int ranks = 0;         ///< that the command starts; 0: not said
  int accumulation = 1;  ///< that the launcher's configuration says, for the trainer's batch
  std::string file;      ///< of a sampled clip (generate.py); empty: not said
  std::string prompt;    ///< of it

  /// A key that is set twice with two values keeps the first, and is a mistake that names both options.
  void set(const std::string& key, const std::string& value, const std::string& because, bool assumed = false);
  const Setting* find(const std::string& key) const;
  /// Adds what another file of the same command says.
  void merge(const Translation& other);
  recipe::Overrides overrides() const;
  /// The recipe, each key with the options it comes from, and a comment for every other option.
  std::string to_toml() const;
  /// A line an option, for the log; without `warned` and `mistakes`.
  std::vector<std::string> lines() const;
  /// Throws UserError (usage) that names every mistake and everything refused; `act` is the command that cannot go on.
  void refuse_to(const std::string& act) const;
};

/// The data sets of one configuration, each as it was translated by itself, as [[data.set]]: what they all say alike stays
/// in [data], and what a run has once is that of the first. What a set alone may have is said by keys of data.set.0. One
/// set without such keys stays as it is.
Translation of_data_sets(const std::vector<Translation>& sets);

// The options of another program, which stand in a .toml beside this file: a row of it says which recipe key an option
// becomes, that nothing needs to be said, or why it is refused. A translator applies the rows to the options that were
// given; one that no row answers cannot get past it.
//
//   [command]                                                                      # diffsynth.toml
//   title = "DiffSynth-Studio's commands"
//   from = "a DiffSynth command"
//   options = [
//     { name = "--learning_rate", sets = "train.lr" },
//     { name = "--dataset_num_workers", implied = "clips are decoded ahead anyway" },
//     { name = "--fp8_models", refused = "set lora.base_dtype = fp8" },
//   ]
//   defaults = [{ key = "train.clip_norm", value = "0", why = "DiffSynth does not clip" }]
//
//   static const Dialect dialect = read_dialect("diffsynth", "command", together, {{"strategy", strategy}});
//   Translation t = translate(dialect, {{"--learning_rate", "1e-4"}}, {.ranks = 8});

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

struct Dialect {
  std::string name;  ///< title in the docs
  std::string from;  ///< "a DiffSynth command"
  std::vector<Rule> rules;
  std::function<void(Translator&)> together = {};  ///< what several options say together, and the program's defaults
  bool autos = false;                              ///< "auto" leaves an option to the recipe
  struct Default {
    std::string key, value, why;
  };
  std::vector<Default> defaults = {};  ///< what the program does when nothing is said, whatever else is
};

/// What rows name by `by`: functions that compute. `key` is the row's, or empty.
using Functions = std::map<std::string, std::function<void(Translator&, const Given&, const std::string& key)>>;

/// Table TABLE of PROGRAM.toml. A row has a `name`, or several, and one of
///   sets = KEY                the value as it is
///   switch = "KEY = VALUE"    where it is on; false is what holds without it
///   values = { ITS = "KEY = VALUE" or "refused: WHY" }, otherwise = "refused: WHY"
///   implied, refused, warned = WHY    nothing to set; refused or warned of where it is on
///   only = [VALUES], why = WHY, otherwise = WHY    implied for these values, else refused; one WHY serves for both
///   by = FUNCTION             with its `key`, where it has one
///   joined = WORDS            read together with others by `together`, which has to answer it
/// and, where it needs them: `becomes` (words of `import --table` in the place of the usual ones), `because` (how the
/// value comes about), `none` (why nothing is set for an empty value, null and none), `with` ("OPTION", "OPTION = VALUE")
/// and `without` (why nothing is said where that does not hold), `takes` (value, nothing, perhaps, many), `covers` (value,
/// table, both: `implied`, `refused` and `warned` cover both).
Dialect read_dialect(const std::string& program, const std::string& table,
                     std::function<void(Translator&)> together = {}, const Functions& functions = {});

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
  /// An option that the program does not have, with the nearest that it has.
  void unknown(const Given& given);
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

/// An option that the dialect does not have is a mistake that names the nearest. Throws UserError (usage) for values that
/// are no numbers where numbers are expected.
Translation translate(const Dialect& dialect, std::vector<Given> given, const ImportContext& context);

std::string number_text(double value);  ///< as few digits as give it back
std::string lower_case(std::string text);
bool is_true(const std::string& text);
bool is_false(const std::string& text);
/// "1280*720" or "1280x720", width first, as the value of data.size; empty when it is neither.
std::string size_value(const std::string& text);

}  // namespace tessera::tools
