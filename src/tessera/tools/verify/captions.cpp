// Kind "captions": what other trainers make of a caption by draws that are recorded, and what each reads from files of
// captions. A mesh means nothing to it.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <random>
#include <regex>

#include "tessera/base/check.h"
#include "tessera/base/json.h"
#include "tessera/checkpoint/file.h"
#include "tessera/data/captions.h"
#include "tessera/data/text/text.h"
#include "tessera/tools/verify/case.h"

namespace tessera::tools {

namespace {

using Texts = std::vector<std::string>;

[[noreturn]] void unknown(const std::string& what) {
  throw UserError(Exit::input, "verify", what + " is not known to this build");
}

/// The draws of an item, in order.
class CaptionDraws {
 public:
  explicit CaptionDraws(const Settings& item)
      : uniforms_(item.at("uniforms").get<std::vector<double>>()),
        permutations_(item.at("permutations").get<std::vector<std::vector<size_t>>>()) {}

  double uniform() {
    check_input(uniform_ < uniforms_.size(), "verify", "the case has fewer uniform draws than its settings ask for");
    return uniforms_[uniform_++];
  }
  std::vector<size_t> order(size_t count) {
    check_input(permutation_ < permutations_.size() && permutations_[permutation_].size() == count, "verify",
                "the case has other permutations than its settings ask for");
    for (const size_t at : permutations_[permutation_])
      check_input(at < count, "verify", "a permutation of the case has a place that is not there");
    return permutations_[permutation_++];
  }
  Texts shuffled(const Texts& texts) {
    Texts all;
    for (const size_t at : order(texts.size())) all.push_back(texts[at]);
    return all;
  }
  const std::string& choice(const Texts& texts) {
    return texts.at(static_cast<size_t>(uniform() * static_cast<double>(texts.size())));
  }
  bool used() const { return uniform_ == uniforms_.size() && permutation_ == permutations_.size(); }

 private:
  const std::vector<double> uniforms_;
  const std::vector<std::vector<size_t>> permutations_;
  size_t uniform_ = 0, permutation_ = 0;
};

// ---- Python's texts ---------------------------------------------------------------------------------------------------

/// What str.strip takes away.
constexpr const char* kSpaces[] = {
    "\t",           "\n",           "\v",           "\f",           "\r",           " ",
    "\x1c",         "\x1d",         "\x1e",         "\x1f",         "\xc2\x85",     "\xc2\xa0",
    "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81", "\xe2\x80\x82", "\xe2\x80\x83", "\xe2\x80\x84",
    "\xe2\x80\x85", "\xe2\x80\x86", "\xe2\x80\x87", "\xe2\x80\x88", "\xe2\x80\x89", "\xe2\x80\x8a",
    "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80"};

std::string stripped(std::string text) {
  const auto cut = [&](auto is_there, auto erase) {
    for (bool found = true; found;) {
      found = false;
      for (const std::string space : kSpaces)
        if (is_there(space)) erase(space.size()), found = true;
    }
  };
  cut([&](const std::string& s) { return text.starts_with(s); }, [&](size_t n) { text.erase(0, n); });
  cut([&](const std::string& s) { return text.ends_with(s); }, [&](size_t n) { text.resize(text.size() - n); });
  return text;
}

Texts split(const std::string& text, const std::string& at) {
  check_input(!at.empty(), "verify", "a separator is empty");
  Texts parts;
  size_t begin = 0;
  for (size_t end; (end = text.find(at, begin)) != std::string::npos; begin = end + at.size())
    parts.push_back(text.substr(begin, end - begin));
  parts.push_back(text.substr(begin));
  return parts;
}
/// `empty`: whether parts of nothing stay.
Texts stripped_parts(const std::string& text, const std::string& at, bool empty) {
  Texts parts;
  for (const std::string& part : split(text, at))
    if (std::string bare = stripped(part); empty || !bare.empty()) parts.push_back(std::move(bare));
  return parts;
}
std::string joined(const Texts& parts, const std::string& with) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) text += (i > 0 ? with : "") + parts[i];
  return text;
}
std::string replaced(const std::string& text, const std::string& what, const std::string& by) {
  return what.empty() ? text : joined(split(text, what), by);
}
/// The first `count` go from `from` to what is returned.
Texts taken(Texts& from, int64_t count) {
  const auto end = from.begin() + std::clamp<int64_t>(count, 0, std::ssize(from));
  Texts first(from.begin(), end);
  from.erase(from.begin(), end);
  return first;
}
Texts operator+(Texts a, const Texts& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::regex regex_of(const std::string& text) {
  check_input(text.size() <= 256, "verify", "a regular expression of more than 256 characters");
  return std::regex(text);
}

// ---- ai-toolkit -------------------------------------------------------------------------------------------------------

std::string with_trigger(std::string text, const std::string& trigger, bool in_front) {
  for (const char* place : {"[name]", "[trigger]"}) text = replaced(text, place, trigger);
  return in_front && !trigger.empty() && text.find(trigger) == text.npos ? trigger + " " + text : text;
}

Json ai_caption(const Settings& s, const std::string& text, CaptionDraws& draws) {
  const bool drops = !s.at("cache_text_embeddings").get<bool>(), shuffles = s.at("shuffle_tokens");
  const double dropout = s.at("caption_dropout_rate"), rate = s.at("token_dropout_rate");
  const int64_t kept = s.at("keep_tokens"), most = s.at("random_triggers_max");
  const auto triggers = s.value("random_triggers", Texts());
  const std::string trigger = s.value("trigger_word", std::string());
  const bool regular = s.at("is_reg");
  s.read("diff_output_preservation_class");
  if (dropout > 0 && drops && draws.uniform() < dropout) return "";
  Texts rest = split(text, ",");
  if (rate > 0 && drops) {
    const Texts first = taken(rest, kept);
    if (rate >= 1)
      rest.clear();
    else
      std::erase_if(rest, [&](const std::string&) { return draws.uniform() <= rate; });
    rest = first + rest;
  }
  if (shuffles) rest = draws.shuffled(rest);
  std::string caption = with_trigger(joined(rest, ", "), trigger, !regular);
  if (!triggers.empty()) {
    const auto count = static_cast<int64_t>(draws.uniform() * static_cast<double>(most + 1));
    if (count > 0) {
      Texts drawn = draws.shuffled(triggers);
      caption += ", " + joined(taken(drawn, count), ", ");
    }
  }
  return shuffles ? joined(draws.shuffled(split(caption, ",")), ", ") : caption;
}

// ---- sd-scripts -------------------------------------------------------------------------------------------------------

/// {a|b} is one of them; {{ and }} are braces.
std::string with_wildcards(std::string text, CaptionDraws& draws) {
  const std::string open = "\x01", close = "\x02";
  text = replaced(replaced(text, "{{", open), "}}", close);
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text[at] == '{' ? text.find('}', at) : text.npos;
    if (end == text.npos || end == at + 1) {
      result += text[at++];
    } else {
      result += draws.choice(split(text.substr(at + 1, end - at - 1), "|"));
      at = end + 1;
    }
  }
  return replaced(replaced(result, open, "{"), close, "}");
}

Json kohya_caption(const Settings& s, std::string text, CaptionDraws& draws) {
  const std::string prefix = s.value("caption_prefix", std::string()),
                    suffix = s.value("caption_suffix", std::string()), between = s.at("caption_separator"),
                    keeper = s.at("keep_tokens_separator"), second = s.value("secondary_separator", std::string());
  const double dropout = s.at("caption_dropout_rate"), tag_dropout = s.at("caption_tag_dropout_rate");
  const int64_t epochs = s.at("caption_dropout_every_n_epochs"), epoch = s.at("current_epoch"),
                step = s.at("current_step"), least = s.at("token_warmup_min"), kept = s.at("keep_tokens"),
                steps = s.at("max_train_steps");
  const bool shuffles = s.at("shuffle_caption"), wildcard = s.at("enable_wildcard");
  double warm_up = s.at("token_warmup_step");
  if (!prefix.empty()) text = prefix + " " + text;
  if (!suffix.empty()) text += " " + suffix;
  if (dropout > 0 && draws.uniform() < dropout) return "";
  if (epochs > 0 && epoch % epochs == 0) return "";
  if (wildcard)
    text = with_wildcards(text.find('\n') == text.npos ? text : draws.choice(split(text, "\n")), draws);
  else
    text = split(text, "\n").front();
  if (shuffles || warm_up > 0 || tag_dropout > 0) {
    Texts fixed, tail, free;
    if (!keeper.empty() && text.find(keeper) != text.npos) {
      Texts parts = split(text, keeper);
      fixed = stripped_parts(parts[0], between, /*empty=*/false);
      free = stripped_parts(parts[1], between, /*empty=*/false);
      if (parts.size() > 2)
        tail = stripped_parts(joined(Texts(parts.begin() + 2, parts.end()), keeper), between, /*empty=*/false);
    } else {
      free = stripped_parts(stripped(text), between, /*empty=*/true);
      fixed = taken(free, kept);
    }
    if (warm_up < 1) warm_up = std::floor(warm_up * static_cast<double>(steps));
    if (warm_up > 0 && static_cast<double>(step) < warm_up) {
      const double each = static_cast<double>(std::ssize(free) - least) / warm_up;
      free = taken(free, static_cast<int64_t>(std::floor(static_cast<double>(step) * each)) + least);
    }
    if (shuffles) free = draws.shuffled(free);
    if (tag_dropout > 0) std::erase_if(free, [&](const std::string&) { return draws.uniform() < tag_dropout; });
    text = joined(fixed + free + tail, ", ");
  }
  return replaced(text, second, between);
}

// ---- diffusion-pipe and OneTrainer ------------------------------------------------------------------------------------

Json pipe_captions(const Settings& s, const Settings& caption, CaptionDraws& draws) {
  const bool one = s.at("shuffle_tags");
  const int64_t count = s.at("cache_shuffle_num"), variants = one ? 1 : count;
  const std::string prefix = s.at("caption_prefix"), delimiter = s.at("cache_shuffle_delimiter");
  Json all = Json::array();
  for (const std::string& text : caption.get<Texts>()) {
    if (variants == 0) all.push_back(prefix + text);
    for (int64_t v = 0; v < variants; ++v)
      all.push_back(prefix +
                    data::with_tags_in_order(text, delimiter, 0, [&](size_t tags) { return draws.order(tags); }));
  }
  return all;
}

Json trainer_shuffle(const Settings& s, const std::string& text, CaptionDraws& draws) {
  const std::string delimiter = s.at("delimiter"), between = delimiter + " ";
  const int64_t kept = s.at("keep_tags_count");
  if (!s.at("enabled").get<bool>()) return text;
  const Texts tags = stripped_parts(text, delimiter, /*empty=*/false);
  if (tags.empty()) {
    draws.order(0);
    return "";
  }
  return data::with_tags_in_order(joined(tags, between), between, kept,
                                  [&](size_t count) { return draws.order(count); });
}

Json trainer_drop(const Settings& s, const std::string& text, CaptionDraws& draws) {
  const std::string delimiter = s.at("delimiter"), mode = s.at("dropout_mode"), special = s.at("special_tag_mode"),
                    list = s.at("special_tags");
  const double share = s.at("probability");
  const bool by_regex = s.at("regex_enabled");
  const int64_t kept = s.at("keep_tags_count");
  if (mode != "FULL" && mode != "RANDOM" && mode != "RANDOM WEIGHTED") unknown("dropout_mode '" + mode + "'");
  if (special != "NONE" && special != "WHITELIST" && special != "BLACKLIST")
    unknown("special_tag_mode '" + special + "'");
  if (!s.at("enabled").get<bool>()) return text;
  const Texts named = list.empty() ? Texts() : stripped_parts(list, delimiter, /*empty=*/true);
  // Of a white list those stay that are on it, of a black list those that are not.
  const auto stays = [&](const std::string& tag) {
    if (special == "NONE") return false;
    const bool on_it = std::ranges::any_of(
        named, [&](const std::string& name) { return by_regex ? std::regex_match(tag, regex_of(name)) : tag == name; });
    return on_it == (special == "WHITELIST");
  };
  Texts rest = stripped_parts(text, delimiter, /*empty=*/false);
  const Texts first = taken(rest, kept);
  if (mode == "FULL") {
    if (draws.uniform() < share) std::erase_if(rest, [&](const std::string& tag) { return !stays(tag); });
  } else {
    double place = 0;
    const auto count = static_cast<double>(rest.size());
    std::erase_if(rest, [&](const std::string& tag) {
      const double u = draws.uniform();
      const double own = mode == "RANDOM" ? share : share * ++place / count;
      return u <= own && !stays(tag);
    });
  }
  return joined(first + rest, delimiter + " ");
}

// ---- SimpleTuner ------------------------------------------------------------------------------------------------------

/// The last 32 bits of the MD5 of a text.
uint32_t md5_end(const std::string& text) {
  std::string bytes = text + '\x80';
  while (bytes.size() % 64 != 56) bytes += '\0';
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>((uint64_t{text.size()} * 8) >> (8 * i) & 255);
  constexpr int kTurns[4][4] = {{7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}};
  std::array<uint32_t, 4> sum = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476};
  for (size_t block = 0; block < bytes.size(); block += 64) {
    auto [a, b, c, d] = sum;
    for (uint32_t i = 0; i < 64; ++i) {
      const uint32_t f = i < 16 ? (b & c) | (~b & d) : i < 32 ? (d & b) | (~d & c) : i < 48 ? b ^ c ^ d : c ^ (b | ~d);
      const uint32_t at = i < 16 ? i : i < 32 ? (5 * i + 1) % 16 : i < 48 ? (3 * i + 5) % 16 : 7 * i % 16;
      uint32_t word = 0;
      for (uint32_t k = 0; k < 4; ++k) word |= uint32_t{static_cast<uint8_t>(bytes[block + 4 * at + k])} << (8 * k);
      const auto sine = static_cast<uint32_t>(std::floor(std::abs(std::sin(i + 1.0)) * 4294967296.0));
      const uint32_t turned = std::rotl(a + f + sine + word, kTurns[i / 16][i % 4]);
      a = d, d = c, c = b, b += turned;
    }
    sum[0] += a, sum[1] += b, sum[2] += c, sum[3] += d;
  }
  return __builtin_bswap32(sum[3]);
}

/// What a std::mt19937 takes its state from.
struct TwisterWords {
  const std::vector<uint32_t>& words;
  using result_type = uint32_t;
  template <class To>
  void generate(To begin, To) const {
    std::copy(words.begin(), words.end(), begin);
  }
};

/// random.Random(seed).shuffle of Python: a Mersenne Twister that is begun by the words of the seed.
class PythonRandom {
 public:
  explicit PythonRandom(uint64_t seed) {
    constexpr size_t kWords = std::mt19937::state_size;
    std::vector<uint32_t> key = {static_cast<uint32_t>(seed)}, state(kWords);
    if (seed >> 32) key.push_back(static_cast<uint32_t>(seed >> 32));
    state[0] = 19650218;
    const auto mixed = [&](size_t i) { return state[i - 1] ^ (state[i - 1] >> 30); };
    for (size_t i = 1; i < kWords; ++i) state[i] = 1812433253U * mixed(i) + static_cast<uint32_t>(i);
    size_t i = 1, j = 0;
    const auto go_on = [&] {
      if (++i >= kWords) state[0] = state[kWords - 1], i = 1;
    };
    for (size_t k = std::max(kWords, key.size()); k > 0; --k) {
      state[i] = (state[i] ^ (mixed(i) * 1664525U)) + key[j] + static_cast<uint32_t>(j);
      go_on();
      j = (j + 1) % key.size();
    }
    for (size_t k = kWords - 1; k > 0; --k) {
      state[i] = (state[i] ^ (mixed(i) * 1566083941U)) - static_cast<uint32_t>(i);
      go_on();
    }
    state[0] = 0x80000000U;
    TwisterWords words{state};
    random_.seed(words);
  }
  void shuffle(Texts& texts) {
    for (size_t i = texts.size() - 1; i > 0; --i) std::swap(texts[i], texts[below(static_cast<uint32_t>(i) + 1)]);
  }

 private:
  uint32_t below(uint32_t count) {
    const int bits = std::bit_width(count);
    for (;;)
      if (const auto drawn = static_cast<uint32_t>(random_()) >> (32 - bits); drawn < count) return drawn;
  }
  std::mt19937 random_;
};

Json tuner_shuffles(const Settings& s, const std::string& text) {
  const int64_t count = s.at("count"), start = s.at("position_start"), seed = s.value("seed", int64_t{0});
  const std::string at = s.at("split_on");
  const bool original = s.at("include_original");
  if (at != "comma" && at != "space" && at != "period") unknown("split_on '" + at + "'");
  if (!s.at("enable").get<bool>()) return Json::array({text});
  const std::string mark = at == "comma" ? "," : at == "period" ? "." : " ";
  Texts rest = stripped_parts(text, mark, /*empty=*/false);
  const Texts first = taken(rest, start);
  if (rest.size() < 2) return Json::array({text});
  Json all = Json::array();
  if (original) all.push_back(text);
  for (int64_t v = 0; v < count; ++v) {
    Texts own = rest;
    PythonRandom(static_cast<uint64_t>(seed + md5_end(text) + v)).shuffle(own);
    const Json variant = joined(first + own, mark == " " ? mark : mark + " ");
    if (std::ranges::find(all, variant) == all.end()) all.push_back(variant);
  }
  return all;
}

Json tuner_filter(const Settings& s, std::string text) {
  for (const std::string& filter : s.at("caption_filter_list").get<Texts>()) {
    const Texts parts = split(filter, "/");
    if (parts.size() == 3 && parts[0] == "s")
      text = std::regex_replace(text, regex_of(parts[1]), parts[2]);
    else
      text = replaced(text, filter, "");
    try {
      text = std::regex_replace(text, regex_of(filter), "");
    } catch (const std::regex_error&) {  // an invalid one is skipped
    }
  }
  return text;
}

// ---- what an item comes to --------------------------------------------------------------------------------------------

Json found_of(const Settings& item, const Settings& s) {
  const std::string project = item.at("project"), function = item.at("function"), what = project + " " + function;
  CaptionDraws draws(item);
  const auto words = [&] { return item.at("caption").get<std::string>(); };
  const auto trigger = [&] { return s.value("trigger_word", std::string()); };
  Json found;
  if (what == "ai-toolkit get_caption") {
    found = ai_caption(s, words(), draws);
  } else if (what == "ai-toolkit get_dropout_caption" || what == "ai-toolkit get_dop_dropout_caption") {
    // What the trainer puts in the place of a caption that is dropped.
    const std::string kept =
        function == "get_dropout_caption" ? trigger() : s.at("diff_output_preservation_class").get<std::string>();
    found = s.at("is_reg").get<bool>() ? "" : kept + " ";
    words(), s.json();
  } else if (what == "ai-toolkit dop_prompt") {
    found = replaced(with_trigger(words(), trigger(), /*in_front=*/true), trigger(),
                     s.at("diff_output_preservation_class"));
  } else if (what == "sd-scripts process_caption") {
    found = kohya_caption(s, words(), draws);
  } else if (what == "diffusion-pipe shuffle_captions") {
    found = pipe_captions(s, item.at("caption"), draws);
  } else if (what == "OneTrainer ShuffleTags") {
    found = trainer_shuffle(s, words(), draws);
  } else if (what == "OneTrainer DropTags") {
    found = trainer_drop(s, words(), draws);
  } else if (what == "SimpleTuner expand_with_shuffles") {
    found = tuner_shuffles(s, words());
  } else if (what == "SimpleTuner filter_captions") {
    found = tuner_filter(s, words());
  } else {
    unknown("'" + what + "'");
  }
  check_input(draws.used(), "verify", "the case has more draws than its settings ask for");
  return found;
}

Json read_by(const std::string& reader, const std::string& bytes) {
  const bool tuner = reader == "SimpleTuner", trainer = reader == "OneTrainer";
  if (data::invalid_utf8(bytes) != std::string::npos)
    return {{"error", trainer ? "RuntimeError" : "UnicodeDecodeError"}};
  const std::string text = tuner ? bytes : replaced(replaced(bytes, "\r\n", "\n"), "\r", "\n");
  if (reader == "musubi" || reader == "diffusion-pipe") return stripped(text);
  if (reader == "ai-toolkit") return text;
  Texts lines = split(text, "\n");
  if (tuner) {
    if (lines.size() == 1) return text;
    std::erase(lines, "");
    return lines;
  }
  const bool first = reader == "sd-scripts";
  if (!first && !trainer && reader != "sd-scripts enable_wildcard") unknown("the reader '" + reader + "'");
  if (!trainer && text.empty()) return {{"error", "AssertionError"}};
  if (first) return stripped(lines.front());
  Texts words = stripped_parts(text, "\n", /*empty=*/false);
  if (trainer && words.empty()) words = {""};
  return trainer ? Json(words) : Json(joined(words, "\n"));
}

Json looked_up(const Settings& file, const std::string& name) {
  const std::string reader = file.at("reader");
  const Json& content = file.at("content").json();
  const auto found = content.find(name);
  const bool there = found != content.end();
  if (reader == "diffusion-pipe") return there ? *found : Json();
  const Settings s = file.at("settings");
  const auto field = [&](const char* key) { return there && found->contains(key) ? found->at(key) : Json(); };
  if (reader == "ai-toolkit (dataset_path)") {
    const bool brief = s.at("use_short_captions");
    const std::string otherwise = s.at("default_caption");
    if (!there) return {{"raw_caption", otherwise}, {"raw_caption_short", otherwise}};
    const Json whole = field("caption"), part = field("caption_short");
    return {{"raw_caption", brief && !part.is_null() ? part : whole}, {"raw_caption_short", part}};
  }
  if (reader != "sd-scripts (metadata_file)") unknown("the reader '" + reader + "'");
  const std::string between = s.at("caption_separator");
  const bool lines = s.at("enable_wildcard");
  const Json whole = field("caption"), tags = field("tags");
  const std::string words = whole.is_null() ? "" : whole.get<std::string>(),
                    more = tags.is_null() ? "" : tags.get<std::string>();
  if (lines && !tags.is_null()) {  // the tags are one line, behind each of the caption's
    Texts all;
    for (const std::string& line : split(words, "\n"))
      if (!stripped(line).empty()) all.push_back(line + between + replaced(more, "\n", between));
    return joined(all, "\n");
  }
  return whole.is_null() ? more : more.empty() ? words : words + between + more;
}

at::Tensor text_bytes(const Json& json) {
  const std::string text = json.dump();
  const at::Tensor bytes = at::empty({std::ssize(text)}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.mutable_data_ptr<uint8_t>());
  return bytes;
}

}  // namespace

CaseResults verify_captions(const CaseContext& context) {
  for (const char* shared : {"captions", "trigger", "class", "defaults"})
    context.config.at(shared).json();  // items have the same by themselves
  const std::filesystem::path path = context.folder / "cases.json";
  const Settings cases(parse_ordered_json(checkpoint::read_text(path), path.string()));
  std::map<std::string, at::Tensor> expected, found;
  std::vector<std::pair<std::string, std::string>> refused;
  const auto add = [&](const std::string& run, const Json& wanted, const std::function<Json()>& make) {
    expected["out." + run + ".text"] = text_bytes(wanted);
    try {
      found["out." + run + ".text"] = text_bytes(make());
    } catch (const UserError& error) {
      refused.emplace_back(run, error.what());
    }
  };
  const std::vector<Settings> items = cases.at("items").elements();
  for (size_t i = 0; i < items.size(); ++i)
    add(std::to_string(i), items[i].at("expected").json(), [&] {
      const Settings settings(items[i].at("settings").json());
      Json text = found_of(items[i], settings);
      const std::vector<std::string> unread = settings.unread({});
      if (!unread.empty()) unknown(unread.front());
      return text;
    });
  for (const Settings& file : cases.at("files").elements()) {
    const std::string hex = file.at("bytes_hex"), name = file.at("name");
    check_input(hex.size() % 2 == 0 && hex.find_first_not_of("0123456789abcdef") == hex.npos, "verify",
                "file '" + name + "': bytes_hex is no list of bytes");
    std::string bytes;
    for (size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    for (const auto& [reader, text] : file.at("expected").items())
      add("file." + name + "." + reader, text.json(), [&, &by = reader] { return read_by(by, bytes); });
  }
  size_t number = 0;
  for (const Settings& file : cases.at("json_files").elements()) {
    const std::string run = "json" + std::to_string(number++) + ".";
    file.read("file");
    for (const auto& [name, text] : file.at("lookup").items())
      add(run + name, text.json(), [&, &of = name] { return looked_up(file, of); });
  }
  CaseFile file(context.name, path, std::move(expected));
  for (const auto& [name, text] : found) file.compare(name, text, 0.0);
  for (const auto& [run, why] : refused) file.refuse_run(run, why);
  CaseResults results;
  results.push_back(std::move(file));
  return results;
}

}  // namespace tessera::tools
