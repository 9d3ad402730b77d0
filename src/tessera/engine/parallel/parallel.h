#pragma once
// The ranks that share a sequence with this one (mesh axes cp, sp, tp): their groups, and a note of what is sent.
//
//   Parallel parallel(mesh, rank, comm);                 // or without comm, to measure on meta tensors
//   net::Batch mine = slice(whole, parallel);            // slice.h
//   Tensor out = sequence_attention(q, k, v, heads, mine.tokens, parallel);   // attention.h
//
// [Note: sequence parallel] Tokens rest in shares ([Note: token shares] in plan/token_shares.h); all but self-attention
// works on them as they are. Text is on every rank whole, so cross-attention needs no traffic. Gradients of the
// shared conditioning stay partial: the stem's backward is linear in them, and the sum of its weight gradients over the
// shard group, of which cp and sp are part, is right. A group of one sends nothing.
#include <future>
#include <memory>

#include "tessera/comm/comm.h"
#include "tessera/engine/memory/lane.h"
#include "tessera/ops/ops.h"
#include "tessera/plan/schedule.h"
#include "tessera/plan/token_shares.h"

namespace tessera::engine {

using at::Tensor;

/// Which of each sample's tokens an exchange is of (plan::Traffic::part).
using SamplePart = std::array<int64_t, 2>;
inline constexpr SamplePart kWholeSample = {0, -1};

class Parallel {
 public:
  /// A block on its way round the ring: both tensors live until it is there.
  class Transfer {
   public:
    Transfer() = default;
    Transfer(Transfer&&) noexcept = default;
    Transfer& operator=(Transfer&&) = delete;
    ~Transfer();  ///< waits
    void wait();  ///< throws what the transfer threw

   private:
    friend class Parallel;
    const comm::Group* ring_ = nullptr;  // told who waits
    std::future<void> done_;
  };

  /// Without `comm` nothing is sent: collectives take their memory and are noted.
  Parallel(const Mesh& mesh, int rank, comm::Comm* comm = nullptr);

  const Mesh& mesh() const { return mesh_; }
  bool cuts_tokens() const { return plan::sequence_size(mesh_) > 1; }
  /// Self-attention needs other ranks.
  bool cuts_attention() const { return cp() * sp() > 1; }
  int cp() const { return mesh_[Axis::cp]; }
  int sp() const { return mesh_[Axis::sp]; }
  int tp() const { return mesh_[Axis::tp]; }
  int tp_rank() const { return mesh_.coordinate(rank_, Axis::tp); }
  int cp_rank() const { return mesh_.coordinate(rank_, Axis::cp); }
  int sp_rank() const { return mesh_.coordinate(rank_, Axis::sp); }

  /// The tokens that rest here, of `tokens`.
  plan::TokenRange share(int64_t tokens) const { return plan::token_share(tokens, mesh_, rank_); }
  /// The tokens that one place of cp works on: the shares of its sp x tp ranks together.
  plan::TokenRange block(int64_t tokens, int cp_rank) const { return plan::token_share(tokens, cp_rank, cp()); }
  /// The tokens of one place of sp (all of its tp ranks) in this rank's block.
  plan::TokenRange part(int64_t tokens, int sp_rank) const {
    return plan::token_share(tokens, int64_t{cp_rank()} * sp() + sp_rank, int64_t{cp()} * sp());
  }
  /// The tokens of the place of cp x sp that this rank is in: those of its tp ranks together.
  plan::TokenRange place(int64_t tokens) const { return part(tokens, sp_rank()); }
  /// Those of them that rest on one of its tp ranks.
  plan::TokenRange rest(int64_t tokens, int tp_rank) const {
    return plan::token_share(tokens, (int64_t{cp_rank()} * sp() + sp_rank()) * tp() + tp_rank,
                             int64_t{cp()} * sp() * tp());
  }

  // Collectives; each is noted with the rows that it is expected to send (plan::Traffic).
  /// Member i of sp gets out[i] and gives in[i]; this rank's own is copied.
  void exchange_heads(const std::vector<Tensor>& out, const std::vector<Tensor>& in, plan::Rows rows,
                      int64_t row_bytes) const;
  /// Starts sending `out` to the next rank of cp while `in` comes from the one before; adds the bytes to `sent`. The
  /// transfer follows what the compute lane was given before the call, and what it is given after wait() follows the
  /// transfer: `in` may be memory that was freed just before, as in [Note: memory at a place] of plan/schedule.h.
  Transfer pass_on(const Tensor& out, const Tensor& in, int64_t& sent) const;
  /// Notes what went round the ring.
  void note_ring(plan::Rows rows, int64_t row_bytes, int64_t sent) const;
  /// Member i of tp gets out[i] and gives in[i] (undefined: nothing); this rank's own is copied.
  void exchange_tokens(const std::vector<Tensor>& out, const std::vector<Tensor>& in, const char* kind, plan::Rows rows,
                       int64_t row_bytes, SamplePart part = kWholeSample) const;
  /// Member i of cp gets out[i] and gives in[i]; this rank's own is copied.
  void exchange_blocks(const std::vector<Tensor>& out, const std::vector<Tensor>& in, const char* kind, plan::Rows rows,
                       int64_t row_bytes) const;
  /// Member i of those that share the rows gets out[i] and gives in[i]: the ranks of cp x sp, or with `over_tp` of cp x
  /// sp x tp. What is empty is not sent.
  void exchange_reach(const std::vector<Tensor>& out, const std::vector<Tensor>& in, bool over_tp, plan::Rows rows,
                      int64_t reach, int64_t row_bytes, SamplePart part) const;
  /// The ranks of cp x sp, or of cp x sp x tp, and the place of this one.
  int sharers(bool over_tp) const { return cp() * sp() * (over_tp ? tp() : 1); }
  int sharer(bool over_tp) const {
    const int place = cp_rank() * sp() + sp_rank();
    return over_tp ? place * tp() + tp_rank() : place;
  }
  /// Adds up over these ranks, in place and in their order: the same bits on all. [samples, ...]
  void sum_states(const Tensor& states, bool over_tp) const;
  /// Adds up [rows] over the ranks of tp, in place: the same bits on all. `of`: own (a row for each token of the
  /// place), or context, so many for each of the micro-batch's samples.
  void sum_rows(const Tensor& rows, plan::Rows of, int64_t samples, SamplePart part = kWholeSample) const;
  /// For norms over a width of which each rank of tp has some columns; lives as long as this.
  const ops::SharedWidth& shared_width(int64_t width, plan::Rows rows, int64_t samples,
                                       SamplePart part = kWholeSample) const;
  /// Rows of all shares, on every rank: [share, n] -> [tokens, n].
  Tensor gather_tokens(const Tensor& rows, int64_t tokens) const;
  /// Sum over the ranks that share the sequence, in place.
  void sum(const Tensor& tensor) const;

  /// While it lives, collectives of this thread are noted: as they ran, or (measurement) for any number of tokens.
  class Notes {
   public:
    Notes(const Parallel& parallel, std::vector<plan::Comm>& ran) : parallel_(parallel) { parallel.ran_ = &ran; }
    Notes(const Parallel& parallel, std::vector<plan::Traffic>& traffic) : parallel_(parallel) {
      parallel.traffic_ = &traffic;
    }
    ~Notes() { parallel_.ran_ = nullptr, parallel_.traffic_ = nullptr; }
    Notes(const Notes&) = delete;
    Notes& operator=(const Notes&) = delete;

   private:
    const Parallel& parallel_;
  };

 private:
  void note(const plan::Traffic& traffic, int64_t sent) const;

  const Mesh mesh_;
  const int rank_;
  comm::Comm* const comm_;
  comm::Group *sequence_ = nullptr, *ring_ = nullptr, *tensor_ = nullptr, *norms_ = nullptr;
  mutable std::map<std::array<int64_t, 5>, ops::SharedWidth> widths_;
  std::unique_ptr<LaneThread> lane_;  // of the ring: moves a block while another is computed
  mutable std::vector<plan::Comm>* ran_ = nullptr;
  mutable std::vector<plan::Traffic>* traffic_ = nullptr;
};

}  // namespace tessera::engine
