// Mutations of a valid file: the reader may refuse with a UserError or read, nothing else. Deterministic; run it under
// the address and undefined sanitizers (-DTESSERA_SANITIZE=address,undefined).
#include <cstring>

#include "checkpoint/files.h"
#include "tessera/base/random.h"
#include "tessera/checkpoint/safetensors.h"

namespace tessera::checkpoint {

class Mutator {
 public:
  Mutator(uint64_t seed, uint64_t round) : key_(seed, Purpose::test, round) {}
  uint64_t below(uint64_t bound) { return key_.below(next_++, bound); }

  void mutate(std::string& bytes) {
    static const char* kWords[] = {"-1",
                                   "9223372036854775807",
                                   "18446744073709551616",
                                   "1e300",
                                   "null",
                                   "[]",
                                   "{}",
                                   "\"\"",
                                   "\"BF16\"",
                                   "0",
                                   ",",
                                   "\"w\":",
                                   "\"data_offsets\"",
                                   "[[[[",
                                   "\\u0000",
                                   "\xff"};
    size_t at = below(bytes.size() + 1);
    switch (below(10)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1:
        if (at < bytes.size()) bytes[at] = static_cast<char>(below(256));
        break;
      case 2:
        bytes.resize(at);
        break;
      case 3:
        bytes.erase(at, below(9));
        break;
      case 4:
        bytes.insert(at, kWords[below(std::size(kWords))]);
        break;
      case 5:
        bytes.insert(at, bytes.substr(below(bytes.size() + 1), below(60)));
        break;
      default:
        change_number(bytes, at);
        break;
    }
  }

 private:
  /// Another number where one stands: offsets and dimensions are where lies hurt.
  void change_number(std::string& bytes, size_t at) {
    at = bytes.find_first_of("0123456789", at);
    if (at == std::string::npos) return;
    size_t end = std::min(bytes.find_first_not_of("0123456789", at), bytes.size());
    bytes.replace(at, end - at, std::to_string(below(3) ? below(64) : uint64_t{1} << below(64)));
  }

  RandomKey key_;
  uint64_t next_ = 0;
};

TEST_F(FileTest, MutatedFilesAreRefusedOrReadAndNeverHarm) {
  float values[12] = {1, 2, 3};
  write_safetensors(path("valid"),
                    {{"w", DType::f32, {2, 2}, values},
                     {"h", DType::f16, {3, 1}, values},
                     {"i", DType::i64, {1}, values},
                     {"q", DType::f8_e4m3, {5}, values},
                     {"e", DType::bf16, {0, 3}, values}},
                    {{"format", "pt"}});
  const std::string valid = read_text(path("valid"));
  constexpr uint64_t kRounds = 4000;
  int opened = 0, refused = 0;
  for (uint64_t round = 0; round < kRounds; ++round) {
    Mutator mutator(20240601, round);
    std::string bytes = valid;
    for (uint64_t n = 1 + mutator.below(3); n > 0; --n) mutator.mutate(bytes);
    size_t brace = bytes.rfind('}');
    if (mutator.below(2) && brace != std::string::npos && brace >= 8) {
      uint64_t length =
          brace + 1 - 8;  // half of them with a header length that is right: what lies behind it is reached
      std::memcpy(bytes.data(), &length, 8);
    }
    write("mutant", bytes);
    try {
      SafetensorsFile file = SafetensorsFile::open(path("mutant"));
      for (const auto& entry : file.entries()) {
        ASSERT_LE(file.bytes(entry.name).size(), bytes.size());
        std::vector<float> out(static_cast<size_t>(entry.count()));
        if (is_floating(entry.dtype)) file.read_f32(entry.name, 0, entry.count(), out.data());
      }
      ++opened;
    } catch (const UserError& error) {
      ASSERT_EQ(error.code(), Exit::input) << "round " << round << ": " << error.what();
      ++refused;
    }
  }
  EXPECT_EQ(opened + refused, static_cast<int>(kRounds));
  EXPECT_GT(opened, 30) << "some mutations are harmless";
  EXPECT_GT(refused, 1000);
}

}  // namespace tessera::checkpoint
