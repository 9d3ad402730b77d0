#pragma once
// Clips in archives: WebDataset's .tar shards (a.jpg, a.json, a.npy ...) and .zip files of videos (a.mp4, a.json).
//
//   for (const Path& archive : archives_of("set", problems)) ...                    // by set/wids-meta.json, or by name
//   std::vector<Item> items = read_archive("set/00000.tar", spec, missing, problems);
//
// Files of one name are a sample. Of a tar a name ends at its first dot, as WebDataset has it, of a zip at its last.
// A field may have a name before its ending (a.image.png, a.caption.txt). The captions are those of a.json by name, a.txt
// is its `prompt`; 00000_long.json beside 00000.tar has more of them
// (captions.h).
#include "tessera/data/captions.h"
#include "tessera/data/item.h"

namespace tessera::data {

struct Archive {
  Path path;
  int64_t samples = -1;  ///< as wids-meta.json counts them; -1: it does not
};

/// Whether a folder's clips are in archives: it has a wids-meta.json, or a .tar or .zip and no clips beside them.
bool has_archives(const Path& folder);

/// Of a folder, of its wids-meta.json, or the archive itself. Throws UserError (input) for a wids-meta.json that is not
/// what its name says, naming the entry.
std::vector<Archive> archives_of(const Path& folder);

/// The samples of an archive in its order: its picture, else its video, or with `spec.latents` its .npy. What is wrong
/// with one, or with the archive, goes to `problems`.
std::vector<Item> read_archive(const Archive& archive, const DatasetSpec& spec, MissingFiles& missing,
                               Problems& problems);

}  // namespace tessera::data
