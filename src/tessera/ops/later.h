#pragma once
// Gradients of weights that a backward leaves for later, so that a pipeline can hand on the gradient of its input first
// (zero bubble). While a scope is open on a thread, operators there leave a product to be run instead of adding it.
//
//   Later later(store.trained_sites(unit));
//   { Later::Scope scope(later); run_backward(...); }     // no gradient of a weight is touched
//   store.bind_grad(unit, slot, fresh);
//   later.run();                                           // now they are
//
// A first micro-batch's have the bits of a backward at once. What is small (open) is summed over the rows of one
// micro-batch before it is added to those of others; a backward at once adds row by row.
#include <functional>
#include <set>
#include <vector>

#include "tessera/ops/weight.h"

namespace tessera::ops {

class Later {
 public:
  /// `trained`: the sites whose gradients are wanted; they outlive this.
  explicit Later(const std::vector<WeightSite*>& trained) : trained_(trained.begin(), trained.end()) {}

  /// Adds everything to the gradients that the sites have now, in the order of the backward; then holds nothing.
  void run();

  bool wants(const WeightSite& site) const { return trained_.contains(&site); }
  void add(std::function<void()> work) { work_.push_back(std::move(work)); }
  /// Gives the site memory of its own to write to at once, which run() adds. For what is small.
  void open(WeightSite& site);

  class Scope {
   public:
    explicit Scope(Later& later);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Later& later_;
  };
  /// Of this thread, null where backwards add at once.
  static Later* current();

 private:
  std::set<const WeightSite*> trained_;
  std::vector<WeightSite*> opened_;
  std::vector<std::function<void()>> work_;
};

}  // namespace tessera::ops
