#pragma once
// What operators of a thread are asked beside their operands: which chip meta tensors stand for, what attention takes, which
// site they run at, and where weight gradients and recomputed results go. One session a thread: a node of autograd has its
// operands alone, and runs on the thread that asked for its backward. Contexts of the engine (engine/unit_run.h) tell it the
// site; the rest is set for a time by a scope of its own.
//
//   const TargetScope scope(target("sm_90", "plan.profile"));
//   const Tensor y = attention(q, k, v, ...);        // on meta: allocates what LibTorch's kernel allocates on an H200
//
// [Note: memory of a target] On meta tensors the functions of ops/aten allocate what they allocate on a GPU: LibTorch's
// operators have meta forms that allocate their results, and what a kernel takes beside these is allocated by us. Of what is
// used in training that is attention alone, flash's or cuDNN's: products have their workspace once for all (base/target.h), and norms,
// sums and elementwise kernels take none.
//
// The same notes what attention takes, on meta tensors as where it computes:
//
//   plan::AttentionUse use;
//   const AttentionScope scope(plan::Attention::cudnn, &use);
//
// Late weight gradients wait until the gradient of their input is under way to other ranks, to be computed meanwhile:
//
//   const LateScope scope(Works{});           // for one backward
//   Tensor y = linear(x, w, b, anchor, type, When::late);
//   ...                                       // backward: the linear returns dx and leaves its weight gradients here
//   start_sending(dx);
//   session().run_late();                     // by the operator that made x
//
// The numbers are those of a linear that computes them at once. A linear whose input has no such operator must not be
// late; what is left at the end of the backward is computed there.
#include <array>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/target.h"
#include "tessera/ops/weight.h"
#include "tessera/plan/attention.h"

namespace tessera::ops {

class DeferredGradients;
class Rebuilds;       // rebuild.h
struct ProductShape;  // products.h

/// What attention asks for on a GPU (plan/attention.h), and who asks what it takes.
struct AttentionAsked {
  plan::Attention kernel = plan::Attention::flash;
  plan::AttentionUse* use = nullptr;
};

/// FLOPs of the matrix products of linears (2 for each multiply-add), on meta tensors too; never decrease: what is computed
/// while ranks exchange something is measured by their difference.
struct ProductFlops {
  double results = 0;       ///< of results and of gradients of inputs
  double weight_grads = 0;  ///< of gradients of weights
};

using Works = std::vector<std::function<void()>>;
/// Does all of it in order, and frees what each held as soon as it is done.
void run_works(Works& works);

/// The input that was read last: its storage, its place there and its version.
class LastInput {
 public:
  bool is(const at::Tensor& x) const;
  explicit LastInput(const at::Tensor& x = {});

 private:
  c10::weak_intrusive_ptr<c10::StorageImpl> of_;
  std::array<int64_t, 4> place_ = {};
};

/// What the weight gradients of all readers of an input share: the first of them makes it, the last one frees it.
template <class T>
struct SharedByReaders : torch::CustomClassHolder {
  int readers = 0;
  T made;
};
struct Fp8Columns : SharedByReaders<Fp8Lines> {};     ///< the codes of its columns
struct RoundedRows : SharedByReaders<at::Tensor> {};  ///< an fp32 input rounded to bf16

/// What operators that read an input one after the other make of it once: `Rows` for their products, and what their weight
/// gradients share. Another input, or clear(), ends it.
template <class Rows, class Shared>
class OfLastInput {
 public:
  /// The same for the weight gradients of all linears that read x; counts one more of them.
  c10::intrusive_ptr<Shared> readers(const at::Tensor& x) {
    take(x);
    if (!shared_) shared_ = c10::make_intrusive<Shared>();
    ++shared_->readers;
    return shared_;
  }
  void clear() { *this = OfLastInput(); }

 protected:
  OfLastInput() = default;
  OfLastInput(const at::Tensor& x, Rows rows, bool given) : input_(x), rows_(std::move(rows)), given_(given) {}
  void take(const at::Tensor& x) {
    if (!input_.is(x)) *this = OfLastInput(x, {}, /*given=*/false);
  }

  LastInput input_;
  Rows rows_;
  bool given_ = false;  ///< what made the input has made them as well

 private:
  c10::intrusive_ptr<Shared> shared_;
};

/// The codes of an input that several linears read one after the other (q, k and v).
class Fp8Inputs : public OfLastInput<Fp8Lines, Fp8Columns> {
 public:
  const Fp8Lines& rows(const at::Tensor& x);  ///< in e4m3
};

/// An fp32 input of several linears with bf16 weights that read it one after the other (a text's k and v).
class RoundedInput : public OfLastInput<at::Tensor, RoundedRows> {
 public:
  RoundedInput() = default;
  /// What made x has rounded it as well.
  RoundedInput(const at::Tensor& x, const at::Tensor& rounded) : OfLastInput(x, rounded, /*given=*/true) {}
  const at::Tensor& rows(const at::Tensor& x);
  at::Tensor known() const { return rows_; }  ///< undefined: nobody has asked
  /// x rounded by what made it, which a graph can keep in place of x; or undefined.
  at::Tensor given(const at::Tensor& x) const { return given_ && input_.is(x) ? rows_ : at::Tensor(); }
};

/// What quantising an operand of products in 8 bits loses: of `kFp8Counts` numbers those of e4m3, then those of e5m2. Values;
/// those other than zero whose code is zero; those beyond the format, which are clipped.
inline constexpr int kFp8Counts = 6;

/// Sums of groups [groups, width] that a kernel has left for the gradient of a weight, [width] fp32 ([Note: sums of columns] in
/// fused.h); `add` false: that has no values yet.
struct LeftSums {
  at::Tensor to, groups;
  bool add = true;
};
/// Adds them all, by one launch for every kMostGroupSums, and empties the list.
void add_left_sums(std::vector<LeftSums>& sums);

struct Session {
  std::optional<Target> target;  ///< what meta tensors stand for; empty: tensors of the process's device
  AttentionAsked attention;
  std::string site;  ///< of the operators that follow
  /// Linears of a 16-bit stream multiply in 8 bits, and share the codes of their inputs here; null: they do not.
  Fp8Inputs* fp8 = nullptr;
  RoundedInput* rounded = nullptr;  ///< where linears find their input rounded; null: each rounds it
  double* fp8_counts =
      nullptr;  ///< kFp8Counts of them, where the operands lie, to which quantising adds; null: it counts nothing
  ProductFlops products;
  std::set<std::string>* fp8_sites = nullptr;        ///< where sites that multiply in 8 bits are noted; null: nowhere
  std::set<ProductShape>* asked_products = nullptr;  ///< where products of meta tensors are noted; null: nowhere
  Rebuilds* rebuilds = nullptr;                      ///< null: graphs keep everything
  DeferredGradients* deferred = nullptr;             ///< null: backwards add gradients at once
  std::optional<Works> late;                         ///< empty: none are late
  std::optional<std::vector<LeftSums>> sums = {};    ///< of a unit's backward, added at its end; empty: each at once

  /// Takes a late gradient; computes it at once where none are.
  void later(std::function<void()> work) { late ? late->push_back(std::move(work)) : work(); }
  /// Computes what was left for later.
  void run_late() {
    if (late) run_works(*late);
  }
  /// Adds what kernels have left.
  void add_sums() {
    if (sums) add_left_sums(*sums);
  }
  /// Before anything else is written to a gradient, what was left for it is added.
  void settle(const at::Tensor& gradient) {
    if (sums && gradient.defined())
      for (const LeftSums& left : *sums)
        if (left.to.is_alias_of(gradient) && left.to.storage_offset() == gradient.storage_offset()) return add_sums();
  }
};
/// The calling thread's.
Session& session();

/// While it exists, a member of this thread's session is another. Scopes nest.
template <auto kMember>
class SessionScope {
 public:
  using Value = std::remove_reference_t<decltype(std::declval<Session&>().*kMember)>;

  template <class... Parts>
  explicit SessionScope(Parts&&... value)
      : before_(std::exchange(session().*kMember, Value{std::forward<Parts>(value)...})) {}
  ~SessionScope() { session().*kMember = std::move(before_); }
  SessionScope(const SessionScope&) = delete;
  SessionScope& operator=(const SessionScope&) = delete;

 private:
  Value before_;
};
using TargetScope = SessionScope<&Session::target>;
using AttentionScope = SessionScope<&Session::attention>;
using LateScope = SessionScope<&Session::late>;
using SumsScope = SessionScope<&Session::sums>;
using Fp8SitesScope = SessionScope<&Session::fp8_sites>;
using Fp8Scope = SessionScope<&Session::fp8>;
using RoundedScope = SessionScope<&Session::rounded>;
using AskedProductsScope = SessionScope<&Session::asked_products>;
using Fp8CountScope = SessionScope<&Session::fp8_counts>;

/// What keeps the device of this process from attention by cuDNN; empty: nothing.
std::string why_no_cudnn_attention();

/// Computes attention of these shapes forward and backward once, so that cuDNN has compiled what a step calls: on this thread,
/// whose own its plans are.
void compile_attention(const plan::AttentionUse& use, at::ScalarType type, at::Device device);

/// Deferred weight gradients: a pipeline stage can send the gradient of its input first (zero bubble). While a scope is open
/// on a thread, operators there queue their weight-gradient products instead of running them.
///
///   DeferredGradients deferred(store.trained_sites(unit));
///   { DeferredGradients::Scope scope(deferred); run_backward(...); }  // computes no weight gradients
///   store.bind_grad(unit, slot, fresh);
///   deferred.run();                                                   // computes them
///
/// Gradients of a first micro-batch are bit for bit those of one backward. Small gradients (open) are summed over the rows
/// of one micro-batch before they are added to those of others; one backward adds row by row.
class DeferredGradients {
 public:
  /// `trained`: the sites that need gradients; they must outlive this object.
  explicit DeferredGradients(const std::vector<WeightSite*>& trained) : trained_(trained.begin(), trained.end()) {}

  /// Adds everything to the sites' current gradients, in the order of the backward, and empties the queue.
  void run() { run_works(work_); }

  bool wants(const WeightSite& site) const { return trained_.contains(&site); }
  void add(std::function<void()> work) { work_.push_back(std::move(work)); }
  /// Gives the site its own memory to write to at once, which run() adds later. For small gradients.
  void open(WeightSite& site);

  class Scope {
   public:
    explicit Scope(DeferredGradients& deferred) : deferred_(deferred), opened_(&deferred) {}
    ~Scope() { deferred_.close(); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    DeferredGradients& deferred_;
    const SessionScope<&Session::deferred> opened_;
  };

 private:
  void close();

  std::set<const WeightSite*> trained_;
  std::vector<WeightSite*> opened_;
  Works work_;
};

}  // namespace tessera::ops
