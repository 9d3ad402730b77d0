#pragma once
// Thrown by a transport if the exchange with one member failed, so that the group can name its rank.
#include <stdexcept>
#include <string>

namespace tessera::comm {

class PeerError : public std::runtime_error {
 public:
  /// `member`: its index in the group.
  PeerError(int member, const std::string& why) : std::runtime_error(why), member_(member) {}
  int member() const { return member_; }

 private:
  int member_;
};

}  // namespace tessera::comm
