// Mutations of valid files of torch.save, of the archive and of the pickle within: the reader may refuse with a
// UserError or read, nothing else. Deterministic; run it under the address and undefined sanitizers.
#include <cstring>

#include "checkpoint/files.h"
#include "checkpoint/torch_bytes.h"
#include "tessera/base/hash.h"
#include "tessera/base/random.h"
#include "tessera/checkpoint/torch_file.h"

namespace tessera::checkpoint {

namespace {

class ByteMutator {
 public:
  ByteMutator(uint64_t seed, uint64_t round) : key_(seed, Purpose::test, round) {}
  uint64_t below(uint64_t bound) { return key_.below(next_++, bound); }

  void mutate(std::string& bytes) {
    const size_t at = below(bytes.size() + 1);
    switch (below(6)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1:
        if (at < bytes.size()) bytes[at] = static_cast<char>(below(256));
        break;
      case 2:
        bytes.erase(at, below(9));
        break;
      case 3:
        bytes.insert(at, bytes.substr(below(bytes.size() + 1), below(40)));
        break;
      case 4: {  // lies about sizes: runs of the highest or lowest bytes
        const size_t run = std::min<size_t>(1 + below(8), bytes.size() - at);
        std::memset(bytes.data() + at, below(2) ? 0xff : 0, run);
        break;
      }
      default: {  // an instruction out of place
        static constexpr char kCodes[] = "(.}])tusaeRQbNqhc0\x85\x86\x87\x94\x93\x8c\x8a\x89";
        if (at < bytes.size()) bytes[at] = kCodes[below(sizeof(kCodes) - 1)];
        break;
      }
    }
  }

 private:
  RandomKey key_;
  uint64_t next_ = 0;
};

}  // namespace

class TorchFuzz : public FileTest {
 protected:
  /// Opens and reads everything; true when that went through.
  bool reads(size_t file_bytes) {
    try {
      const TorchFile file = TorchFile::open(path("mutant"));
      for (const auto& entry : file.entries()) {
        EXPECT_LE(static_cast<size_t>(entry.count() * size_of(entry.dtype)), file_bytes);
        std::vector<char> out(static_cast<size_t>(entry.count() * size_of(entry.dtype)));
        file.read(entry, 0, entry.count(), out.data());
      }
      return true;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), Exit::input) << error.what();
      return false;
    }
  }

  std::string pickle() {
    PickleMaker maker;
    maker.dict({{"a", maker.tensor("0", 6, 0, {2, 3}, {3, 1})},
                {"epoch", maker.integer(7)},
                {"inner", maker.inner({{"t", maker.tensor("0", 6, 1, {2, 2}, {1, 2})}})}});
    return maker.bytes();
  }
  /// An archive with this pickle, which has room to grow: what follows its end is not read.
  std::string archive(std::string pickle) {
    pickle.resize(kRoom, 'Z');
    const float data[6] = {0, 1, 2, 3, 4, 5};
    ZipWriter zip(path("mutant"), 0);
    zip.add("archive/data.pkl", pickle.data(), kRoom);
    zip.add("archive/data/0", data, sizeof data);
    zip.commit();
    return read_text(path("mutant"));
  }
  /// The same archive with another pickle and the checksum of that, without the flush that a writer owes.
  static std::string with_pickle(std::string archive, std::string pickle) {
    pickle.resize(kRoom, 'Z');
    const size_t begin = archive.find(char(-128));  // PROTO
    archive.replace(begin, kRoom, pickle);
    const uint32_t sum = crc32_zip(pickle.data(), pickle.size());
    std::memcpy(archive.data() + archive.rfind("archive/data.pkl") - 46 + 16, &sum, 4);
    return archive;
  }
  static constexpr size_t kRoom = 1024;
};

TEST_F(TorchFuzz, MutatedPicklesAreRefusedOrReadAndNeverHarm) {
  constexpr int kRounds = 3000;
  int opened = 0;
  const std::string valid = archive(pickle());
  for (int round = 0; round < kRounds; ++round) {
    ByteMutator mutator(11, static_cast<uint64_t>(round));
    std::string bytes = pickle();
    for (uint64_t n = 1 + mutator.below(3); n > 0; --n) mutator.mutate(bytes);
    write("mutant", with_pickle(valid, bytes));
    opened += reads(valid.size());
  }
  EXPECT_GT(opened, 30) << "some mutations are harmless";
  EXPECT_LT(opened, kRounds / 2);
}

TEST_F(TorchFuzz, MutatedArchivesAreRefusedOrReadAndNeverHarm) {
  const std::string valid = archive(pickle());
  constexpr int kRounds = 3000;
  int opened = 0;
  for (int round = 0; round < kRounds; ++round) {
    ByteMutator mutator(12, static_cast<uint64_t>(round));
    std::string bytes = valid;
    for (uint64_t n = 1 + mutator.below(3); n > 0; --n) mutator.mutate(bytes);
    write("mutant", bytes);
    opened += reads(bytes.size());
  }
  EXPECT_GT(opened, 30);
  EXPECT_LT(opened, kRounds);
}

TEST_F(TorchFuzz, EveryCutIsRefused) {
  const std::string valid = archive(pickle());
  for (size_t size = 0; size < valid.size(); ++size) {
    write("mutant", valid.substr(0, size));
    EXPECT_FALSE(reads(size)) << size;
  }
}

}  // namespace tessera::checkpoint
