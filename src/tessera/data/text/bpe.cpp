#include "tessera/data/text/bpe.h"

#include <algorithm>
#include <cstdio>
#include <queue>
#include <tuple>

#include "tessera/base/check.h"
#include "tessera/base/text.h"

namespace tessera::data {

namespace {

constexpr std::string_view kSpace = "\u2581";
constexpr int64_t kLargestId = (1 << 24) - 1;
constexpr size_t kMostOwn = 4096;

uint64_t key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

/// Bytes of the character that begins with this one; of text that is not UTF-8 one at a time.
size_t character_length(std::string_view rest) {
  const auto lead = static_cast<uint8_t>(rest[0]);
  const size_t length = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  return length <= rest.size() ? length : 1;
}

}  // namespace

Bpe::Bpe(const BpeTable& table, const std::string& file) {
  for (const auto& list : {table.pieces, table.own})
    for (const auto& [piece, id] : list)
      check_input(id >= 0 && id <= kLargestId, "data.tokenizer",
                  file + ": the id of '" + printable(piece.substr(0, 40)) + "' is " + std::to_string(id) +
                      ", expected 0 to " + std::to_string(kLargestId),
                  "the file is damaged: fetch it again");
  check_input(table.own.size() <= kMostOwn, "data.tokenizer",
              file + ": " + std::to_string(table.own.size()) + " special tokens, expected at most " +
                  std::to_string(kMostOwn) + ": each is looked for at every character of a caption",
              "give the tokenizer that came with the text encoder");
  for (const auto& [piece, id] : table.pieces) pieces_.emplace(piece, static_cast<int32_t>(id));
  for (size_t byte = 0; byte < bytes_.size(); ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02zX>", byte);
    const auto found = pieces_.find(name);
    bytes_[byte] = found == pieces_.end() ? static_cast<int32_t>(table.unk) : found->second;
  }
  for (size_t rank = 0; rank < table.merges.size(); ++rank) {
    const auto& [left, right] = table.merges[rank];
    const auto a = pieces_.find(left), b = pieces_.find(right), both = pieces_.find(left + right);
    check_input(a != pieces_.end() && b != pieces_.end() && both != pieces_.end(), "data.tokenizer",
                file + ": merge " + std::to_string(rank) + " joins '" + printable(left.substr(0, 40)) + "' and '" +
                    printable(right.substr(0, 40)) + "', which are no pieces or make none",
                "the file is damaged: fetch it again");
    merges_.try_emplace(key(a->second, b->second), Merge{static_cast<int32_t>(rank), both->second});
  }
  for (const auto& token : table.own)
    if (!token.first.empty()) own_[static_cast<uint8_t>(token.first[0])].push_back(token);
  for (auto& tokens : own_)
    std::ranges::stable_sort(tokens, [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
}

const Bpe::Merge* Bpe::merge_of(int32_t left, int32_t right) const {
  const auto found = merges_.find(key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

std::vector<int32_t> Bpe::characters(std::string_view part) const {
  std::vector<int32_t> ids;
  while (!part.empty()) {
    const size_t length = character_length(part);
    const std::string_view character = part[0] == ' ' ? kSpace : part.substr(0, length);
    if (const auto found = pieces_.find(std::string(character)); found != pieces_.end())
      ids.push_back(found->second);
    else
      for (const char byte : character) ids.push_back(bytes_[static_cast<uint8_t>(byte)]);
    part.remove_prefix(length);
  }
  return ids;
}

void Bpe::append_merged(std::vector<int32_t> ids, std::vector<int64_t>& result) const {
  const auto count = static_cast<int32_t>(ids.size());
  // a piece keeps the place of its first character; -1 in ids: it was merged into the one before
  std::vector<int32_t> next(ids.size()), previous(ids.size());
  for (int32_t i = 0; i < count; ++i) next[i] = i + 1, previous[i] = i - 1;

  using Candidate = std::tuple<int32_t, int32_t, int32_t, int32_t>;  // rank, place, left id, right id
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](int32_t place) {
    if (place < 0 || next[place] >= count) return;
    const int32_t left = ids[place], right = ids[next[place]];
    if (const Merge* merge = merge_of(left, right)) queue.emplace(merge->rank, place, left, right);
  };
  for (int32_t i = 0; i + 1 < count; ++i) offer(i);
  while (!queue.empty()) {
    const auto [rank, place, left, right] = queue.top();
    queue.pop();
    const int32_t after = next[place];
    if (ids[place] != left || after >= count || ids[after] != right) continue;  // one of them was merged since
    ids[place] = merge_of(left, right)->id;
    ids[after] = -1;
    next[place] = next[after];
    if (next[place] < count) previous[next[place]] = place;
    offer(previous[place]);
    offer(place);
  }
  for (int32_t i = 0; i < count; i = next[i]) result.push_back(ids[i]);
}

void Bpe::cut(std::string_view text, std::vector<int64_t>& ids,
              const std::function<void(std::string_view part)>& part) const {
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const auto& tokens = own_[static_cast<uint8_t>(text[at])];
    const auto token =
        std::ranges::find_if(tokens, [&](const auto& t) { return text.substr(at).starts_with(t.first); });
    if (token == tokens.end()) {
      ++at;
      continue;
    }
    part(text.substr(begin, at - begin));
    ids.push_back(token->second);
    begin = at += token->first.size();
  }
  part(text.substr(begin));
}

std::vector<int64_t> Bpe::encode(std::string_view text) const {
  std::vector<int64_t> ids;
  cut(text, ids, [&](std::string_view part) { append_merged(characters(part), ids); });
  return ids;
}

}  // namespace tessera::data
