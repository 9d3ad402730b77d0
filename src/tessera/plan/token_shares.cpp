#include "tessera/plan/token_shares.h"

#include <algorithm>

namespace tessera::plan {

TokenRange token_share(int64_t tokens, int64_t index, int64_t of) {
  return {tokens * index / of, tokens * (index + 1) / of};
}

int sequence_size(const Mesh& mesh) { return mesh[Axis::cp] * mesh[Axis::sp] * mesh[Axis::tp]; }

int sequence_rank(const Mesh& mesh, int rank) {
  return (mesh.coordinate(rank, Axis::cp) * mesh[Axis::sp] + mesh.coordinate(rank, Axis::sp)) * mesh[Axis::tp] +
         mesh.coordinate(rank, Axis::tp);
}

TokenRange token_share(int64_t tokens, const Mesh& mesh, int rank) {
  return token_share(tokens, sequence_rank(mesh, rank), sequence_size(mesh));
}

bool Traffic::several(const Mesh& mesh) const {
  return std::any_of(axes.begin(), axes.end(), [&](Axis axis) { return mesh[axis] > 1; });
}

int64_t Traffic::bytes(int64_t tokens, const Mesh& mesh, int rank, int64_t samples) const {
  const int64_t cp = mesh[Axis::cp], sp = mesh[Axis::sp], block = mesh.coordinate(rank, Axis::cp);
  const auto of_block = [&](int64_t index) { return token_share(tokens, index % cp, cp).count(); };
  const int64_t own = token_share(tokens, block * sp + mesh.coordinate(rank, Axis::sp), cp * sp).count();
  const auto count = [&] {
    switch (rows) {
      case Rows::own:
        return own;
      case Rows::others:
        return of_block(block) - own;
      case Rows::keys:
        return tokens - of_block(block + 1);
      case Rows::gradients:
        return tokens - of_block(block);
      case Rows::rest:
        return own - token_share(tokens, mesh, rank).count();
      case Rows::context:
        return samples;
      case Rows::share:
        break;
    }
    return token_share(tokens, mesh, rank).count();
  };
  return count() * row_bytes;
}

}  // namespace tessera::plan
