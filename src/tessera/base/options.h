#pragma once
// The option table: one row for each option. Help, recipe files, flags, checks and the resolved recipe use it.
//
//   const OptionTable& table = recipe_table();
//   Values values = table.defaults();
//   table.set(values, "train.lr", "1e-4", "--train.lr");        // throws UserError (usage), naming the nearest option
//
// A table of a list ([[data.set]]) has its keys by number: data.set.0.repeats. One row describes them, data.set.N.repeats,
// and values hold those that were written.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

enum class Kind {
  text,
  integer,
  number,
  bytes,   ///< "24GiB"
  list,    ///< texts, separated by commas on the command line
  paths,   ///< a path, or a list of them
  choice,  ///< one of `choices`
};

struct Option {
  std::string name;  ///< "train.lr"
  Kind kind = Kind::text;
  std::string fallback;      ///< default value, as in a recipe but without quotes
  std::string help;          ///< one line, with the unit
  std::string choices = {};  ///< "a|b|c" for Kind::choice
};

using Values = std::map<std::string, std::string>;  ///< option name -> value as text

class OptionTable {
 public:
  /// `of_lists`: rows of the tables of lists.
  explicit OptionTable(std::vector<Option> options, std::vector<Option> of_lists = {})
      : options_(std::move(options)), of_lists_(std::move(of_lists)) {}

  const std::vector<Option>& options() const { return options_; }
  const std::vector<Option>& of_lists() const { return of_lists_; }
  const Option* find(std::string_view name) const;
  /// Throws UserError (usage): "`where`: unknown key 'x'; did you mean 'y'?"
  const Option& at(std::string_view name, std::string_view where) const;
  Values defaults() const;
  /// Checks the value by kind and stores it. `where` names file or flag in messages.
  void set(Values& values, std::string_view name, const std::string& value, std::string_view where) const;
  std::string to_toml(const Values& values) const;  ///< every option that has a value

 private:
  std::string lists_of(const std::string& table, const Values& values) const;

  std::vector<Option> options_, of_lists_;
};

/// "data.set.N.repeats" of data.set.3.repeats; names without a number stay.
std::string list_row(std::string_view name);
/// The numbers of the tables of a list that have a value, in their order: list_numbers(values, "data.set").
std::vector<int64_t> list_numbers(const Values& values, const std::string& list);
/// A value as TOML has it: 4, "a text", ["a", "b"].
std::string toml_value(const Option& option, const std::string& value);

/// Terminates every item of a list that was given as a list, because such items may contain commas.
inline constexpr char kListSeparator = '\x1f';
std::vector<std::string> split_list(std::string_view text);  ///< "a, b" -> {"a", "b"}; empty -> {}
int64_t to_integer(const std::string& text);                 ///< of a checked value
double to_number(const std::string& text);

}  // namespace tessera
