#pragma once
// What a run leaves behind when it goes back to an earlier step, or to its start.
//
//   if (const auto folder = move_to_abandoned("runs/a", 500)) log::info("steps after 500 lie in " + folder->string());
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace tessera::train {

/// The first of folder/beginNending, N from 1, that does not exist: abandoned-1, recipe-1.toml.
std::filesystem::path free_name(const std::filesystem::path& folder, const std::string& begin,
                                const std::string& ending = "");

/// `after` of a run that begins again: nothing of it stays.
inline constexpr int64_t kFromTheStart = -1;

/// Moves the whole checkpoints of steps after `after`, and the lines of metrics.jsonl that are about them, to
/// out/abandoned-N, N the first that is free. Gives that folder; nothing where there is nothing to move. One rank calls
/// it. Throws UserError (disk).
std::optional<std::filesystem::path> move_to_abandoned(const std::filesystem::path& out, int64_t after);

}  // namespace tessera::train
