#pragma once
// Which files are clips, by the endings of their names.
//
//   if (is_clip("clips/a.mp4") && !is_image("clips/a.mp4")) ...       // a video
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::data {

using Path = std::filesystem::path;

/// Files and folders whose names begin with a dot are no part of a data set: .trash, or ._NAME, which macOS writes beside
/// a file on disks of others, with the file's ending and none of its content.
bool is_hidden(const Path& path);

bool is_clip(const Path& path);  ///< a video or image
/// False also for what cannot be looked at: a link to itself, a name that is too long.
bool is_folder(const Path& path);
bool is_image(const Path& path);

bool is_npy(const Path& path);
bool is_latent(const Path& path);  ///< a clip that is already encoded: .npy, .pt, .pth

/// "gunzip -k a.tar.gz": the command that makes a .tar of a packed one, in which members have no place; empty for others.
std::string unpacking(const Path& path);

/// ".png" of "a.PNG".
std::string ending_of(const Path& path);

/// ".mp4", ".mov", ...; for messages.
const std::vector<std::string>& video_endings();
const std::vector<std::string>& image_endings();
const std::vector<std::string>& tensor_endings();
const std::vector<std::string>& caption_endings();

}  // namespace tessera::data
