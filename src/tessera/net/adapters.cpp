#include "tessera/net/adapters.h"

#include "tessera/base/check.h"
#include "tessera/base/random.h"

namespace tessera::net {

namespace {

/// Rows of the samples one after the other, as offsets say.
std::vector<ops::Dropout::Run> runs_of(const std::vector<int64_t>& offsets, const std::vector<uint64_t>& samples) {
  std::vector<ops::Dropout::Run> runs;
  for (size_t s = 0; s + 1 < offsets.size(); ++s) runs.push_back({offsets[s], offsets[s + 1], samples.at(s), 0});
  return runs;
}

/// Of the tokens that are here; a sample may begin on another rank.
std::vector<ops::Dropout::Run> token_runs(const Tokens& tokens) {
  auto runs = runs_of(tokens.local_offsets(), tokens.samples);
  for (size_t s = 0; s < runs.size(); ++s) runs[s].first = std::max<int64_t>(tokens.begin - tokens.offsets[s], 0);
  return runs;
}

bool rows_are(const std::vector<int64_t>& offsets, int64_t rows) { return !offsets.empty() && offsets.back() == rows; }

}  // namespace

ops::Dropout dropout_at(const AdapterSettings& settings, std::string_view site, const Tokens& tokens, int64_t rows,
                        bool meta) {
  if (settings.dropout <= 0 || (tokens.samples.empty() && !meta)) return {};
  ops::Dropout drop{.p = settings.dropout, .seed = settings.seed, .step = tokens.step};
  drop.site = hash_text(settings.prefix + std::string(site));
  if (meta) return drop;
  const auto samples = static_cast<int64_t>(tokens.samples.size());
  if (rows == tokens.count()) {
    drop.runs = token_runs(tokens);
  } else if (rows_are(tokens.context_offsets, rows)) {
    drop.runs = runs_of(tokens.context_offsets, tokens.samples);
  } else if (rows_are(tokens.image_offsets, rows)) {
    drop.runs = runs_of(tokens.image_offsets, tokens.samples);
  } else if (rows % samples == 0) {  // some rows for each sample: time, frames of sound
    for (int64_t s = 0; s < samples; ++s)
      drop.runs.push_back({s * rows / samples, (s + 1) * rows / samples, tokens.samples[static_cast<size_t>(s)], 0});
  } else {
    throw InternalError("net.dropout", settings.prefix + std::string(site) + ": " + std::to_string(rows) +
                                           " rows belong to no samples");
  }
  return drop;
}

}  // namespace tessera::net
