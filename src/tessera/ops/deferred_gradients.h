#pragma once
// Deferred weight gradients: a pipeline stage can send the gradient of its input first (zero bubble). While a scope is
// open on a thread, operators there queue their weight-gradient products instead of running them.
//
//   DeferredGradients deferred(store.trained_sites(unit));
//   { DeferredGradients::Scope scope(deferred); run_backward(...); }  // computes no weight gradients
//   store.bind_grad(unit, slot, fresh);
//   deferred.run();                                                   // computes them
//
// Gradients of a first micro-batch are bit for bit those of one backward. Small gradients (open) are summed over the rows
// of one micro-batch before they are added to those of others; one backward adds row by row.
#include <functional>
#include <set>
#include <vector>

#include "tessera/ops/weight.h"

namespace tessera::ops {

class DeferredGradients {
 public:
  /// `trained`: the sites that need gradients; they must outlive this object.
  explicit DeferredGradients(const std::vector<WeightSite*>& trained) : trained_(trained.begin(), trained.end()) {}

  /// Adds everything to the sites' current gradients, in the order of the backward, and empties the queue.
  void run();

  bool wants(const WeightSite& site) const { return trained_.contains(&site); }
  void add(std::function<void()> work) { work_.push_back(std::move(work)); }
  /// Gives the site its own memory to write to at once, which run() adds later. For small gradients.
  void open(WeightSite& site);

  class Scope {
   public:
    explicit Scope(DeferredGradients& deferred);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    DeferredGradients& deferred_;
  };
  /// The open scope's queue of this thread; null if backwards add gradients at once.
  static DeferredGradients* current();

 private:
  std::set<const WeightSite*> trained_;
  std::vector<WeightSite*> opened_;
  std::vector<std::function<void()>> work_;
};

}  // namespace tessera::ops
