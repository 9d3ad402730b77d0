// Random options of every dialect, with values of every kind: each is converted, remarked on or refused, or the command
// is an error of its writer. None is dropped, none is a fault of the program.
#include <gtest/gtest.h>

#include <random>

#include "tessera/base/check.h"
#include "tessera/tools/import/dialects.h"

namespace tessera::tools {
namespace {

class Draws {
 public:
  Draws(const Dialect& dialect, uint64_t seed) : dialect_(dialect), random_(seed) {}

  std::vector<Given> options() {
    std::vector<Given> given;
    for (uint64_t n = 1 + below(6); n > 0; --n) {
      const Rule& rule = dialect_.rules[below(dialect_.rules.size())];
      std::string name = rule.option;
      if (rule.covers != Covers::value && !name.starts_with("-") && below(4) != 0)
        name += "." + any({"type", "lr", "prompt", "x", "0"});
      given.push_back({name, value(), {}});
    }
    return given;
  }

 private:
  uint64_t below(uint64_t bound) { return random_() % bound; }
  std::string any(const std::vector<std::string>& all) { return all[below(all.size())]; }

  /// A number, a switch, a word of some option's table, a list of them, or nothing.
  std::string value() {
    const std::string usual = any({"",        "0",
                                   "1",       "2",
                                   "3",       "-1",
                                   "8",       "1e-4",
                                   "0.5",     "true",
                                   "false",   "none",
                                   "auto",    "cpu",
                                   "nvme",    "latest",
                                   "a/b",     "AdamW",
                                   "came",    "bf16",
                                   "fp16",    "cosine",
                                   "linear",  "512",
                                   "480x832", "99999999999999999999"});
    if (below(4) == 0) return usual + kListSeparator + any({"1", "x", "0.9"}) + kListSeparator;
    if (below(3) != 0) return usual;
    std::vector<std::string> words = {usual};  // what the docs say of an option names the values that it knows
    std::string word;
    for (char c : dialect_.rules[below(dialect_.rules.size())].becomes + " ")
      if (std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-')
        word += c;
      else if (!word.empty())
        words.push_back(std::exchange(word, {}));
    return any(words);
  }

  const Dialect& dialect_;
  std::mt19937_64 random_;
};

std::string shown(const std::vector<Given>& given) {
  std::string text;
  for (const Given& g : given) text += "\n  " + g.shown();
  return text;
}

TEST(ImportRandom, NoOptionIsDroppedAndNoValueIsAFaultOfTheProgram) {
  for (const Dialect* dialect : dialects()) {
    Draws draws(*dialect, 7);
    int translated = 0;
    for (int i = 0; i < 3000; ++i) {
      const std::vector<Given> given = draws.options();
      try {
        translate(*dialect, given, {.ranks = i % 3 == 0 ? 8 : 0}).to_toml();
        ++translated;
      } catch (const UserError&) {
      } catch (const std::exception& error) {
        ADD_FAILURE() << dialect->name << ": " << error.what() << shown(given);
      }
    }
    EXPECT_GT(translated, 300) << dialect->name << ": hardly anything came past the first check";
  }
}

}  // namespace
}  // namespace tessera::tools
