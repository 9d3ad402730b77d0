#pragma once
// The parameters of units, from what their forwards ask for (note "declared by use" in context.h).
//
//   declare(units, {{sizes_of(1, patch), sizes_of(1, text_dim)}, {}}, tokens);
//   units[1]->spec().params[0].name;                                              // "blocks.0.modulation"
#include "tessera/net/unit.h"

namespace tessera::net {

/// A tensor [rows, width] without memory.
Tensor sizes_of(int64_t rows, int64_t width);
/// One id or place of a token, [1] int64, without memory.
Tensor id_without_memory();

/// Runs the units once, one after the other, on tensors without memory: `inputs` are those of the first. Their widths
/// count, and any number of rows that the units can run on. Each unit gets its parameters, in the order of their use or
/// of Unit::order(). A weight that is split by columns, of rows of a space of their own such as text, has its input
/// whole on every rank of tp.
void declare(const std::vector<std::unique_ptr<Unit>>& units, Flow inputs, const Tokens& tokens);
/// Of an encoder that is never trained, of one sample of `rows` rows: no parameter has a gradient.
void declare_frozen(const std::vector<std::unique_ptr<Unit>>& units, Flow inputs, int64_t rows);

}  // namespace tessera::net
