#pragma once
// The families there are: one line each.
//
//   const Family family = families::of("wan-i2v");               // model.family: the family, or one of its types
//   family.experts[0].folder;                                    // high_noise_model
//   for (const Family& family : families::all()) ... family.config_keys ...
#include <string_view>

#include "tessera/families/family.h"

namespace tessera::families {

const std::vector<Family>& all();
/// The first of them: what a recipe means that names none.
const Family& standard();
/// The family of a model.family, "NAME" or "NAME-TYPE"; empty: the standard one. One that is in models/ alone, or in
/// neither, is a family of that name with nothing else.
Family of(std::string_view written);

/// The released file of a role; of several variants the one asked for, else the usual one. Null where there is none.
const ReleasedFile* released_file(const Family& family, std::string_view role, std::string_view variant = {});
/// Ours and every family's names of a column.
std::vector<std::string> column_names(std::vector<std::string> names, std::string_view column);

/// What the families list in a field, each name once: names_in(&Family::autoencoders).
std::vector<std::string> names_in(std::vector<std::string> Family::*field);

/// Folders of its two experts, high noise first; their names.
std::vector<std::string> expert_folders(const Family& family);
std::vector<std::string> expert_names(const Family& family);

/// "a, b or c"
std::string listed(const std::vector<std::string>& words, std::string_view last);

}  // namespace tessera::families
