#pragma once
// Warns about captions that are longer than the model reads.
//
//   tell_cut_captions(recipe, job, captions, tokenizer);       // one rank
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/job/job.h"

namespace tessera::prepare {

/// Says how many captions have more tokens than the model reads (its text_len), by how many at most, and which is the
/// first: the rest of them is cut off.
void tell_cut_captions(const recipe::Recipe& recipe, const job::Job& job, const std::vector<std::string>& captions,
                       const std::filesystem::path& tokenizer);

}  // namespace tessera::prepare
