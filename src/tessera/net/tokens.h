#pragma once
// The rows of a micro-batch's samples by kind: tokens of the latent, text, image features, audio. Each kind is a row
// space: where each sample's rows begin, which of them this rank has, and tables with an entry for each row.
//
//   for (size_t s = 0; s + 1 < tokens.offsets.size(); ++s) tokens.offsets[s];      // where sample s starts
//   tokens.space(kText).offsets;                                                   // the same of its text (space 1)
//
// [Note: row spaces] Space 0 has the tokens that go from unit to unit; ranks of cp x sp x tp may share them. A family
// defines the further spaces. Such a space has rows of its own, and every rank has all of them (text), or it is part of
// the tokens (a stream of a joint sequence): then a rank has those of its rows that are among the rank's tokens, which
// may be none.
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/ops/row_index.h"
#include "tessera/plan/token_shares.h"

namespace tessera::net {

using at::Tensor;
using plan::TokenRange;

// [Note: chunks in time] A clip may be made a chunk of frames at a time. Linear attention then reads a token's own chunk
// and those before it, whose keys and values are a state of constant size, and a convolution over frames reads the last
// frames before a chunk and none behind its end. Either all chunks are here (Space::chunks), or one of them, beside what
// the finished ones have left (Tokens::history), or all of them are, and each reads what those before it have left when they
// were finished (History::of_all): so a clip that was made a chunk at a time trains in one pass.

/// What the finished chunks of a micro-batch's clips have left on this rank, by unit and site: states of linear
/// attentions, and last frames of what is convolved over time. Nothing of it has a gradient.
struct History {
  using Sites = std::map<std::string, Tensor, std::less<>>;
  struct Left {
    Sites states, frames;
  };
  std::vector<Left> finished;
  int64_t reach = 0;        ///< how many chunks before its own an attention reads; not above 0: all
  Left* storing = nullptr;  ///< receives what this pass leaves; of meta tensors sizes alone
  bool of_all = false;      ///< all chunks are here: the i-th has left finished[i], and the last nothing

  /// Takes what a chunk has left, and keeps no more than later ones read: the last `reach` chunks, or the sum of all states
  /// and the last frames. So a clip of any length needs the same memory.
  void finish(Left left);

  /// States as a chunk's queries read them: its own, which are stored, and those of the chunks within reach. `samples`: of the
  /// micro-batch.
  Tensor read(const std::string& site, const Tensor& own, int64_t samples) const;
  void store_frames(const std::string& site, const Tensor& rows) const;

 private:
  Tensor read_of_all(const std::string& site, const Tensor& own, int64_t samples) const;
};

/// Where chunks of `base` frames begin, and the end; the first takes what is left over, as in LongSANA.
std::vector<int64_t> chunk_bounds(int64_t frames, int64_t base);

struct Space {
  std::vector<int64_t> offsets;                ///< [B+1] where each sample's rows start, counted over all ranks
  std::vector<std::array<int64_t, 3>> shapes;  ///< [B] frames, height and width of a sample's rows; empty: no grid
  std::vector<std::array<int64_t, 2>> ranges;  ///< [B] part of the tokens: [begin, end) of each sample's among them
  ops::RowIndex rows;                          ///< modulation row of each of the rows here
  /// [B] frames at which a sample's chunks begin, 0 first; empty: clips are whole ([Note: chunks in time]).
  std::vector<std::vector<int64_t>> chunks;
  Tensor cos, sin;              ///< [rows, d_h/2] fp32: rotary table at each row's position; where ranks of tp share
                                ///< heads, it covers the rows of all these ranks
  int64_t begin = 0, end = -1;  ///< this rank's rows; -1: to the last

  int64_t total() const { return offsets.empty() ? 0 : offsets.back(); }
  int64_t count() const { return (end < 0 ? total() : end) - begin; }  ///< rows here
  bool cut() const { return end >= 0; }
  /// [B+1] where each sample's rows start among this rank's; a sample may have no row here.
  std::vector<int64_t> local_offsets() const { return local_offsets(begin, begin + count()); }
  /// The same, among the rows [first, last).
  std::vector<int64_t> local_offsets(int64_t first, int64_t last) const;
  /// The range of the space's rows that are among `tokens`; space 0 returns `tokens` itself.
  TokenRange within(TokenRange tokens) const;
  /// The chunk of a sample's frame: its first frame, and the one behind it.
  std::array<int64_t, 2> chunk_of(size_t sample, int64_t frame) const;
};

/// The segments of an attention: which queries of space `q` attend to which keys of space `k`.
struct Segments {
  int q = 0, k = 0;
  /// {a, b, c, d}: queries [a, b) attend to keys [c, d), counted over the micro-batch. Ranges follow one another in
  /// both spaces and leave no row out. Empty: each sample's queries attend to its own keys.
  std::vector<std::array<int64_t, 4>> ranges = {};
  /// [rows] int64: `ranges` count the rows in this order, in which row order[i] comes i-th. Undefined: the rows' own
  /// order. For self-attention of the tokens only.
  Tensor order = {};
  /// Where ranks of cp share the tokens: the rows of this rank's block in that order, counted within the block, and
  /// [N+1] where each segment starts among them.
  Tensor local_order = {};
  std::vector<int64_t> local_offsets = {};
};

struct Tokens;

/// Where the queries and the keys of each segment start, [N+1] each.
struct SegmentOffsets {
  std::vector<int64_t> q_offsets, k_offsets;
};
SegmentOffsets segment_offsets(const Tokens& tokens, const Segments& segments);

/// The rows of a packed micro-batch: T tokens of B samples, one after the other, and further spaces. Where ranks share
/// a sequence, x and every table have only the tokens [begin, end), while offsets stay those of the whole micro-batch
/// (engine/slice.h).
struct Tokens : Space {
  std::vector<Space> spaces = {};         ///< 1, 2, ...: as the family numbers them
  std::vector<Segments> segments = {};    ///< the family's tables, for attention that is not sample by sample
  std::vector<uint64_t> samples = {};     ///< [B] keys of each sample's random numbers; empty: not training
  uint64_t step = 0;                      ///< the training step, part of these keys
  std::shared_ptr<History> history = {};  ///< of a chunk that others precede; null: none do

  const Space& space(int index) const { return index == 0 ? *this : spaces.at(static_cast<size_t>(index) - 1); }
  /// The rows of a space as ranges of this rank's tokens, or of the tokens `of`: [begin, end) for each sample with
  /// rows.
  std::vector<std::array<int64_t, 2>> row_ranges(int space) const {
    return row_ranges(space, {begin, begin + count()});
  }
  std::vector<std::array<int64_t, 2>> row_ranges(int space, TokenRange of) const;
  /// Query-key pairs of self-attention by sample: the sum, over this rank's tokens, of the tokens of their sample.
  double pairs() const;
  /// [N+1] where the rows begin that make a state of linear attention: of each sample, or of each of its chunks.
  std::vector<int64_t> state_offsets() const;
  /// The rows of each sample's last frame in x, which has all tokens, one after the other.
  Tensor last_frames(const Tensor& x) const;
  /// What `history` has of such rows at a site, as the left neighbours of the tokens of chunks' first frames in `rows` rows of
  /// this rank, [rows, like's width]; zeros for all other tokens. Undefined: no chunk here has one before it.
  Tensor before_first_frames(const std::string& site, const Tensor& like, int64_t rows) const;
  /// States [N, ...] made those that the rows of each read: with those of the sample's chunks before it that are here.
  Tensor read_states(const Tensor& states) const;
  /// The first frame that neighbours of a sample's frame may have, where chunks read each other's frames here.
  int64_t first_neighbour(size_t sample, int64_t frame) const {
    return history && history->of_all ? chunk_of(sample, frame)[0] : 0;
  }
  /// All tables that are defined.
  std::vector<Tensor> tables() const;
  /// Replaces each table that is defined.
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
