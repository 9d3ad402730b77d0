#include "tessera/engine/frozen_site.h"

#include "tessera/ops/lora.h"

namespace tessera::engine {

namespace {

ops::Dropout dropout_of(const net::AdapterSettings& adapters, std::string_view site, const net::Tokens& tokens,
                        const Tensor& x, const InputPart& part) {
  if (adapters.dropout <= 0) return {};
  net::Space rows = tokens.space(part.space);
  if (part.rows) rows.begin = part.rows->begin, rows.end = part.rows->end;
  ops::Dropout drop = net::dropout_at(adapters, site, tokens, rows, x.size(0), x.is_meta());
  drop.width = part.width, drop.first_column = part.first_column;
  return drop;
}

}  // namespace

Tensor frozen_site(Store& store, int unit, std::string_view site, const Tensor& x, ops::WeightSite* bias,
                   const net::Tokens& tokens, const net::AdapterSettings* adapters, bool gelu, at::ScalarType type,
                   const InputPart& part, const Tensor* known) {
  const auto named = [&](const char* ending) { return std::string(site) + ending; };
  ops::WeightSite& weight = store.site(unit, named(".weight"));
  ops::WeightSite* a = adapters ? store.find(unit, named(net::kLoraA)) : nullptr;
  if (!a) return ops::frozen_linear(x, weight, bias, nullptr, store.anchor(unit), gelu, type, known);
  const ops::Adapter pair{.a = a,
                          .b = &store.site(unit, named(net::kLoraB)),
                          .magnitude = store.find(unit, named(net::kLoraMagnitude)),
                          .scale = adapters->scale,
                          .dropout = dropout_of(*adapters, site, tokens, x, part)};
  return ops::frozen_linear(x, weight, bias, &pair, store.anchor(unit), gelu, type, known);
}

}  // namespace tessera::engine
