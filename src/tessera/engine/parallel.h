#pragma once
// The ranks that share a sequence with this one (mesh axes cp, sp, tp): their groups, and a record of their
// collectives.
//
//   Parallel parallel(mesh, rank, comm);                 // or without comm, to measure on meta tensors
//   net::Batch mine = slice(whole, parallel);            // slice.h
//   Tensor out = sequence_attention(q, k, v, heads, mine.tokens, parallel);   // attention.h
//
// [Note: sequence parallel] Each rank has a share of the tokens ([Note: token shares] in plan/token_shares.h), and all
// operators but self-attention work on that share alone. Every rank has the whole text, so cross-attention needs no
// communication. Gradients of the shared conditioning stay partial sums: the stem's backward is linear in them, and its
// weight gradients are summed over the shard group, which includes cp and sp. A group of one sends nothing.
#include <functional>
#include <future>
#include <memory>

#include "tessera/comm/comm.h"
#include "tessera/device/streams.h"
#include "tessera/engine/store/lane.h"
#include "tessera/ops/ops.h"
#include "tessera/ops/session.h"
#include "tessera/plan/device_groups.h"
#include "tessera/plan/schedule.h"
#include "tessera/plan/token_shares.h"

namespace tessera::engine {

using at::Tensor;

/// The part of each sample's tokens that an exchange sends (plan::Traffic::part).
using SamplePart = std::array<int64_t, 2>;
inline constexpr SamplePart kWholeSample = {0, -1};

/// Of a matrix [rows, width].
inline int64_t bytes_of_row(const Tensor& x) { return x.size(1) * static_cast<int64_t>(x.element_size()); }

class Parallel {
 public:
  /// Tensors that are being sent and received while this thread computes; keeps them alive until they have arrived. What
  /// is sent follows what the compute lane was given before the call that starts it, and what the lane is given after wait()
  /// follows the transfer: tensors received may be memory that was freed just before, as in [Note: memory at a place] of
  /// plan/schedule.h. Transfers of this rank run one after another, in the order in which they are started.
  class Transfer {
   public:
    Transfer() = default;
    Transfer(Transfer&&) noexcept = default;
    Transfer& operator=(Transfer&&) = delete;
    ~Transfer();  ///< waits
    void wait();  ///< throws what the transfer threw

   private:
    friend class Parallel;
    const comm::Group* group_ = nullptr;  // marks the waiting thread (comm::Group::waits)
    std::future<void> done_;
    std::shared_ptr<device::Mark> passed_;  // on the thread that sends
    std::vector<Tensor> under_way_;
    std::function<void()> awaited_;  // measurement: notes what was computed meanwhile
  };

  /// Without `comm` nothing is sent: collectives allocate and are recorded, as measurement needs.
  Parallel(const Mesh& mesh, int rank, comm::Comm* comm = nullptr);
  /// Makes the communicators of these groups for tensors on devices, where the ranks use any: all ranks call it in one order,
  /// while nothing else is under way. Such tensors are sent to no other group.
  void connect(const std::vector<plan::DeviceGroup>& groups) const;
  /// Their messages lie in this memory of the device (comm.h), mostly.
  void lend(const std::vector<plan::DeviceGroup>& groups, device::Block memory) const;

  const Mesh& mesh() const { return mesh_; }
  bool cuts_tokens() const { return plan::sequence_size(mesh_) > 1; }
  /// Whether self-attention needs other ranks.
  bool cuts_attention() const { return cp() * sp() > 1; }
  int cp() const { return mesh_[Axis::cp]; }
  int sp() const { return mesh_[Axis::sp]; }
  int tp() const { return mesh_[Axis::tp]; }
  int tp_rank() const { return mesh_.coordinate(rank_, Axis::tp); }
  int cp_rank() const { return mesh_.coordinate(rank_, Axis::cp); }
  int sp_rank() const { return mesh_.coordinate(rank_, Axis::sp); }

  /// This rank's share of `tokens` tokens.
  plan::TokenRange share(int64_t tokens) const { return plan::token_share(tokens, mesh_, rank_); }
  /// The block of a cp_rank: the shares of its sp x tp ranks together.
  plan::TokenRange block(int64_t tokens, int cp_rank) const { return plan::token_share(tokens, cp_rank, cp()); }
  /// The tokens of a sp_rank (all its tp ranks) in this rank's block.
  plan::TokenRange part(int64_t tokens, int sp_rank) const {
    return plan::token_share(tokens, int64_t{cp_rank()} * sp() + sp_rank, int64_t{cp()} * sp());
  }
  /// The tokens of this rank's tp group: the shares of its ranks together.
  plan::TokenRange tp_group(int64_t tokens) const { return part(tokens, sp_rank()); }
  /// The share of one of the group's tp ranks.
  plan::TokenRange tp_share(int64_t tokens, int tp_rank) const {
    return plan::token_share(tokens, (int64_t{cp_rank()} * sp() + sp_rank()) * tp() + tp_rank,
                             int64_t{cp()} * sp() * tp());
  }

  // Collectives; each is recorded with the rows that it is expected to send (plan::Traffic).
  /// Starts an all_to_all over sp: sends out[i] to member i and receives in[i] from it; this rank's own is copied.
  Transfer exchange_heads(const std::vector<Tensor>& out, const std::vector<Tensor>& in, plan::Rows rows,
                          int64_t row_bytes) const;
  /// Starts sending `out` to the next rank of cp while `in` comes from the one before; adds the bytes to `sent`.
  Transfer pass_on(const Tensor& out, const Tensor& in, int64_t& sent) const;
  /// Records what was sent around the ring.
  void note_ring(plan::Rows rows, int64_t row_bytes, int64_t sent) const;
  /// The same over tp; `kind` is the collective's name, undefined tensors are not sent.
  void exchange_tokens(const std::vector<Tensor>& out, const std::vector<Tensor>& in, const char* kind, plan::Rows rows,
                       int64_t row_bytes, SamplePart part = kWholeSample) const;
  /// The same over cp.
  void exchange_blocks(const std::vector<Tensor>& out, const std::vector<Tensor>& in, const char* kind, plan::Rows rows,
                       int64_t row_bytes) const;
  /// The same over the ranks that share the rows of a space: cp x sp, or with `over_tp` cp x sp x tp. Empty tensors are
  /// not sent.
  void exchange_reach(const std::vector<Tensor>& out, const std::vector<Tensor>& in, bool over_tp, plan::Rows rows,
                      int64_t reach, int64_t row_bytes, SamplePart part) const;
  /// The number of ranks of cp x sp, or of cp x sp x tp, and this one's index among them.
  int sharers(bool over_tp) const { return cp() * sp() * (over_tp ? tp() : 1); }
  int sharer(bool over_tp) const {
    const int index = cp_rank() * sp() + sp_rank();
    return over_tp ? index * tp() + tp_rank() : index;
  }
  /// Sums [samples, ...] over these ranks, in place and in rank order: the same bits on all.
  void sum_states(const Tensor& states, bool over_tp) const;
  /// Sums [rows] over the ranks of tp, in place: the same bits on all. `of`: own (a row for each token of the tp
  /// group), context (the same number of rows for each of the micro-batch's samples), or adapter (of one sample).
  void sum_rows(const Tensor& rows, plan::Rows of, int64_t samples, SamplePart part = kWholeSample) const;
  /// For norms over a width whose columns the ranks of tp share, of tokens or of a weight's rows; lives as long as this object.
  const ops::SharedWidth& shared_width(int64_t width, plan::Rows rows, int64_t samples,
                                       SamplePart part = kWholeSample) const;
  /// Gathers the rows of all shares on every rank: [share, n] -> [tokens, n].
  Tensor gather_tokens(const Tensor& rows, int64_t tokens) const;
  /// Sums over the ranks that share the sequence, in place.
  void sum(const Tensor& tensor) const;

  /// While it lives, collectives of this thread are recorded: as they ran, or (measurement) for any number of tokens.
  class Notes {
   public:
    Notes(const Parallel& parallel, std::vector<plan::Comm>& ran) : parallel_(parallel) { parallel.ran_ = &ran; }
    Notes(const Parallel& parallel, std::vector<plan::Traffic>& traffic) : parallel_(parallel) {
      parallel.traffic_ = &traffic, parallel.before_ = ops::session().products;
    }
    ~Notes() { parallel_.ran_ = nullptr, parallel_.traffic_ = nullptr; }
    Notes(const Notes&) = delete;
    Notes& operator=(const Notes&) = delete;

   private:
    const Parallel& parallel_;
  };

 private:
  /// That of a collective over `tensors`.
  comm::Group& group(const char* purpose, const std::vector<Axis>& axes, const std::vector<Tensor>& tensors) const;
  void note(const plan::Traffic& traffic, int64_t sent) const;
  using Send = void (*)(comm::Group&, const std::vector<Tensor>& out, const std::vector<Tensor>& in);
  Transfer start(const char* purpose, Axis axis, Send send, const std::vector<Tensor>& out,
                 const std::vector<Tensor>& in) const;
  /// Measurement: what the instruction has computed so far.
  plan::WorkDone work_done() const;

  const Mesh mesh_;
  const int rank_;
  comm::Comm* const comm_;
  mutable std::map<std::array<int64_t, 5>, ops::SharedWidth> widths_;
  std::unique_ptr<LaneThread> lane_;  // of cp and sp: sends while this thread computes
  mutable std::vector<plan::Comm>* ran_ = nullptr;
  mutable std::vector<plan::Traffic>* traffic_ = nullptr;
  mutable ops::ProductFlops before_;  // at the start of these notes
};

}  // namespace tessera::engine
