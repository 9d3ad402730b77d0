#pragma once
// Configuration files of other programs as flat options: JSON, TOML, YAML and Python.
//
//   for (const Given& g : read_config("ds.json")) ...      // {"zero_optimization.stage", "3"}, ...
//
// Tables are joined by dots, tables of a list by their number ("datasets.0.video_directory"), items of a list end in
// kListSeparator; an item that is itself a list becomes its items with commas.
//
// Configurations written in Python (mmengine's, as Open-Sora has them), read without running any of it.
//
//   nlohmann::ordered_json config = read_python_config("configs/stage1.py");   // {"lr": 5e-05, "optim": {...}}
//
// What is read: assignments to a name of None, True, False, numbers, strings, lists, tuples, {...} and dict(a=1), of names
// assigned before, of + - * / // % ** of numbers, + of strings and lists, a list times a number. `_base_` names files
// whose values come first: a dict is laid over theirs, or replaces it where it says _delete_=True; `_base_.lr` is a
// value of theirs. Anything else is an error that names the file and the line.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tessera/tools/import/dialect.h"

namespace tessera::tools {

/// By its ending. Throws UserError: (input) when it cannot be read, (usage) naming the line where it is not what its
/// ending says.
std::vector<Given> read_config(const std::string& path);

std::vector<Given> read_json(const std::string& text, const std::string& file);
std::vector<Given> read_toml(const std::string& text, const std::string& file);
/// By yaml-cpp; keys without a value are left out.
std::vector<Given> read_yaml(const std::string& text, const std::string& file);
/// `file` opens the message of the UserError (input) where there are more than a trainer has.
std::vector<Given> flat_options(const nlohmann::ordered_json& config, const std::string& file);

/// `name` beside the configuration if it is there, else as it is.
std::string file_beside(const ImportContext& context, const std::string& name);

/// Throws UserError: (input) when a file cannot be read, (usage) naming the line that is no such configuration.
nlohmann::ordered_json read_python_config(const std::string& path);

/// One value by itself, as a flag gives it: "8", "None", "[1, 2]". Text that is no such value is a string.
nlohmann::ordered_json python_value(const std::string& text);

}  // namespace tessera::tools
