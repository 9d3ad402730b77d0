#include "tessera/engine/frozen_site.h"

#include "tessera/ops/lora.h"

namespace tessera::engine {

Tensor frozen_site(Store& store, int unit, std::string_view site, const Tensor& x, ops::WeightSite* bias,
                   const net::Tokens& tokens, const net::AdapterSettings* adapters, bool gelu) {
  const auto named = [&](const char* ending) { return std::string(site) + ending; };
  ops::WeightSite& weight = store.site(unit, named(".weight"));
  ops::WeightSite* a = adapters ? store.find(unit, named(net::kLoraA)) : nullptr;
  if (!a) return ops::frozen_linear(x, weight, bias, nullptr, store.anchor(unit), gelu);
  const ops::Adapter pair{.a = a,
                          .b = &store.site(unit, named(net::kLoraB)),
                          .magnitude = store.find(unit, named(net::kLoraMagnitude)),
                          .scale = adapters->scale,
                          .dropout = net::dropout_at(*adapters, site, tokens, x.size(0), x.is_meta())};
  return ops::frozen_linear(x, weight, bias, &pair, store.anchor(unit), gelu);
}

}  // namespace tessera::engine
