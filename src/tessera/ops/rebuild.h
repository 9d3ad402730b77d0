#pragma once
// Values that a graph does not keep, because they are cheap functions of what it keeps: results of norms, and sums.
// While a scope is open on a thread, the operators there offer how theirs are made again; who packs what a graph saves
// asks for a use of a value instead of holding it.
//
//   Rebuilds rebuilds(stays, site);               // from here on y = ops::modulated_norm(x, ...) offers y
//   std::unique_ptr<Rebuilds::Use> use = rebuilds.use(y);    // y can go: x stays
//   use->take();                                  // in the backward: the same bits, by the same kernels
//
// A value is made at its first use and goes with its last. It may be made from others that are made again (norm2's
// result from a sum, that from another sum): each counts its own uses, and only what is two such steps from a reader
// does not wait for its own readers, but is made twice.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/ops/tensor.h"

namespace tessera::ops {

class Rebuilds {
  class Value;

 public:
  using Make = std::function<at::Tensor(const std::vector<at::Tensor>& from)>;
  /// A tensor that must stay for values to be made from, and the site where that was offered.
  using Stays = std::function<void(const at::Tensor& tensor, const std::string& site)>;

  /// `stays` is told of each source when the first use is taken of what is made from it. `site`: where operators run
  /// now; it outlives this. One scope at a time on a thread.
  Rebuilds(Stays stays, const std::string& site);
  ~Rebuilds();
  Rebuilds(const Rebuilds&) = delete;
  Rebuilds& operator=(const Rebuilds&) = delete;

  /// Of this thread, null where graphs keep everything.
  static Rebuilds* current();

  /// An operator says how its result is made again: `make` of `from` (some may be undefined) gives the same bits. It
  /// must not communicate, and takes no more than its result.
  void offer(const at::Tensor& result, std::vector<at::Tensor> from, Make make);

  /// One use of a value, by whoever would have held `tensor`; given up unused when it is destroyed.
  class Use {
   public:
    Use(std::shared_ptr<Value> value, const at::Tensor& tensor);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    at::Tensor take();  ///< once

   private:
    std::shared_ptr<Value> value_;
    std::vector<int64_t> sizes_, strides_;
    int64_t offset_;
  };
  /// Null when nobody has offered `tensor`'s memory.
  std::unique_ptr<Use> use(const at::Tensor& tensor);

  /// Bytes that are read and written when all values in use are made once, and how many these are.
  int64_t moved() const { return moved_; }
  int values() const { return values_; }

 private:
  struct Source {
    at::Tensor tensor;
    std::shared_ptr<Value> value;  ///< instead of the tensor
  };
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  ///< so that its address is not another's meanwhile
    std::shared_ptr<Value> value;
  };
  std::shared_ptr<Value> find(const at::Tensor& tensor) const;
  void claim(Value& value);

  const Stays stays_;
  const std::string& site_;
  std::map<const c10::StorageImpl*, Entry> offered_;
  int64_t moved_ = 0;
  int values_ = 0;
};

}  // namespace tessera::ops
