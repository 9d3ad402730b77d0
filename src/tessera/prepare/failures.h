#pragma once
// Collects failures of work that is shared over ranks: each rank records its own, then all ranks know all of them.
//
//   Failures failures(pieces);
//   failures.add(piece, "cut short");                    // on the rank whose piece it was
//   failures.share(comm, mesh, rank);                    // together
//   failures.text(piece);                                // the same on every rank
#include <map>
#include <string>
#include <vector>

#include "tessera/comm/comm.h"

namespace tessera::prepare {

class Failures {
 public:
  explicit Failures(size_t pieces) : pieces_(pieces) {}

  void add(size_t piece, std::string why) { why_[piece] = std::move(why); }
  /// Texts beyond the first 50 and beyond 480 bytes each stay with the rank that booked them.
  void share(comm::Comm& comm, const Mesh& mesh, int rank);

  bool failed(size_t piece) const { return why_.contains(piece); }
  const std::string& text(size_t piece) const { return why_.at(piece); }
  bool empty() const { return why_.empty(); }

 private:
  size_t pieces_;
  std::map<size_t, std::string> why_;
};

}  // namespace tessera::prepare
