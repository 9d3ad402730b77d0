#include "tessera/ops/target.h"

#include <utility>

namespace tessera::ops {

namespace {

std::optional<Target>& of_thread() {
  static thread_local std::optional<Target> target;
  return target;
}

}  // namespace

const std::optional<Target>& meta_target() { return of_thread(); }

TargetScope::TargetScope(std::optional<Target> target) : before_(std::exchange(of_thread(), target)) {}
TargetScope::~TargetScope() { of_thread() = before_; }

}  // namespace tessera::ops
