#include "tessera/models/common/initial.h"

#include <algorithm>

#include "tessera/base/random.h"

namespace tessera::models {

void draw_initial(Initial initial, uint64_t seed, const std::string& name, int64_t first, int64_t count, float* out) {
  const RandomKey key(seed, Purpose::init, hash_text(name));
  switch (initial.kind) {
    case Initial::Kind::constant:
      std::fill(out, out + count, static_cast<float>(initial.value));
      break;
    case Initial::Kind::uniform:
      for (int64_t i = 0; i < count; ++i)
        out[i] = static_cast<float>((2 * key.uniform(static_cast<uint64_t>(first + i)) - 1) * initial.value);
      break;
    case Initial::Kind::normal:
      key.normal(out, static_cast<uint64_t>(first), static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) out[i] *= static_cast<float>(initial.value);
      break;
  }
}

}  // namespace tessera::models
