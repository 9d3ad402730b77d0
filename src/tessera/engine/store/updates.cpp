#include "tessera/engine/store/updates.h"

#include <ATen/Parallel.h>

#include "tessera/base/check.h"
#include "tessera/device/streams.h"
#include "tessera/engine/store/workers.h"
#include "tessera/ops/adamw.h"
#include "tessera/ops/half.h"
#include "tessera/ops/ranges.h"

namespace tessera::engine {

namespace {

/// Elements that a thread updates at once: whole quantisation blocks, and so many that the hand-out costs nothing.
constexpr int64_t kUpdateChunk = 1 << 16;
static_assert(kUpdateChunk % plan::kFlatAlign == 0 && kUpdateChunk == ops::kUpdateGrain);

/// Bytes of elements of a slice.
struct ElementBytes {
  int64_t master = 4, direction = 0;
};

/// Elements [from, from + kUpdateChunk) of a slice, counted from its start.
net::Slice chunk_of(net::Slice slice, int64_t from, ElementBytes bytes) {
  slice.end = std::min(slice.end, slice.begin + from + kUpdateChunk);
  slice.begin += from;
  slice.param = static_cast<uint8_t*>(slice.param) + from * bytes.master;
  if (slice.direction) slice.direction = static_cast<uint8_t*>(slice.direction) + from * bytes.direction;
  if (slice.grad) slice.grad += from;
  if (slice.half_grad) slice.half_grad += from;
  for (size_t s = 0; s < slice.states.size(); ++s) {
    const plan::StateSpec& spec = (*slice.specs)[s];
    if (spec.whole > 0) continue;
    check_internal(kUpdateChunk % spec.per == 0, "engine.store", "a block of " + spec.kind + " straddles two threads");
    slice.states[s] = static_cast<uint8_t*>(slice.states[s]) + from / spec.per * size_of(spec.type);
  }
  return slice;
}

/// The memory of a unit's sums: parts in double and what they become in fp32, for each round and buffer, then the parts of
/// totals. Of a device it lies beside what the engine plans.
class SumMemory {
 public:
  SumMemory(bool on_device, int64_t bytes) {
    if (bytes == 0) return;
    constexpr int kOfUpdates = 3;
    memory_ = on_device ? ops::device_scratch(kOfUpdates, bytes, at::kByte) : at::empty({bytes}, at::kByte);
    memory_.zero_();
  }
  Tensor take(int64_t count, at::ScalarType type) {
    const int64_t bytes = count * static_cast<int64_t>(c10::elementSize(type)), at = std::exchange(end_, end_ + bytes);
    return count > 0 ? memory_.narrow(0, at, bytes).view(type) : Tensor();
  }

 private:
  Tensor memory_;
  int64_t end_ = 0;
};

/// The directions of a buffer's matrices in the memory of their update ([Note: whole matrices]).
class WholeMatrices {
 public:
  WholeMatrices(const plan::UnitSpec& unit, const plan::MatrixParts& parts, DType type, const Tensor& work)
      : unit_(unit), parts_(parts), type_(type), at_(plan::matrix_work(unit, parts, type)), work_(work) {
    check_internal(work.defined() && static_cast<int64_t>(work.nbytes()) >= at_.bytes, "engine.store",
                   "the matrices of " + unit.name + " take " + std::to_string(at_.bytes) + " bytes, the schedule has " +
                       std::to_string(work.defined() ? work.nbytes() : 0));
  }

  /// The direction of this rank's i-th piece.
  void* own(size_t i) const { return static_cast<uint8_t*>(ops::address(work_)) + at_.own.at(i); }
  /// All of a parameter; undefined if it is another member's.
  Tensor whole(int param) const {
    const auto p = static_cast<size_t>(param);
    return at_.whole[p] < 0 ? Tensor() : values(at_.whole[p], unit_.params[p].numel());
  }
  Tensor beside() const { return work_.narrow(0, at_.transform, work_.numel() - at_.transform); }

  /// This rank's pieces by the member that has the whole; what it sends that does not stay here.
  std::vector<Tensor> to_members() const { return messages(at_.to, true); }
  /// The pieces of other members whose whole is here.
  std::vector<Tensor> from_members() const { return messages(at_.from, false); }

  void assemble() const { each_piece(true); }
  void take_apart() const { each_piece(false); }

 private:
  Tensor values(int64_t at, int64_t count) const {
    return work_.narrow(0, at, count * size_of(type_)).view(scalar_type(type_));
  }

  std::vector<Tensor> messages(const std::vector<int64_t>& at, bool own) const {
    std::vector<Tensor> all;
    for (int m = 0; m < parts_.members; ++m)
      all.push_back(values(at[static_cast<size_t>(m)], m == parts_.index ? 0
                                                       : own             ? parts_.elements(parts_.index, m)
                                                                         : parts_.elements(m, parts_.index)));
    return all;
  }

  /// Copies the pieces of this rank's matrices to their places in them, or back.
  void each_piece(bool into) const {
    if (parts_.members == 1) return;  // its part is the whole
    for (int m = 0; m < parts_.members; ++m) {
      int64_t next = at_.from[static_cast<size_t>(m)];
      const auto& pieces = parts_.pieces[static_cast<size_t>(m)];
      for (size_t i = 0; i < pieces.size(); ++i) {
        if (parts_.owner[static_cast<size_t>(pieces[i].param)] != parts_.index) continue;
        const int64_t from = m == parts_.index ? at_.own[i] : next;
        next += pieces[i].count() * size_of(type_);
        copy(pieces[i], values(from, pieces[i].count()), into);
      }
    }
  }

  /// A piece lies in runs of `width` in the whole, the first and the last of which it may have a part of.
  void copy(const plan::MatrixParts::Piece& piece, const Tensor& flat, bool into) const {
    const Tensor all = whole(piece.param);
    const auto between = [into](const Tensor& there, const Tensor& here) {
      into ? there.copy_(here) : here.copy_(there);
    };
    for (int64_t e = piece.begin; e < piece.end;) {
      const int64_t row = e / piece.width, inside = e % piece.width;
      const int64_t rows = inside == 0 ? (piece.end - e) / piece.width : 0;
      const int64_t count = rows > 0 ? rows * piece.width : std::min(piece.end - e, piece.width - inside);
      const Tensor here = flat.narrow(0, e - piece.begin, count);
      const int64_t first = row * piece.inner + piece.first + inside;
      if (rows > 0)
        between(all.as_strided({rows, piece.width}, {piece.inner, 1}, all.storage_offset() + first),
                here.view({rows, piece.width}));
      else
        between(all.narrow(0, first, count), here);
      e += count;
    }
  }

  const plan::UnitSpec& unit_;
  const plan::MatrixParts& parts_;
  const DType type_;
  const plan::MatrixWork at_;
  const Tensor work_;
};

/// The sums of a round: of each buffer, in double as this rank adds them, and in fp32 as ranks exchange them.
struct RoundSums {
  std::vector<Tensor> parts, sums;
};

/// Slices that a step updates, and the sums over their tensors. Gradients of 16 bits are widened a chunk at a time. A device
/// takes whole slices, one after the other, as they are.
class SliceUpdates {
 public:
  SliceUpdates(const net::UnitUpdate& update, const net::StepControl& control, ElementBytes bytes, Workers* workers)
      : update_(update), control_(control), bytes_(bytes), workers_(workers) {}

  /// `counted`: this rank counts the slice's elements in totals.
  void add(const net::Slice& slice, int buffer, bool counted) { slices_.push_back({slice, buffer, counted}); }
  bool on_device() const { return !slices_.empty() && slices_.front().slice.on_device; }
  /// Parts of totals that a device writes.
  int64_t total_parts() const {
    int64_t count = 0;
    for (const Updated& updated : slices_)
      if (updated.counted) count += div_up(updated.slice.count(), kUpdateChunk);
    return count;
  }

  /// One round of sums. `at`: for each slice the place of its tensor among the sums of its buffer.
  void round(int round, const RoundSums& of, const std::vector<int64_t>& at, const SumOver& sum) {
    each_slice([&](size_t i) {
      const Tensor& parts = of.parts[static_cast<size_t>(slices_[i].buffer)];
      if (parts.defined())
        each_chunk(slices_[i].slice, [&](const net::Slice& chunk) {
          update_.add_sums(chunk, control_, round, parts.mutable_data_ptr<double>() + at[i]);
        });
    });
    for (size_t b = 0; b < of.sums.size(); ++b) {
      if (!of.sums[b].defined()) continue;
      at::Tensor(of.sums[b]).copy_(of.parts[b]);
      if (sum) sum(static_cast<int>(b), of.sums[b]);
    }
    each_slice([&](size_t i) {
      const Tensor& sums = of.sums[static_cast<size_t>(slices_[i].buffer)];
      slices_[i].slice.sums.push_back(sums.defined() ? sums.mutable_data_ptr<float>() + at[i] : nullptr);
      update_.take_sums(slices_[i].slice, control_, round);
    });
  }

  /// The update of a buffer's matrices, whose slices are done then ([Note: whole matrices]).
  void run_whole(int buffer, const plan::UnitSpec& unit, const plan::MatrixParts& parts, const WholeUpdate& whole) {
    const DType type = bytes_.direction == size_of(DType::f32) ? DType::f32 : DType::bf16;
    WholeMatrices matrices(unit, parts, type, whole.work);
    const auto first = std::ranges::stable_partition(
        slices_, [&](const Updated& u) { return u.buffer != buffer || !u.slice.spec->whole; });
    std::vector<net::Slice> own;
    for (const Updated& updated : first) own.push_back(updated.slice);
    slices_.erase(first.begin(), first.end());
    for (size_t i = 0; i < own.size(); ++i) own[i].direction = matrices.own(i);
    const auto each_of_own = [&](const auto& act) {
      std::vector<net::Slice> chunks;
      for (const net::Slice& slice : own)
        if (slice.on_device)
          act(slice);
        else
          for (int64_t from = 0; from < slice.count(); from += kUpdateChunk)
            chunks.push_back(chunk_of(slice, from, bytes_));
      each(static_cast<int64_t>(chunks.size()), [&](size_t i) { widened(chunks[i], act); });
    };
    each_of_own([&](const net::Slice& slice) { update_.direct(slice, control_); });
    if (parts.members > 1) whole.exchange(buffer, matrices.to_members(), matrices.from_members());
    matrices.assemble();
    for (size_t p = 0; p < unit.params.size(); ++p)
      if (const Tensor matrix = matrices.whole(static_cast<int>(p)); matrix.defined())
        update_.transform(unit.params[p], matrix, matrices.beside());
    matrices.take_apart();
    if (parts.members > 1) whole.exchange(buffer, matrices.from_members(), matrices.to_members());
    each_of_own([&](const net::Slice& slice) { update_.update(slice, control_); });
  }

  /// The update itself. `parts`: of totals on a device; `totals`: where it adds them.
  void run(const Tensor& parts, double* totals) {
    if (on_device()) return run_on_device(parts, totals);
    if (update_.rounds() > 0)  // their sums are taken a tensor at a time too
      return each_slice([&](size_t i) {
        each_chunk(slices_[i].slice, [&](const net::Slice& chunk) { update_.update(chunk, control_); });
      });
    if (update_.totals()) return run_with_totals();
    std::vector<net::Slice> chunks;
    for (const auto& [slice, buffer, counted] : slices_) {
      if (!workers_ && !slice.half_grad) {
        update_.update(slice, control_);
        continue;
      }
      for (int64_t from = 0; from < slice.count(); from += kUpdateChunk)
        chunks.push_back(chunk_of(slice, from, bytes_));
    }
    const auto one = [&](int i) {
      widened(chunks[static_cast<size_t>(i)], [&](const net::Slice& c) { update_.update(c, control_); });
    };
    if (workers_) return workers_->run(static_cast<int>(chunks.size()), one);
    for (int i = 0; i < static_cast<int>(chunks.size()); ++i) one(i);
  }

  const net::Totals& totals() const { return totals_; }

 private:
  struct Updated {
    net::Slice slice;
    int buffer;
    bool counted;
  };

  void run_on_device(const Tensor& parts, double* totals) {
    int64_t next = 0;
    for (Updated& updated : slices_) {
      net::Slice& slice = updated.slice;
      if (parts.defined() && updated.counted) {
        slice.totals = reinterpret_cast<net::Totals*>(parts.mutable_data_ptr<double>()) + next;
        next += div_up(slice.count(), kUpdateChunk);
      }
      update_.update(slice, control_);
    }
    if (next > 0) ops::backend(true).add_totals(totals, parts.const_data_ptr<double>(), next);
  }

  /// Chunks are the same wherever updates run, and their parts are added in order: so the totals have the same bits.
  void run_with_totals() {
    std::vector<net::Slice> chunks;
    std::vector<bool> counted;
    for (const Updated& updated : slices_)
      for (int64_t from = 0; from < updated.slice.count(); from += kUpdateChunk) {
        chunks.push_back(chunk_of(updated.slice, from, bytes_));
        counted.push_back(updated.counted);
      }
    std::vector<net::Totals> parts(chunks.size(), net::Totals{});
    each(static_cast<int64_t>(chunks.size()), [&](size_t i) {
      chunks[i].totals = &parts[i];
      widened(chunks[i], [&](const net::Slice& chunk) { update_.update(chunk, control_); });
    });
    for (size_t i = 0; i < parts.size(); ++i)
      for (size_t t = 0; t < totals_.size(); ++t) totals_[t] += counted[i] ? parts[i][t] : 0;
  }

  /// Several at once, each by one thread.
  template <class One>
  void each(int64_t count, const One& one) {
    if (workers_) return workers_->run(static_cast<int>(count), [&](int i) { one(static_cast<size_t>(i)); });
    at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) one(static_cast<size_t>(i));
    });
  }
  template <class One>
  void each_slice(const One& one) {
    if (on_device())
      for (size_t i = 0; i < slices_.size(); ++i) one(i);
    else
      each(static_cast<int64_t>(slices_.size()), one);
  }

  template <class Each>
  void each_chunk(const net::Slice& slice, const Each& each) const {
    if (slice.on_device) return each(slice);
    for (int64_t from = 0; from < slice.count(); from += kUpdateChunk) widened(chunk_of(slice, from, bytes_), each);
  }

  template <class Each>
  static void widened(net::Slice chunk, const Each& each) {
    if (chunk.half_grad) {
      float* values = ops::half_scratch(0, kUpdateChunk);
      ops::widen(values, chunk.half_grad, chunk.half_type, chunk.count());
      chunk.grad = values, chunk.half_grad = nullptr;
    }
    each(chunk);
  }

  const net::UnitUpdate& update_;
  const net::StepControl& control_;
  const ElementBytes bytes_;
  Workers* workers_;
  std::vector<Updated> slices_;
  net::Totals totals_ = {};
};

}  // namespace

void update_unit(Store& store, int u, const net::UnitUpdate& update, const net::StepControl& control, Staged staged,
                 Workers* workers, const SumOver& sum, const WholeUpdate& whole) {
  const plan::UnitSpec& spec = store.spec(u);
  const int64_t master_bytes = plan::master_bytes(store.master_form());
  for (const Tensor& used : {store.param(u), store.state_buffer(u), store.grad(u), whole.work})
    if (workers && used.defined())
      device::host_uses(used.const_data_ptr(), static_cast<int64_t>(used.nbytes()), /*writes=*/true);
  SliceUpdates updates(update, control, {master_bytes, size_of(store.matrix_type())}, workers);
  std::vector<const plan::StateLayout::Range*> ranges;
  for (const auto& range : store.states(u).ranges) {
    if (!range.updated || !spec.params[range.param].trainable) continue;
    updates.add(store.slice(u, range, staged), range.buffer, store.is_primary(u, range.buffer));
    ranges.push_back(&range);
  }
  const auto buffers = store.layout(u).buffers.size();
  std::vector<std::vector<int64_t>> place(static_cast<size_t>(update.rounds())), counts = place;
  int64_t values = 0;
  for (int round = 0; round < update.rounds(); ++round) {
    place[round].resize(spec.params.size());  // of each tensor among the sums of its buffer
    for (const plan::Buffer& buffer : store.layout(u).buffers) {
      int64_t& count = counts[round].emplace_back(0);
      for (const int p : buffer.params) place[round][p] = count, count += update.sums(spec.params[p], round);
      values += round_up(count, int64_t{2});  // doubles begin at multiples of eight bytes
    }
  }
  const int64_t parts = update.totals() && updates.on_device() ? 2 * updates.total_parts() : 0;
  SumMemory memory(updates.on_device(), values * 12 + parts * 8);
  for (int round = 0; round < update.rounds(); ++round) {
    RoundSums sums;
    for (size_t b = 0; b < buffers; ++b) {
      const int64_t count = counts[round][b], taken = round_up(count, int64_t{2});
      const Tensor in_double = memory.take(taken, at::kDouble), in_floats = memory.take(taken, at::kFloat);
      sums.parts.push_back(count > 0 ? in_double.narrow(0, 0, count) : Tensor());
      sums.sums.push_back(count > 0 ? in_floats.narrow(0, 0, count) : Tensor());
    }
    std::vector<int64_t> at;
    for (const auto* range : ranges) at.push_back(place[round][range->param]);
    updates.round(round, sums, at, sum);
  }
  for (size_t b = 0; whole.parts && b < whole.parts->size(); ++b)
    if (const plan::MatrixParts& matrices = (*whole.parts)[b]; !matrices.empty())
      updates.run_whole(static_cast<int>(b), spec, matrices, whole);
  updates.run(memory.take(parts, at::kDouble), parts > 0 ? store.device_totals(u) : nullptr);
  store.add_totals(u, updates.totals());
}

}  // namespace tessera::engine
