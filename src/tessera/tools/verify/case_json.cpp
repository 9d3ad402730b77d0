#include "tessera/tools/verify/case_json.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/base/foreign_file.h"
#include "tessera/base/json.h"
#include "tessera/base/text.h"

namespace tessera::tools {

namespace {

/// "runs.plain.lr"
std::string dotted(const std::string& path) {
  std::string name = path.empty() ? path : path.substr(1);
  std::ranges::replace(name, '/', '.');
  return name;
}

}  // namespace

void Settings::fail(const std::string& key, const Json::exception& error) const {
  const std::string words = error.what();
  throw UserError(Exit::input, "verify",
                  printable(dotted(key.empty() ? path_ : path_ + "/" + key)) +
                      " is absent or has another type: " + printable(words.substr(words.find("] ") + 2)),
                  "compare case.json and config.json with those of another case of this kind");
}

std::vector<std::pair<std::string, Settings>> Settings::items() const {
  std::vector<std::pair<std::string, Settings>> all;
  for (const auto& [key, value] : json_->items()) {
    all.emplace_back(key, at(key));
    if (value.is_structured() && value.empty()) all.back().second.read();
  }
  return all;
}

std::vector<Settings> Settings::elements() const {
  std::vector<Settings> all;
  for (size_t i = 0; i < json_->size(); ++i) all.push_back(at(i));
  return all;
}

/// Whether the value itself, or something that it is a part of, was read or asked for.
bool Settings::is_read(const std::string& path, const std::set<std::string>& asked) const {
  if (root_->read.count(path)) return true;
  return std::ranges::any_of(root_->handed_on, [&](const std::string& begin) {
    return path.starts_with(begin + "/") && asked.count(path.substr(begin.size() + 1)) > 0;
  });
}

void Settings::collect(const Json& json, const std::string& path, const std::set<std::string>& asked,
                       std::vector<std::string>& found) const {
  if (is_read(path, asked)) return;
  if (json.is_object() && !json.empty()) {
    for (const auto& [key, value] : json.items()) collect(value, path + "/" + key, asked, found);
    return;
  }
  const auto holds = [](const Json& value) { return value.is_structured(); };
  bool parts = json.is_array() && std::ranges::any_of(json, holds);
  for (size_t i = 0; json.is_array() && i < json.size(); ++i)
    parts = parts || is_read(path + "/" + std::to_string(i), asked);  // read in part: what was not is named
  if (parts) {
    for (size_t i = 0; i < json.size(); ++i) collect(json[i], path + "/" + std::to_string(i), asked, found);
    return;
  }
  found.push_back(dotted(path));
}

std::vector<std::string> Settings::unread(const std::set<std::string>& asked) const {
  std::vector<std::string> found;
  if (path_.empty() && json_->is_null()) return found;  // there is no such file
  collect(*json_, path_, asked, found);
  return found;
}

namespace {

constexpr const char* kGiveCase = "give the folder of a golden case";

/// Words about a case, and lists that its generator wrote for people.
constexpr const char* kWords[] = {"reference",
                                  "notes",
                                  "meaning",
                                  "tensors",
                                  "seed",
                                  "files",
                                  "out_mean_std",
                                  "evidence",
                                  "measured",
                                  "run_facts",
                                  "tokenizer",
                                  "probabilities",
                                  "newer_reference",
                                  "reference_bug_rows",
                                  "params_without_grad"};
Settings member(const Settings& json, const std::string& key) {
  return json.is_object() && json.contains(key) ? json.at(key) : Settings();
}

}  // namespace

bool is_measure(const std::string& key) {
  constexpr const char* kMeasures[] = {"_max_rel", "_max_steps", "_diffusers_max", "_relative_to_move", "_measured"};
  return std::ranges::any_of(kMeasures, [&](const char* part) { return key.find(part) != key.npos; });
}

Json read_case_object(const std::filesystem::path& path) {
  constexpr int64_t kMost = int64_t{64} << 20;
  Json json = parse_ordered_json(read_foreign(path, kMost, "verify", kGiveCase), path.string());
  check_input(json.is_object(), "verify", path.string() + ": expected an object", kGiveCase);
  return json;
}

std::string CaseDescription::kind() const {
  const Settings kind = member(json, "kind");
  return kind.is_string() ? kind.get<std::string>() : "";
}

double CaseDescription::number(const Settings& fields, const std::string& key, const std::string& name) const {
  const Settings found = member(fields, key);
  check_input(found.is_number(), "verify", file.string() + ": " + name + " is missing or not a number");
  return found.get<double>();
}

double CaseDescription::tolerance(const std::string& key) const {
  return number(member(json, "tolerance"), key, "tolerance." + key);
}

std::function<double(double)> CaseDescription::bound(const std::string& key) const {
  const Settings rule = member(member(json, "tolerance"), key);
  if (!rule.is_object()) return [all = tolerance(key)](double) { return all; };
  const std::string name = "tolerance." + key + ".";
  return [share = number(rule, "rtol_of_max", name + "rtol_of_max"),
          least = number(rule, "atol", name + "atol")](double largest) { return share * largest + least; };
}

bool CaseDescription::has_rule(const std::string& key) const {
  return member(member(json, "tolerance"), key).is_object();
}

std::vector<std::string> CaseDescription::unread() const {
  for (const char* word : kWords) json.read(word);
  for (const auto& [key, value] : json.items())  // reads what is empty
    if (is_measure(key)) value.read();
  const Settings tolerances = member(json, "tolerance");
  if (tolerances.is_string()) tolerances.read();  // a rule in words stands in the code of its kind
  if (tolerances.is_object())
    for (const auto& [key, value] : tolerances.items()) {
      // a case may lack the values that a rule is of
      constexpr const char* kRules[] = {"out", "grad", "grad_in", "loss", "mid", "timesteps", "sigmas"};
      const bool known = std::ranges::find(kRules, key) != std::end(kRules) || key == "measured";
      if (value.is_string() || known || is_measure(key)) value.read();
    }
  return json.unread({});
}

}  // namespace tessera::tools
