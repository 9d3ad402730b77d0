#include "tessera/prepare/failures.h"

#include <algorithm>

namespace tessera::prepare {

namespace {
constexpr size_t kText = 480, kTexts = 50;
}

void Failures::share(comm::Comm& comm, const Mesh& mesh, int rank) {
  if (mesh.world() == 1) return;
  comm::Group& group = comm.group("failures", {kAllAxes.begin(), kAllAxes.end()});
  // Numbers are what the group can gather; failures are few, so their indices are padded to the longest list.
  double most = 0;
  for (const auto& row : group.all_gather_doubles({static_cast<double>(why_.size())})) most = std::max(most, row[0]);
  if (most == 0) return;
  std::vector<double> mine;
  for (const auto& [piece, why] : why_) mine.push_back(static_cast<double>(piece));
  mine.resize(static_cast<size_t>(most), -1);
  const auto all = group.all_gather_doubles(mine);

  size_t told = 0;
  for (size_t owner = 0; owner < all.size(); ++owner)
    for (const double piece : all[owner]) {
      if (piece < 0) continue;
      const auto index = static_cast<size_t>(piece);
      std::string& why = why_[index];
      if (told++ >= kTexts) {
        if (owner != static_cast<size_t>(rank)) why = "rank " + std::to_string(owner) + " could not read it";
        continue;
      }
      std::vector<double> letters(why.begin(), why.begin() + static_cast<long>(std::min(why.size(), kText)));
      letters.resize(kText, 0);
      const auto texts = group.all_gather_doubles(letters);
      if (owner == static_cast<size_t>(rank)) continue;
      for (const double letter : texts[owner])
        if (letter != 0) why += static_cast<char>(letter);
    }
}

}  // namespace tessera::prepare
