#include "tessera/device/staging.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <shared_mutex>
#include <utility>

namespace tessera::device {

/// A piece that the calling thread has for itself.
class Staging::Held {
 public:
  Held(Staging& staging, Piece* piece) : staging_(&staging), piece_(piece) {}
  Held(Held&& other) noexcept : staging_(other.staging_), piece_(std::exchange(other.piece_, nullptr)) {}
  ~Held() {
    if (piece_) staging_->put_back(piece_);
  }
  explicit operator bool() const { return piece_; }
  Piece* operator->() const { return piece_; }

 private:
  Staging* staging_;
  Piece* piece_;
};

Staging::Staging(int64_t bytes, int pieces) : bytes_(bytes), pieces_(static_cast<size_t>(pieces)) {
  count_memory_request();
  data_ = static_cast<char*>(used()->take_pinned(bytes * pieces));
  if (!data_) return;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    pieces_[i].data = data_ + static_cast<int64_t>(i) * bytes;
    free_.push_back(&pieces_[i]);
  }
}

Staging::~Staging() {
  if (data_) used()->give_pinned(data_);
}

Staging::Piece* Staging::take_free() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !free_.empty(); });
  Piece* piece = free_.front();
  free_.pop_front();
  return piece;
}

Staging::Piece* Staging::try_take_free() {
  const std::lock_guard lock(mutex_);
  if (free_.empty() || !free_.front()->copied.passed()) return nullptr;
  Piece* piece = free_.front();
  free_.pop_front();
  return piece;
}

void Staging::put_back(Piece* piece) {
  {
    const std::lock_guard lock(mutex_);
    free_.push_back(piece);
  }
  changed_.notify_one();
}

void Staging::bring(void* to, const char* from, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += bytes_) {
    const int64_t count = std::min(bytes_, bytes - at);
    const Held piece(*this, take_free());
    piece->copied.await();
    host_uses(piece->data, count, /*writes=*/true);
    std::memcpy(piece->data, from + at, static_cast<size_t>(count));
    used()->enqueue_copy(static_cast<char*>(to) + at, piece->data, count);
    piece->copied.record();
  }
}

/// While the thread empties a piece the next one is under way. It waits for a free one only where it holds none: threads that
/// did both could wait for each other.
void Staging::fetch(char* to, const void* from, int64_t bytes) {
  struct UnderWay {
    Held piece;
    int64_t at, count;
  };
  constexpr size_t kUnderWay = 2;
  std::deque<UnderWay> pieces;
  for (int64_t at = 0; at < bytes || !pieces.empty();) {
    if (at < bytes && pieces.size() < kUnderWay) {
      if (Held piece(*this, pieces.empty() ? take_free() : try_take_free()); piece) {
        if (pieces.empty()) piece->copied.await();
        const int64_t count = std::min(bytes_, bytes - at);
        used()->enqueue_copy(piece->data, static_cast<const char*>(from) + at, count);
        piece->copied.record();
        pieces.push_back({std::move(piece), at, count});
        at += count;
        continue;
      }
    }
    const UnderWay oldest = std::move(pieces.front());
    pieces.pop_front();
    oldest.piece->copied.await();
    host_uses(oldest.piece->data, oldest.count, /*writes=*/false);
    std::memcpy(to + oldest.at, oldest.piece->data, static_cast<size_t>(oldest.count));
    oldest.piece->copied.record();  // who fills it next comes after what this thread has read
  }
}

namespace {

/// The process's pieces, and the ranges whose copies go by way of them.
struct Staged {
  std::atomic<Staging*> pieces = nullptr;  // never destroyed: streams may copy until the process ends
  std::shared_mutex mutex;
  bool tried = false;
  std::map<const char*, int64_t> ranges;

  bool has(const void* data) {
    const auto* at = static_cast<const char*>(data);
    auto next = ranges.upper_bound(at);
    return next != ranges.begin() && at < std::prev(next)->first + std::prev(next)->second;
  }
};
Staged& staged() {
  static auto* once = new Staged;
  return *once;
}

}  // namespace

bool stage(const void* data, int64_t bytes) {
  constexpr int kPieces = 8;
  Staged& all = staged();
  const std::unique_lock lock(all.mutex);
  if (!std::exchange(all.tried, true)) {
    auto pieces = std::make_unique<Staging>(kStagingBytes / kPieces, kPieces);
    if (pieces->ok()) all.pieces = pieces.release();
  }
  if (!all.pieces) return false;
  all.ranges[static_cast<const char*>(data)] = bytes;
  return true;
}

void unstage(const void* data) {
  Staged& all = staged();
  if (!all.pieces) return;
  const std::unique_lock lock(all.mutex);
  all.ranges.erase(static_cast<const char*>(data));
}

int64_t staging_bytes() { return staged().pieces ? kStagingBytes : 0; }

namespace {

/// Memory that pin() has page-locked. A copy lies within one registration or outside of all: CUDA takes no other.
struct Pinned {
  struct Range {
    int64_t bytes, piece;  // of a piece; the last one may be smaller
  };
  std::atomic<bool> in_pieces = false;  // some range is more than one
  std::shared_mutex mutex;
  std::map<const char*, Range> ranges;

  /// How many of `bytes` from `data` on lie before the end of its piece.
  int64_t within_piece(const char* data, int64_t bytes) {
    const std::shared_lock lock(mutex);
    const auto next = ranges.upper_bound(data);
    if (next == ranges.begin()) return bytes;
    const auto& [begin, range] = *std::prev(next);
    const int64_t at = data - begin;
    return at < range.bytes ? std::min(bytes, range.piece - at % range.piece) : bytes;
  }
};
Pinned& pinned() {
  static auto* once = new Pinned;
  return *once;
}

/// Calls act(to, from, bytes) of each part that no piece ends within.
template <class Act>
void cut(void* to, const void* from, int64_t bytes, Act act) {
  if (!pinned().in_pieces) return act(to, from, bytes);
  auto* const target = static_cast<char*>(to);
  const auto* const source = static_cast<const char*>(from);
  for (int64_t at = 0, count = 0; at < bytes; at += count) {
    count = pinned().within_piece(source + at, bytes - at);
    count = pinned().within_piece(target + at, count);
    act(target + at, source + at, count);
  }
}

}  // namespace

std::string pin(void* data, int64_t bytes) {
  const Backend& device = *used();
  auto* const begin = static_cast<char*>(data);
  const int64_t piece = std::min(bytes, device.most_pinned());
  for (int64_t at = 0; at < bytes; at += piece) {
    count_memory_request();
    const std::string refusal = device.pin(begin + at, std::min(piece, bytes - at));
    if (refusal.empty()) continue;
    for (int64_t done = 0; done < at; done += piece) device.unpin(begin + done);
    return refusal;
  }
  const std::unique_lock lock(pinned().mutex);
  pinned().ranges[begin] = {bytes, piece};
  if (piece < bytes) pinned().in_pieces = true;
  return "";
}

void unpin(void* data) {
  Pinned::Range range{};
  {
    const std::unique_lock lock(pinned().mutex);
    range = pinned().ranges.extract(static_cast<const char*>(data)).mapped();
  }
  for (int64_t at = 0; at < range.bytes; at += range.piece) used()->unpin(static_cast<char*>(data) + at);
}

void copy(void* to, const void* from, int64_t bytes) {
  cut(to, from, bytes, [](void* target, const void* source, int64_t n) { used()->copy(target, source, n); });
}

void enqueue_copy(void* to, const void* from, int64_t bytes) {
  const auto direct = [](void* target, const void* source, int64_t n) { used()->enqueue_copy(target, source, n); };
  Staged& all = staged();
  Staging* pieces = all.pieces.load(std::memory_order_acquire);
  if (!pieces) return cut(to, from, bytes, direct);
  bool to_host = false, from_host = false;
  {
    const std::shared_lock lock(all.mutex);
    to_host = all.has(to), from_host = all.has(from);
  }
  if (to_host)
    pieces->fetch(static_cast<char*>(to), from, bytes);
  else if (from_host)
    pieces->bring(to, static_cast<const char*>(from), bytes);
  else
    cut(to, from, bytes, direct);
}

}  // namespace tessera::device
