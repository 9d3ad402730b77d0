#include "tessera/tools/verify/case_json.h"

#include "tessera/base/check.h"
#include "tessera/base/foreign_file.h"
#include "tessera/base/json.h"

namespace tessera::tools {

namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kGiveCase = "give the folder of a golden case";

const Json& member(const Json& json, const std::string& key) {
  static const Json nothing;
  const auto found = json.is_object() ? json.find(key) : json.end();
  return found == json.end() ? nothing : *found;
}

}  // namespace

Json read_case_object(const std::filesystem::path& path) {
  constexpr int64_t kMost = int64_t{64} << 20;
  Json json = parse_ordered_json(read_foreign(path, kMost, "verify", kGiveCase), path.string());
  check_input(json.is_object(), "verify", path.string() + ": expected an object", kGiveCase);
  return json;
}

std::string CaseDescription::kind() const {
  const Json& kind = member(json, "kind");
  return kind.is_string() ? kind.get<std::string>() : "";
}

double CaseDescription::number(const Json& fields, const std::string& key, const std::string& name) const {
  const Json& found = member(fields, key);
  check_input(found.is_number(), "verify", file.string() + ": " + name + " is missing or not a number");
  return found.get<double>();
}

double CaseDescription::tolerance(const std::string& key) const {
  return number(member(json, "tolerance"), key, "tolerance." + key);
}

std::function<double(double)> CaseDescription::bound(const std::string& key) const {
  const Json& rule = member(member(json, "tolerance"), key);
  if (!rule.is_object()) return [all = tolerance(key)](double) { return all; };
  const std::string name = "tolerance." + key + ".";
  return [share = number(rule, "rtol_of_max", name + "rtol_of_max"),
          least = number(rule, "atol", name + "atol")](double largest) { return share * largest + least; };
}

}  // namespace tessera::tools
