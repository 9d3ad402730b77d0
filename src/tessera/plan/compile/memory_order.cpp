// Waits of instructions whose device memory is taken at their place in the list.
#include <algorithm>

#include "tessera/plan/compile/compiler.h"

namespace tessera::plan {

void order_memory(Schedule& schedule) {
  int last = -1;  // instruction of the compute lane after which all memory is free that was freed so far
  for (int i = 0; i < static_cast<int>(schedule.list.size()); ++i) {
    Instruction& in = schedule.list[i];
    if (touches_activations(in)) last = i;
    if (!takes_memory(in) || last < 0) continue;
    const auto at = std::lower_bound(in.wait.begin(), in.wait.end(), last);
    if (at == in.wait.end() || *at != last) in.wait.insert(at, last);
  }
}

}  // namespace tessera::plan
