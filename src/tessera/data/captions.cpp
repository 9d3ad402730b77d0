#include "tessera/data/captions.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/checkpoint/file.h"
#include "tessera/data/files/archive.h"
#include "tessera/data/text/text.h"

namespace tessera::data {

namespace fs = std::filesystem;
using checkpoint::Json;

namespace {

const std::string kDefault = "prompt";
constexpr double kMostMotion = 1e9;
// Names that other programs give the one caption of a clip.
constexpr const char* kOneCaption[] = {"prompt", "text", "caption", "cap"};

void add(Captions& captions, const std::string& text, double weight) {
  if (!(weight > 0)) return;
  captions.texts.push_back(text);
  captions.weights.push_back(weight);
}

/// A number, also where it is written as a text; not a number for anything else.
double score_of(const Json& score) {
  if (score.is_number()) return score.get<double>();
  const std::string text = score.is_string() ? score.get<std::string>() : "";
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  return text.empty() || *end != 0 ? std::nan("") : number;
}

/// By scores to the power of 1 / temperature, of the highest so that no power overflows.
Captions by_scores(const NamedCaptions& named, const NamedNumbers& scores, const CaptionRules& rules) {
  std::map<std::string, double> weights;
  const std::pair<std::string, double>* best = nullptr;
  for (const auto& score : scores)
    if (named.contains(score.first) && (!best || score.second > best->second)) best = &score;
  if (!best) return {};
  for (const auto& [name, score] : scores)
    if (named.contains(name) && score >= rules.score_min && score > 0)
      weights[name] += std::pow(score / best->second, 1 / std::max(rules.score_temperature, 0.01));
  if (weights.empty()) weights[best->first] = 1;
  Captions captions;
  for (const auto& [name, weight] : weights) add(captions, named.at(name), weight);
  return captions;
}

Captions by_shares(const NamedCaptions& named, const CaptionRules& rules, bool lenient) {
  Captions captions;
  double lacking = 0;
  for (const auto& [name, share] : rules.shares)
    if (named.contains(name))
      add(captions, named.at(name), share);
    else
      lacking += share;
  if ((!lenient || captions.texts.empty()) && named.contains(kDefault)) add(captions, named.at(kDefault), lacking);
  return captions;
}

}  // namespace

Captions choose_captions(const NamedCaptions& named, const NamedNumbers& scores, const CaptionRules& rules,
                         const std::string& where, bool lenient) {
  Captions captions;
  if (!rules.score_files.empty())
    captions = by_scores(named, scores, rules);
  else if (!rules.shares.empty())
    captions = by_shares(named, rules, lenient);
  for (const char* name : kOneCaption)
    if (captions.texts.empty() && named.contains(name)) captions.texts.push_back(named.at(name));
  if (captions.texts.empty()) {
    std::string found;
    for (const auto& [name, text] : named) found += (found.empty() ? "" : ", ") + checkpoint::shown(name);
    throw UserError(Exit::input, "data.dataset",
                    where + ": no caption to draw, expected prompt, text, caption or cap" +
                        (rules.shares.empty() ? "" : " or a name of data.captions") + ", found " +
                        (found.empty() ? "none" : found),
                    "write the caption beside the clip, or name it in data.captions");
  }
  for (const std::string& text : captions.texts)
    if (const size_t bad = invalid_utf8(text); bad != std::string::npos)
      throw UserError(Exit::input, "data.dataset", where + ": a caption is not UTF-8 at byte " + std::to_string(bad),
                      "save it as UTF-8");
  if (captions.texts.size() == 1) captions.weights.clear();
  return captions;
}

std::string column_ending(const NamedNumbers& numbers) {
  std::string text;
  for (const auto& [column, number] : numbers) {
    std::string words = column == "fps" ? "FPS" : column;
    std::ranges::replace(words, '_', ' ');
    text += (text.empty() ? " " : ", ") + std::to_string(std::llround(number)) + " " + words;
  }
  return text.empty() ? text : text + ".";
}

std::string motion_ending(double score) {
  return " motion score: " + std::to_string(static_cast<int64_t>(score)) + ".";
}

CaptionFiles::CaptionFiles(const Path& base, const CaptionRules& rules)
    : largest_motion_(rules.largest_motion), drop_below_(rules.drop_below) {
  const auto open = [&](const std::vector<std::string>& suffixes, std::vector<File>& files) {
    for (const std::string& suffix : suffixes) {
      const Path path = Path(base) += suffix + ".json";
      if (!is_file(path)) {
        missing_.push_back(suffix);
        continue;
      }
      Json json = checkpoint::parse_json(checkpoint::read_text(path), path.string());
      check_input(json.is_object(), "data.captions", path.string() + ": expected an object of clips by name",
                  "for example {\"a\": {\"prompt\": \"a cat\"}}");
      std::string name = suffix;
      std::replace(name.begin(), name.end(), '.', '_');
      files.push_back({suffix, name, std::move(json)});
    }
  };
  open(rules.files, captions_);
  open(rules.score_files, scores_);
  open(rules.motion_files, motion_);
  if (drop_below_ > 0) open({"_prompt_clip_score"}, prompt_scores_);
}

void CaptionFiles::add_captions(const std::string& key, bool renames, NamedCaptions& named) const {
  for (const File& file : captions_) {
    const auto entry = file.json.find(key);
    if (entry == file.json.end() || !entry->is_object() || entry->empty()) continue;
    // {KEY: {MODEL: {"prompt": ...}}} as well: the first model's
    NamedCaptions texts = named_captions(entry->begin()->is_object() ? *entry->begin() : *entry);
    const auto prompt = texts.find(kDefault);
    if (renames && prompt != texts.end())
      named[file.name] = prompt->second;
    else
      for (auto& [name, text] : texts) named[name] = std::move(text);
  }
}

bool CaptionFiles::drops(const std::string& key) const {
  for (const auto& [name, score] : read_scores(prompt_scores_, key))
    if (name == kDefault && score < drop_below_) return true;
  return false;
}

std::string CaptionFiles::motion(const std::string& key) const {
  for (const File& file : motion_) {
    const auto entry = file.json.find(key);
    if (entry == file.json.end() || !entry->is_object() || entry->empty()) continue;
    const Json given = entry->begin()->is_array() ? *entry->begin() : Json::array({*entry->begin()});
    double sum = 0, largest = 0;
    for (const Json& score : given) {
      const double number = score_of(score);
      check_input(std::isfinite(number) && std::abs(number) < kMostMotion, "data.captions",
                  "the motion of " + checkpoint::shown(key) + " in *" + file.suffix + ".json is " +
                      checkpoint::shown(checkpoint::dump_json(score)) + ", expected a number or a list of them",
                  "fix or remove it");
      sum += number, largest = &score == &given.front() ? number : std::max(largest, number);
    }
    check_input(!given.empty(), "data.captions",
                "the motion of " + checkpoint::shown(key) + " in *" + file.suffix + ".json is an empty list",
                "fix or remove it");
    return motion_ending(largest_motion_ ? largest : sum / static_cast<double>(given.size()));
  }
  return "";
}

NamedNumbers CaptionFiles::scores(const std::string& key) const { return read_scores(scores_, key); }

NamedNumbers CaptionFiles::read_scores(const std::vector<File>& files, const std::string& key) {
  NamedNumbers scores;
  for (const File& file : files) {
    const auto entry = file.json.find(key);
    if (entry == file.json.end() || !entry->is_object()) continue;
    for (const auto& [name, score] : entry->items()) {
      const double number = score_of(score);
      check_input(std::isfinite(number), "data.captions",
                  "the score of " + checkpoint::shown(name) + " for " + checkpoint::shown(key) + " in *" + file.suffix +
                      ".json is " + checkpoint::shown(checkpoint::dump_json(score)) + ", expected a number",
                  "fix or remove it");
      scores.emplace_back(name, number);
    }
  }
  return scores;
}

void MissingFiles::count(const CaptionFiles& files) {
  ++looked_;
  for (const std::string& suffix : files.missing()) ++missing_[suffix];
}

void MissingFiles::tell(Problems& problems, const std::string& of) const {
  for (const auto& [suffix, count] : missing_)
    problems.note("NAME" + suffix + ".json: not there for " + std::to_string(count) + " of " + std::to_string(looked_) +
                  " " + of);
  if (dropped_ > 0)
    problems.note(std::to_string(dropped_) + " clips are left out: their prompts' scores are below data.score_drop");
}

namespace {

/// Pieces between delimiters.
std::vector<std::string> split_tags(const std::string& text, const std::string& delimiter) {
  std::vector<std::string> tags;
  for (size_t at = 0;;) {
    const size_t end = text.find(delimiter, at);
    tags.push_back(text.substr(at, end == text.npos ? end : end - at));
    if (end == text.npos) return tags;
    at = end + delimiter.size();
  }
}

std::string with_trigger(std::string text, const std::string& trigger) {
  constexpr std::string_view kPlace = "[trigger]";
  if (trigger.empty()) return text;
  for (size_t at = text.find(kPlace); at != text.npos; at = text.find(kPlace, at + trigger.size()))
    text.replace(at, kPlace.size(), trigger);
  if (text.find(trigger) != text.npos) return text;
  return text.empty() ? trigger : trigger + " " + text;
}

}  // namespace

std::string with_tags_in_order(const std::string& text, const std::string& delimiter, int64_t keep,
                               const std::function<std::vector<size_t>(size_t count)>& order) {
  const std::vector<std::string> tags = split_tags(text, delimiter);
  const size_t kept = std::min(tags.size(), static_cast<size_t>(keep));
  std::vector<std::string> all(tags.begin(), tags.begin() + static_cast<int64_t>(kept));
  for (const size_t tag : order(tags.size() - kept)) all.push_back(tags[kept + tag]);
  std::string result;
  for (size_t i = 0; i < all.size(); ++i) result += (i == 0 ? "" : delimiter) + all[i];
  return result;
}

Captions dressed(Captions captions, const CaptionRules& rules) {
  const auto whole = [&](const std::string& text) { return rules.prefix + with_trigger(text, rules.trigger); };
  if (rules.shuffles == 0) {
    for (std::string& text : captions.texts) text = whole(text);
    return captions;
  }
  Captions all;
  const auto variants = static_cast<size_t>(rules.shuffles);
  for (size_t c = 0; c < captions.texts.size(); ++c)
    for (size_t v = 0; v < variants; ++v) {
      const std::string& text = captions.texts[c];
      const RandomKey key(0, Purpose::order, hash_text(text), v);
      all.texts.push_back(whole(with_tags_in_order(text, rules.delimiter, rules.keep_tokens, [&](size_t count) {
        std::vector<size_t> order(count);
        std::iota(order.begin(), order.end(), 0);
        for (size_t i = count; i > 1; --i) std::swap(order[i - 1], order[key.below(i, i)]);
        return order;
      })));
      if (!captions.weights.empty()) all.weights.push_back(captions.weights[c] / static_cast<double>(variants));
    }
  return all;
}

std::string with_class(std::string caption, const std::string& trigger, const std::string& word) {
  if (trigger.empty()) return caption;
  for (size_t at = caption.find(trigger); at != std::string::npos; at = caption.find(trigger, at + word.size()))
    caption.replace(at, trigger.size(), word);
  return caption;
}

std::string kept_of_dropped(const CaptionRules& rules) { return rules.prefix + rules.trigger; }

NamedCaptions named_captions(const Json& object) {
  NamedCaptions named;
  for (const auto& [name, value] : object.items())
    if (value.is_string())
      named[name] = value.get<std::string>();
    else if (value.is_null())
      named[name] = "";
  return named;
}

}  // namespace tessera::data
