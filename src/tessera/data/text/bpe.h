#pragma once
// Byte-pair encoding over a whole text: neighbouring pieces are merged in the order of a table; a character that is no
// piece becomes its bytes. Tokens of their own (special ones, runs of line breaks) are cut out of the text first.
//
//   Bpe bpe({.pieces = {"a", "b", "ab"}, .merges = {{"a", "b"}}, .own = {"<bos>"}, ...});
//   bpe.encode("aab");                                                // ids of "a", "ab"
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tessera::data {

struct BpeTable {
  std::vector<std::pair<std::string, int64_t>> pieces;      ///< with their ids
  std::vector<std::pair<std::string, std::string>> merges;  ///< the first goes first
  std::vector<std::pair<std::string, int64_t>> own;         ///< tokens that are cut out, with their ids
  int64_t unk = -1;                                         ///< of a byte without a piece "<0xFF>"
};

class Bpe {
 public:
  /// Throws UserError (input) naming `file` where a merge has no piece.
  Bpe(const BpeTable& table, const std::string& file);

  /// Spaces become U+2581 but in the tokens that are cut out. Any number of threads may call it.
  std::vector<int64_t> encode(std::string_view text) const;
  /// Cuts out the tokens that are cut out, whose ids it adds, and calls `part` with each text between them.
  void cut(std::string_view text, std::vector<int64_t>& ids,
           const std::function<void(std::string_view part)>& part) const;
  /// The same as encode() of a text that the caller has cut into pieces, by their ids; nothing is cut out.
  void append_merged(std::vector<int32_t> ids, std::vector<int64_t>& result) const;

 private:
  struct Merge {
    int32_t rank, id;
  };
  std::vector<int32_t> characters(std::string_view part) const;
  const Merge* merge_of(int32_t left, int32_t right) const;

  std::unordered_map<std::string, int32_t> pieces_;
  std::unordered_map<uint64_t, Merge> merges_;                         // by both ids
  std::array<std::vector<std::pair<std::string, int64_t>>, 256> own_;  // by first byte, longest first
  std::array<int32_t, 256> bytes_ = {};
};

}  // namespace tessera::data
