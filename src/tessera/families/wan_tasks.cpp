#include "tessera/families/wan_tasks.h"

namespace tessera::families {

namespace {

// Frames, steps, rate, shift and guidance are those of the releases' configurations.
constexpr WanTask kTasks[] = {
    {"t2v-1.3B", "wan2.1-t2v-1.3b", "t2v", false, kWan21Vae, 81, 50, 16, 5, 5, 832, 480},
    {"t2v-14B", "wan2.1-t2v-14b", "t2v", false, kWan21Vae, 81, 50, 16, 5, 5, 1280, 720},
    {"t2i-14B", "wan2.1-t2v-14b", "t2v", false, kWan21Vae, 1, 50, 16, 5, 5, 1280, 720},
    {"i2v-14B", "wan2.1-i2v-14b-720p", "i2v", false, kWan21Vae, 81, 40, 16, 5, 5, 1280, 720},
    {"flf2v-14B", "wan2.1-flf2v-14b-720p", "flf2v", false, kWan21Vae, 81, 50, 16, 16, 5, 1280, 720},
    {"t2v-A14B", "wan2.2-t2v-a14b", "t2v", true, kWan21Vae, 81, 40, 16, 12, 3, 1280, 720},
    {"i2v-A14B", "wan2.2-i2v-a14b", "i2v", true, kWan21Vae, 81, 40, 16, 5, 3.5, 1280, 720},
    {"ti2v-5B", "wan2.2-ti2v-5b", "ti2v", false, kWan22Vae, 121, 50, 24, 5, 5, 1280, 704},
    {"s2v-14B", "wan2.2-s2v-14b", "s2v", false, kWan21Vae, 80, 40, 16, 3, 4.5, 1280, 720},
    {"animate-14B", "wan2.2-animate-14b", "animate", false, kWan21Vae, 77, 20, 30, 5, 1, 1280, 720},
    {"vace-1.3B", "wan2.1-vace-1.3b", "vace", false, kWan21Vae, 81, 50, 16, 16, 5, 832, 480},
    {"vace-14B", "wan2.1-vace-14b", "vace", false, kWan21Vae, 81, 50, 16, 16, 5, 1280, 720},
};

}  // namespace

std::span<const WanTask> wan_tasks() { return kTasks; }

}  // namespace tessera::families
