#pragma once
// How a run applies the adapters beside its linears: a unit that has adapters hands these settings to its Context, which
// finds them by name ("site.lora_A.weight", "site.lora_B.weight", DoRA's "site.lora_magnitude_vector"; "site.lokr_w1").
//
//   ctx.use_adapters(&settings);                   // then ctx.linear(site, x) adds the adapter of the site, if it has one
#include <map>
#include <string>

#include "tessera/net/tokens.h"
#include "tessera/ops/weight.h"

namespace tessera::net {

struct AdapterSettings {
  double scale = 1;                                        ///< factor of B A, and of what other kinds add to the weight
  std::map<std::string, double, std::less<>> scales = {};  ///< of sites that have another
  double dropout = 0;                                      ///< probability, applied to the input of A while training
  double rank_dropout = 0;    ///< of each rank of a pair, for a whole sample; the others are scaled by 1 / (1 - p)
  double module_dropout = 0;  ///< of a site's whole adapter, for a whole sample; the others stay as they are
  uint64_t seed = 0;          ///< of the dropout
  std::string prefix;         ///< in front of the unit's sites in parameter names
  double scale_of(std::string_view site) const {
    const auto own = scales.find(site);
    return own == scales.end() ? scale : own->second;
  }
};

/// Parameters of a site's adapter, as they follow the site's name.
inline constexpr const char* kLoraA = ".lora_A.weight";                  // [r, in]
inline constexpr const char* kLoraB = ".lora_B.weight";                  // [out, r]
inline constexpr const char* kLoraMagnitude = ".lora_magnitude_vector";  // [out]

/// Of adapters that make a change of the weight: the names of their two matrices, as files of all programs have them. Each
/// is whole under its name, or the product of name + kLeft and name + kRight.
struct ChangeKind {
  ops::Adapter::Kind kind;
  const char *name, *first, *second;
};
inline constexpr ChangeKind kChangeKinds[] = {{ops::Adapter::Kind::elementwise, "LoHa", ".hada_w1", ".hada_w2"},
                                              {ops::Adapter::Kind::kronecker, "LoKr", ".lokr_w1", ".lokr_w2"}};
inline constexpr const char *kLeft = "_a", *kRight = "_b";

/// The kind that a site has by the parameters that it has: `has` is asked for endings of names. Null: none.
template <class Has>
const ChangeKind* change_kind(const Has& has) {
  for (const ChangeKind& kind : kChangeKinds)
    if (has(std::string(kind.first)) || has(std::string(kind.first) + kLeft)) return &kind;
  return nullptr;
}

/// Whether a parameter is one of an adapter.
bool is_adapter_parameter(std::string_view name);

/// The dropout of a site whose input has `rows` rows: the rows of `space` on this rank, or the same number for each
/// sample (time). No dropout without training (Tokens::samples is empty), except on meta tensors, which stand for
/// training. Throws InternalError for rows that belong to no sample.
ops::Dropout dropout_at(const AdapterSettings& settings, std::string_view site, const Tokens& tokens,
                        const Space& space, int64_t rows, bool meta);

/// What settings.rank_dropout and module_dropout leave out of the site's rows between its factors, likewise.
ops::Dropout left_out_at(const AdapterSettings& settings, std::string_view site, const Tokens& tokens,
                         const Space& space, int64_t rows, bool meta);

}  // namespace tessera::net
