#include "tessera/net/adapters.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/base/random.h"

namespace tessera::net {

namespace {

/// The runs of a space's rows on this rank; a sample may begin on another rank.
std::vector<ops::Dropout::Run> runs_of(const Space& space, const std::vector<uint64_t>& samples) {
  const std::vector<int64_t> local = space.local_offsets();
  std::vector<ops::Dropout::Run> runs;
  for (size_t s = 0; s + 1 < local.size(); ++s)
    runs.push_back({local[s], local[s + 1], samples.at(s), std::max<int64_t>(space.begin - space.offsets[s], 0)});
  return runs;
}

}  // namespace

bool is_adapter_parameter(std::string_view name) {
  for (const char* ending : {kLoraA, kLoraB, kLoraMagnitude})
    if (name.ends_with(ending)) return true;
  if (name.ends_with(kLeft) || name.ends_with(kRight)) name.remove_suffix(2);
  return std::ranges::any_of(
      kChangeKinds, [&](const ChangeKind& kind) { return name.ends_with(kind.first) || name.ends_with(kind.second); });
}

namespace {

/// `drop` with the runs of a site's rows; of none of them without training.
ops::Dropout over_rows(ops::Dropout drop, const AdapterSettings& settings, std::string_view site, const Tokens& tokens,
                       const Space& space, int64_t rows, bool meta) {
  if (!drop.active() || (tokens.samples.empty() && !meta)) return {};
  drop.seed = settings.seed, drop.step = tokens.step;
  if (meta) return drop;
  const auto samples = static_cast<int64_t>(tokens.samples.size());
  if (rows == space.count()) {
    drop.runs = runs_of(space, tokens.samples);
  } else if (rows % samples == 0) {
    for (int64_t s = 0; s < samples; ++s)
      drop.runs.push_back({s * rows / samples, (s + 1) * rows / samples, tokens.samples[static_cast<size_t>(s)], 0});
  } else {
    throw InternalError("net.dropout", settings.prefix + std::string(site) + ": " + std::to_string(rows) +
                                           " rows belong to no samples");
  }
  return drop;
}

}  // namespace

ops::Dropout dropout_at(const AdapterSettings& settings, std::string_view site, const Tokens& tokens,
                        const Space& space, int64_t rows, bool meta) {
  return over_rows({.p = settings.dropout, .site = hash_text(settings.prefix + std::string(site))}, settings, site,
                   tokens, space, rows, meta);
}

ops::Dropout left_out_at(const AdapterSettings& settings, std::string_view site, const Tokens& tokens,
                         const Space& space, int64_t rows, bool meta) {
  return over_rows({.p = settings.rank_dropout,
                    .site = hash_text(settings.prefix + std::string(site) + " ranks"),
                    .alike = true,
                    .whole = settings.module_dropout},
                   settings, site, tokens, space, rows, meta);
}

}  // namespace tessera::net
