#pragma once
// The rows that a micro-batch's samples have, by kind: tokens of the latent, text, image features, sound. Each kind is
// a row space: where each sample's rows begin, which of them are here, and the tables that belong to rows.
//
//   for (size_t s = 0; s + 1 < tokens.offsets.size(); ++s) tokens.offsets[s];      // where sample s starts
//   tokens.space(kText).offsets;                                                   // and its text, kText a family's 1
//
// [Note: row spaces] Space 0 is the tokens themselves, which ranks of cp x sp x tp may share: what travels from unit to
// unit. The further ones are the family's. A space has rows of its own, which every rank has whole (text), or it is part
// of the tokens (a stream of a joint sequence): then its rows here are those among the tokens here, maybe none.
#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "tessera/ops/row_index.h"
#include "tessera/plan/token_shares.h"

namespace tessera::net {

using at::Tensor;
using plan::TokenRange;

struct Space {
  std::vector<int64_t> offsets;                ///< [B+1] where each sample's rows start, on whichever rank they are
  std::vector<std::array<int64_t, 3>> shapes;  ///< [B] frames, height and width of a sample's rows; empty: no grid
  std::vector<std::array<int64_t, 2>> ranges;  ///< [B] part of the tokens: [begin, end) of each sample's among them
  ops::RowIndex rows;                          ///< modulation row of each of the rows here
  Tensor cos, sin;              ///< [rows, d_h/2] fp32: rotary table at each row's position; where ranks of tp share
                                ///< heads, of all rows that these ranks have together
  int64_t begin = 0, end = -1;  ///< the rows that are here; -1: to the last

  int64_t total() const { return offsets.empty() ? 0 : offsets.back(); }
  int64_t count() const { return (end < 0 ? total() : end) - begin; }  ///< rows here
  bool cut() const { return end >= 0; }
  /// [B+1] where each sample's rows start among those that are here; a sample may have none of them.
  std::vector<int64_t> local_offsets() const { return local_offsets(begin, begin + count()); }
  /// The same among the rows [first, last).
  std::vector<int64_t> local_offsets(int64_t first, int64_t last) const;
  /// Those of the space's rows that are among the tokens [begin, end); of the tokens' own space just these.
  TokenRange within(TokenRange tokens) const;
};

/// Which rows meet in an attention: queries of space `q` and keys of space `k`.
struct Segments {
  int q = 0, k = 0;
  /// Queries [0, 1) meet keys [2, 3), counted over the micro-batch. Ranges follow one another in both spaces and leave
  /// no row out. Empty: each sample's queries meet its own keys.
  std::vector<std::array<int64_t, 4>> ranges = {};
  /// [rows] int64: ranges are of the rows in this order, place i has row order[i]. Undefined: as they are. Of the
  /// tokens meeting themselves.
  Tensor order = {};
  /// Where ranks of cp share the tokens: the rows of this rank's block in that order, counted in the block, and [N+1]
  /// where each segment's start among them.
  Tensor local_order = {};
  std::vector<int64_t> local_offsets = {};
};

struct Tokens;

/// Where the queries and the keys of each segment start, [N+1] each.
struct Meeting {
  std::vector<int64_t> q_offsets, k_offsets;
};
Meeting meeting(const Tokens& tokens, const Segments& segments);

/// The rows of a packed micro-batch: T tokens of B samples, one after the other, and further spaces. Ranks may share a
/// sequence: then only the tokens [begin, end) are here, in x and in every table, while offsets stay those of the whole
/// micro-batch (engine/parallel/slice.h cuts).
struct Tokens : Space {
  std::vector<Space> spaces = {};       ///< 1, 2, ...: as the family numbers them
  std::vector<Segments> segments = {};  ///< the family's tables, beside meetings by sample
  std::vector<uint64_t> samples = {};  ///< [B] what the random numbers of each sample are keyed by; empty: not training
  uint64_t step = 0;                   ///< the training step, of the same keys

  const Space& space(int index) const { return index == 0 ? *this : spaces.at(static_cast<size_t>(index) - 1); }
  /// Where a space's rows lie among the tokens here, or among `of`: [begin, end) for each sample that has some.
  std::vector<std::array<int64_t, 2>> places(int space) const { return places(space, {begin, begin + count()}); }
  std::vector<std::array<int64_t, 2>> places(int space, TokenRange of) const;
  /// Tokens here times all tokens of their sample, summed: what attention of all tokens of a sample grows with.
  double pairs() const;
  /// All tables, without the undefined ones.
  std::vector<Tensor> tables() const;
  /// Replaces each table, the undefined ones left out.
  template <class Change>
  void change_tables(const Change& change) {
    const auto apply = [&](Tensor& t) {
      if (t.defined()) t = change(t);
    };
    apply(rows.of_token), apply(cos), apply(sin);
    for (Space& s : spaces) apply(s.rows.of_token), apply(s.cos), apply(s.sin);
    for (Segments& s : segments) apply(s.order), apply(s.local_order);
  }
};

}  // namespace tessera::net
