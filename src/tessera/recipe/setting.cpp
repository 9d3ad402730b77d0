#include "tessera/recipe/setting.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "tessera/base/check.h"
#include "tessera/checkpoint/model_folder.h"
#include "tessera/plan/toml_value.h"

namespace tessera::recipe {

namespace {

std::string expected(const Range& range) {
  const auto text = [](double x) { return std::to_string(std::lround(x)); };
  if (std::isfinite(range.most) && range.open) return "above " + text(range.least) + ", below " + text(range.most);
  if (std::isfinite(range.most))
    return "from " + text(range.least) + (range.below ? " to below " : " to ") + text(range.most);
  return (range.open ? "above " : "at least ") + text(range.least);
}

bool within(const Range& range, double value) {
  const bool at_end = (range.open && value == range.least) || ((range.open || range.below) && value == range.most);
  return value >= range.least && value <= range.most && !at_end;
}

template <class T>
void read_enum(T& to, const Given& given) {
  plan::read_enum(to, given.text, "recipe: " + given.key);
}
template <class T>
void read_enum(std::optional<T>& to, const Given& given) {
  to.reset();
  if (given.text != "auto") read_enum(to.emplace(), given);
}

}  // namespace

void Given::fail(const std::string& expected, const std::string& hint) const {
  throw UserError(Exit::usage, "recipe", key + " = '" + text + "': expected " + expected, hint);
}

void check_range(const Setting& setting, const std::string& text) {
  Range range = setting.more.range;
  const bool ranged = std::isfinite(range.least) || std::isfinite(range.most);
  if (setting.kind == Kind::number && !ranged && !text.empty() && !std::isfinite(to_number(text)))
    throw UserError(Exit::usage, "recipe", setting.key + " = " + text + ": expected a finite number",
                    "see tessera train --help");
  if (!ranged) return;
  // Counts are multiplied with one another: what nobody means must not wrap around.
  constexpr double kMostCount = int64_t{1} << 40;
  if (setting.kind == Kind::integer) range.most = std::min(range.most, kMostCount);
  for (const std::string& item : split_list(text)) {
    char* end = nullptr;
    const double value = std::strtod(item.c_str(), &end);
    const bool number = *end == 0 || text == setting.fallback;  // "auto" may stand in a number's place
    if (number && within(range, value) && std::isfinite(value)) continue;
    throw UserError(Exit::usage, "recipe", setting.key + " = " + item + ": expected " + expected(range),
                    setting.kind == Kind::integer ? "" : "see tessera train --help");
  }
}

void read_value(std::string& to, const Given& given) { to = given.text; }
void read_named(std::string& to, const Given& given) {
  if (given.text.empty())
    throw UserError(Exit::usage, "recipe", given.key + " is empty", "leave it out, or see tessera train --help");
  to = given.text;
}
void read_weights_path(std::string& to, const Given& given) {
  constexpr std::pair<std::string_view, const char*> kRoles[] = {{"data.vae", "vae"},
                                                                 {"data.text_encoder_path", "text_encoder"},
                                                                 {"data.tokenizer", "tokenizer"},
                                                                 {"data.image_encoder_path", "image_encoder"},
                                                                 {"data.pooled_encoder_path", "pooled_encoder"},
                                                                 {"data.glyph_encoder_path", "pooled_encoder"},
                                                                 {"data.pooled_tokenizer", "pooled_tokenizer"},
                                                                 {"data.audio_encoder", "audio_encoder"}};
  to = checkpoint::found_at(given.text);
  const auto row = std::ranges::find(kRoles, given.key, &std::pair<std::string_view, const char*>::first);
  std::error_code unseen;
  if (row == std::end(kRoles) || to.empty() || !std::filesystem::is_directory(to, unseen)) return;
  try {
    to = checkpoint::find_part(to, row->second).weights.string();
  } catch (const UserError&) {  // told by who opens it: a plan needs no weights
  }
}
void read_value(int64_t& to, const Given& given) { to = to_integer(given.text); }
void read_value(double& to, const Given& given) { to = to_number(given.text); }
void read_value(bool& to, const Given& given) { to = given.text == "true"; }
void read_value(std::vector<std::string>& to, const Given& given) { to = split_list(given.text); }
void read_value(std::vector<LoraStrength>& to, const Given& given) {
  to.clear();
  for (const std::string& item : split_list(given.text)) {
    LoraStrength& lora = to.emplace_back(item);
    const size_t colon = item.rfind(':');
    if (colon == item.npos || item.find('/', colon) != item.npos) continue;
    lora.file = item.substr(0, colon);
    const char* end = item.data() + item.size();
    const auto [read, error] = std::from_chars(item.data() + colon + 1, end, lora.strength);
    if (error != std::errc() || read != end || !std::isfinite(lora.strength))
      given.fail("files with a strength each, FILE:0.8, and '" + item.substr(colon + 1) + "' is no strength",
                 "leave the colon out for strength 1");
  }
}
void read_value(plan::Masters& to, const Given& given) { read_enum(to, given); }
void read_value(plan::Moments& to, const Given& given) { read_enum(to, given); }
void read_value(DType& to, const Given& given) { read_enum(to, given); }
void read_value(std::optional<plan::Tier>& to, const Given& given) { read_enum(to, given); }
void read_value(std::optional<plan::Update>& to, const Given& given) { read_enum(to, given); }
void read_value(std::optional<plan::Strategy>& to, const Given& given) { read_enum(to, given); }
void read_value(std::optional<plan::PipelineSchedule>& to, const Given& given) { read_enum(to, given); }
void read_value(std::optional<plan::Policy>& to, const Given& given) {
  if (given.text == plan::kRecomputeOffload.name)
    to = plan::kRecomputeOffload.policy;
  else
    read_enum(to, given);
}

std::optional<int> automatic(const Given& given, const std::vector<std::pair<std::string, int>>& words,
                             const std::string& other_form) {
  const std::string& value = given.text;
  if (value == "auto") return std::nullopt;
  std::string known = "auto";
  for (const auto& [word, meaning] : words) {
    if (value == word) return meaning;
    known += ", " + word;
  }
  constexpr size_t kDigits = 9;  // of an int
  if (value.empty() || value.find_first_not_of("0123456789") != std::string::npos || value.size() > kDigits)
    given.fail(known + (other_form.empty() ? " or a number" : ", a number or " + other_form));
  return static_cast<int>(to_integer(value));
}

std::optional<int> automatic_count(const Given& given) {
  const std::optional<int> value = automatic(given);
  if (value && *value < 1)
    throw UserError(Exit::usage, "recipe", given.key + " = 0: expected auto or a number from 1 on");
  return value;
}

double checked_number(const Given& given, const std::string& text, const std::string& expected) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && std::isfinite(value)) return value;
  throw UserError(Exit::usage, "recipe", given.key + " = '" + text + "': expected " + expected);
}

const std::vector<Setting>& settings() {
  static const std::vector<Setting> all = [] {
    std::vector<Setting> rows;
    for (auto* table : {run_settings, model_settings, data_settings, train_settings, lora_settings, diffusion_settings,
                        distill_settings, experts_settings, mesh_settings, plan_settings, checkpoint_settings,
                        eval_settings, sample_settings, fault_settings})
      for (Setting& row : table()) rows.push_back(std::move(row));
    return rows;
  }();
  return all;
}

}  // namespace tessera::recipe
