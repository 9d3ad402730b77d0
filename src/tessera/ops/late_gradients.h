#pragma once
// Weight gradients that wait until the gradient of their input is under way to other ranks, to be computed meanwhile.
//
//   LateGradients late;                       // for one backward, on this thread
//   Tensor y = linear(x, w, b, anchor, type, When::late);
//   ...                                       // backward: the linear returns dx and adds its weight gradients here
//   start_sending(dx);
//   LateGradients::run();                     // by the operator that made x
//
// The numbers are those of a linear that computes them at once. A linear whose input has no such operator must not be
// late; what is left at the end of the backward is computed there.
#include <functional>
#include <vector>

namespace tessera::ops {

class LateGradients {
 public:
  LateGradients();
  ~LateGradients();
  LateGradients(const LateGradients&) = delete;
  LateGradients& operator=(const LateGradients&) = delete;

  /// Computes what was added on this thread, in order, and frees what each held. Does nothing where there is none.
  static void run();
  /// Takes `work` for later; computes it at once where no LateGradients is on this thread.
  static void add(std::function<void()> work);

 private:
  std::vector<std::function<void()>> work_;
};

}  // namespace tessera::ops
