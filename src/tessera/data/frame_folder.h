#pragma once
// Folders of numbered frames as clips: frame_0001.png, frame_0002.png, ... in the order of their numbers.
//
//   if (is_frame_folder("clips/a")) Frames clip = decode_frames("clips/a", {.frames = 16, .height = 64, .width = 96});
//
// Pictures have no frame rate: each is a frame, whatever data.fps says, and `start` counts at the rate asked for.
#include <string>
#include <vector>

#include "tessera/data/video_file.h"

namespace tessera::data {

/// Whether it is a folder whose pictures (.png, .jpg, ...; there is one at least) all end in a number.
bool is_frame_folder(const Path& folder);

/// Its pictures by number. Throws UserError (input) naming the folder and the number that is missing or there twice.
std::vector<Path> frames_of(const Path& folder);

/// Of its first picture, how many there are and what any of them has of traits; fps is 0.
VideoInfo probe_frames(const Path& folder);

/// As decode_file. Throws UserError (input) as well for pictures of different sizes, naming the first that differs.
Frames decode_frames(const Path& folder, const ClipSpec& spec);

/// Number, bytes and latest change of its pictures: what a file's stamp is to a file.
std::string folder_stamp(const Path& folder);

}  // namespace tessera::data
