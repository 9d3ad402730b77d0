#pragma once
// How a run applies the LoRA pairs beside its linears: a unit that has pairs hands these settings to its Context, which
// finds the pairs by name ("site.lora_A.weight", "site.lora_B.weight", DoRA's "site.lora_magnitude_vector").
//
//   ctx.use_adapters(&settings);                   // then ctx.linear(site, x) adds the pair of the site, if it has one
#include <string>

#include "tessera/net/tokens.h"
#include "tessera/ops/dropout.h"

namespace tessera::net {

struct AdapterSettings {
  double scale = 1;    ///< factor of B A
  double dropout = 0;  ///< probability, applied to the input of A while training
  uint64_t seed = 0;   ///< of the dropout
  std::string prefix;  ///< in front of the unit's sites in parameter names
};

/// Parameters of a site's adapter, as they follow the site's name.
inline constexpr const char* kLoraA = ".lora_A.weight";                  // [r, in]
inline constexpr const char* kLoraB = ".lora_B.weight";                  // [out, r]
inline constexpr const char* kLoraMagnitude = ".lora_magnitude_vector";  // [out]

/// The dropout of a site whose input has `rows` rows: the rows of `space` on this rank, or the same number for each
/// sample (time). No dropout without training (Tokens::samples is empty), except on meta tensors, which stand for
/// training. Throws InternalError for rows that belong to no sample.
ops::Dropout dropout_at(const AdapterSettings& settings, std::string_view site, const Tokens& tokens,
                        const Space& space, int64_t rows, bool meta);

}  // namespace tessera::net
