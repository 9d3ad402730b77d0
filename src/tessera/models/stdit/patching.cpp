#include "tessera/models/stdit/patching.h"

namespace tessera::models::stdit {

using at::Tensor;

namespace {

int64_t patches_along(int64_t size, int64_t patch) { return (size + patch - 1) / patch; }

/// Visits each place of a patch with its values in the latent and in `rows` [f, h, w, ...], [C, F, n, m] of both.
/// `at_place` takes a place out of the rows: [f, h, w, channels].
template <class AtPlace, class Visit>
void for_each_place(const Tensor& rows, const Tensor& latent, int64_t patch, const AtPlace& at_place,
                    const Visit& visit) {
  for (int64_t i = 0; i < patch; ++i)
    for (int64_t j = 0; j < patch; ++j) {
      const Tensor ours = latent.slice(2, i, latent.size(2), patch).slice(3, j, latent.size(3), patch);
      const Tensor theirs = at_place(rows, i, j)
                                .slice(1, 0, ours.size(2))
                                .slice(2, 0, ours.size(3))
                                .slice(3, 0, ours.size(0))
                                .permute({3, 0, 1, 2});
      visit(ours, theirs);
    }
}

/// [f, h, w, C, p, p]
Tensor input_view(const Tensor& rows, at::IntArrayRef latent, int64_t patch) {
  const auto [f, h, w] = grid_of(latent, patch);
  return rows.view({f, h, w, latent[0], patch, patch});
}
Tensor input_place(const Tensor& rows, int64_t i, int64_t j) { return rows.select(4, i).select(4, j); }

/// [f, h, w, p, p, C or more]
Tensor output_view(const Tensor& rows, at::IntArrayRef latent, int64_t patch) {
  const auto [f, h, w] = grid_of(latent, patch);
  return rows.view({f, h, w, patch, patch, -1});
}
Tensor output_place(const Tensor& rows, int64_t i, int64_t j) { return rows.select(3, i).select(3, j); }

}  // namespace

std::array<int64_t, 3> grid_of(at::IntArrayRef latent, int64_t patch) {
  return {latent[1], patches_along(latent[2], patch), patches_along(latent[3], patch)};
}

void fill_input(const Tensor& rows, const Tensor& latent, int64_t patch) {
  for_each_place(input_view(rows, latent.sizes(), patch), latent, patch, input_place,
                 [](const Tensor& ours, const Tensor& theirs) { theirs.copy_(ours); });
}

Tensor from_input(const Tensor& rows, at::IntArrayRef shape, int64_t patch) {
  const Tensor latent = at::empty(shape, rows.options());
  for_each_place(input_view(rows, shape, patch), latent, patch, input_place,
                 [](const Tensor& ours, const Tensor& theirs) { ours.copy_(theirs); });
  return latent;
}

void fill_output(const Tensor& rows, const Tensor& latent, int64_t patch) {
  for_each_place(output_view(rows, latent.sizes(), patch), latent, patch, output_place,
                 [](const Tensor& ours, const Tensor& theirs) { theirs.copy_(ours); });
}

Tensor from_output(const Tensor& rows, at::IntArrayRef shape, int64_t patch) {
  const Tensor latent = at::empty(shape, rows.options().dtype(at::kFloat));
  for_each_place(output_view(rows, shape, patch), latent, patch, output_place,
                 [](const Tensor& ours, const Tensor& theirs) { ours.copy_(theirs); });
  return latent;
}

}  // namespace tessera::models::stdit
