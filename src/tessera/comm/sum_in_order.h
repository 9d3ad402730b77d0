#pragma once
// The sums of a reduction between ranks, in an order that all of them have.
//
//   sum_in_order(out, {of_rank_0, of_rank_1}, n, /*accumulate=*/false);
#include <cstdint>
#include <vector>

namespace tessera::comm {

/// out[i] (+)= parts[0][i] + parts[1][i] + ..., added in this order on every rank.
void sum_in_order(float* out, const std::vector<const float*>& parts, int64_t n, bool accumulate);

}  // namespace tessera::comm
