#pragma once
// A device that has failed for good, as a GPU after an illegal address: all calls fail from then on, so whatever a process
// ends by, this was the cause.
//
//   const UnderWay told([&] { return progress.text(); });        // what it is at, while that can be asked
//   catch (const std::exception&) { if (const auto failed = failure()) end(*failed); }
#include <functional>
#include <list>
#include <optional>
#include <string>

#include "tessera/base/check.h"

namespace tessera::device {

/// Whether the device of this process has. False on a CPU.
bool has_failed();

/// The error that ends the process then (Exit::rank_lost).
class Failure : public UserError {
 public:
  explicit Failure(const std::string& account);
  /// "the GPU failed: an illegal memory access was encountered (cudaErrorIllegalAddress), Xid 31 (...), in aten::mm; ...":
  /// what() without its hint.
  const std::string& account() const { return account_; }

 private:
  std::string account_;
};

/// Empty: the device works, or there is none. Else CUDA's name for what happened, the driver's Xid where it tells one within
/// half a second (watch_driver()), with TESSERA_SERIAL=1 the operator; then `where`, or if that is empty what was under way on
/// the device. Once: the driver tells an error once.
std::optional<Failure> failure(const std::string& where = "");

/// While it lives, `text` says what is under way on the device, without a call to it; empty: nothing. Any thread may call it.
/// Of one that goes after the device has failed, as when an exception leaves its owner, the last words are kept.
class UnderWay {
 public:
  explicit UnderWay(std::function<std::string()> text);
  ~UnderWay();
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;

 private:
  std::list<std::function<std::string()>>::iterator text_;
};

/// "backward blocks.3 (micro-batch 0); swap of experts 0 and 1": of all; empty: nothing is, or nothing says so.
std::string under_way();

}  // namespace tessera::device
