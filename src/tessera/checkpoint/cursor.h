#pragma once
// Walks over bytes of a foreign file: little-endian numbers and runs of bytes, none of them past the end.
//
//   Cursor at(bytes, "model.pth: zip directory");
//   uint32_t magic = at.number<uint32_t>();
//   std::string_view name = at.take(at.number<uint16_t>());
#include <concepts>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "tessera/base/check.h"

namespace tessera::checkpoint {

class Cursor {
 public:
  /// `bytes` is borrowed; `what` opens the message of the UserError (input) that every read past the end is.
  Cursor(std::string_view bytes, std::string what) : bytes_(bytes), what_(std::move(what)) {}

  size_t position() const { return position_; }
  size_t left() const { return bytes_.size() - position_; }

  std::string_view take(uint64_t count) {
    if (count > left())
      refuse(std::to_string(count) + " bytes expected at byte " + std::to_string(position_) + ", " +
             std::to_string(left()) + " are left");
    position_ += count;
    return bytes_.substr(position_ - count, count);
  }
  template <std::integral T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string_view line() {
    const size_t end = bytes_.find('\n', position_);
    if (end == bytes_.npos) refuse("a line that does not end");
    const std::string_view text = take(end - position_);
    take(1);
    return text;
  }
  [[noreturn]] void refuse(const std::string& problem) const {
    throw UserError(Exit::input, "checkpoint.read", what_ + ": " + problem,
                    "the file is damaged or only partly copied: fetch it again");
  }

 private:
  std::string_view bytes_;
  std::string what_;
  size_t position_ = 0;
};

}  // namespace tessera::checkpoint
