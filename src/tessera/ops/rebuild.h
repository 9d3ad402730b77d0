#pragma once
// Selective recompute: results of norms and sums that a graph does not keep, because they are cheap functions of what
// it keeps. While a scope is open on a thread, operators there register how to recompute their results; the code that
// packs a graph's saved tensors requests a use of a value instead of holding it.
//
//   Rebuilds rebuilds(keep);                      // from here on y = ops::modulated_norm(x, ...) registers y
//   std::unique_ptr<Rebuilds::Use> use = rebuilds.use(y);    // y can be freed: x is kept
//   use->take();                                  // in the backward: the same bits, from the same kernels
//
// A value is recomputed at its first use and freed after its last. Its sources may be recomputed values too (norm2's
// result from a sum, that from another sum). Each value counts its own uses; only a value two or more such steps away
// from a reader is recomputed twice instead of being kept for its own readers.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/ops/session.h"

namespace tessera::ops {

class Rebuilds {
  class Value;

 public:
  using Make = std::function<at::Tensor(const std::vector<at::Tensor>& from)>;
  /// Called with a tensor that must be kept as a source, and the site that registered it.
  using Keep = std::function<void(const at::Tensor& tensor, const std::string& site)>;

  /// `keep` is called for each source at the first use of a value made from it. Values belong to the session's site.
  explicit Rebuilds(Keep keep) : keep_(std::move(keep)), open_(this) {}

  /// Registers how to recompute an operator's result: `make`, applied to `from` (some may be undefined), gives the same
  /// bits. It must not communicate and allocates only its result.
  void register_value(const at::Tensor& result, std::vector<at::Tensor> from, Make make);

  /// One use of a value, in place of holding `tensor`; destroying it unused gives it up.
  class Use {
   public:
    Use(std::shared_ptr<Value> value, const at::Tensor& tensor);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    at::Tensor take();  ///< at most once

   private:
    std::shared_ptr<Value> value_;
    std::vector<int64_t> sizes_, strides_;
    int64_t offset_;
  };
  /// Null if `tensor`'s storage was not registered.
  std::unique_ptr<Use> use(const at::Tensor& tensor);

  /// Bytes read and written if every value in use is recomputed once, and the number of these values.
  int64_t moved() const { return moved_; }
  int values() const { return values_; }

 private:
  struct Source {
    at::Tensor tensor;
    std::shared_ptr<Value> value;  ///< in place of the tensor
  };
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  ///< keeps the address from being reused
    std::shared_ptr<Value> value;
  };
  std::shared_ptr<Value> find(const at::Tensor& tensor) const;
  void claim(Value& value);

  const Keep keep_;
  const SessionScope<&Session::rebuilds> open_;
  std::map<const c10::StorageImpl*, Entry> registered_;
  int64_t moved_ = 0;
  int values_ = 0;
};

}  // namespace tessera::ops
