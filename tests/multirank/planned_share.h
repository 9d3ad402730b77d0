#pragma once

namespace tessera::testing {

/// What a measured peak is of the planned one at least. Of models of a few hundred kilobytes the scratch of single
/// operators, which is planned for the largest of its kind, is some per cent.
constexpr double planned_share(double planned_bytes) { return planned_bytes < 4 * 1048576.0 ? 0.92 : 0.98; }

}  // namespace tessera::testing
