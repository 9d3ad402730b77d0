#pragma once
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

namespace tessera::tools {

/// Throws UserError: (input) when a file cannot be read, (usage) naming the line that is no such configuration.
nlohmann::ordered_json read_python_config(const std::string& path);

/// One value by itself, as a flag gives it: "8", "None", "[1, 2]". Text that is no such value is a string.
nlohmann::ordered_json python_value(const std::string& text);

}  // namespace tessera::tools
