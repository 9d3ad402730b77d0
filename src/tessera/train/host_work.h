#pragma once
// Host work of one rank between collectives (writing files, decoding samples). A failure there must not leave the other
// ranks waiting in a collective, and need not end the run.
//
//   HostWork work;
//   for (...) { all_gather(...); work.run([&] { write(...); }); }
//   work.finish();                                           // throws what failed first
#include <exception>

namespace tessera::train {

class HostWork {
 public:
  /// Nothing more is run after what failed.
  template <class Act>
  void run(const Act& act) {
    if (failure_) return;
    try {
      act();
    } catch (...) {
      failure_ = std::current_exception();
    }
  }
  void finish() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::exception_ptr failure_;
};

}  // namespace tessera::train
