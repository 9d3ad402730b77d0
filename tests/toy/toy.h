#pragma once
// A family of its own, as small as one can be that asks for everything: a joint sequence of text and video in two
// streams with weights of their own, joint attention, attention over time alone, linear attention and a convolution.
// Nothing outside this folder and the line that registers it knows of it.
//
//   models::add_family(toy::family());
//   auto model = models::make_denoiser({.family = "toy", .config_text = R"({"dim": 32, "heads": 4})"});
#include "tessera/models/registry.h"

namespace tessera::toy {

models::Family family();

}  // namespace tessera::toy
