#pragma once
// The list of clips and captions a recipe's [data] names.
//
//   Items items = read_dataset({.path = "clips"});                    // a.mp4 + a.txt, b.png + b.txt, ...
//   Items items = read_dataset({.path = "set", .metadata = "set/metadata.jsonl", .repeats = 10}, problems);
//
// A folder is read through its metadata file (metadata.csv, .json or .jsonl, videos2caption.json, captions.json,
// videos.txt + prompt.txt: see rows.h), else as clips with a .txt of the same stem beside each, by name. An empty .txt
// is a caption of no words; a missing one is a problem. Nothing is ever left out silently: a problem names file and
// row.
//
// A folder with nothing but tables of Parquet or Arrow, in it or in its data/ or train/, is a data set of Hugging Face's:
// pictures as a column of {bytes, path}, captions in another.
//
// A folder of numbered frames (frame_0001.png, ...) is a clip as well, its caption in FOLDER.txt (frame_folder.h).
//
// For models with an audio input, columns audio, input_audio or audio_path and pose, pose_video or s2v_pose_video name
// files of the row; without a table a .wav, .mp3, .flac, .m4a or .ogg of the clip's stem is its sound.
//
// Clips may lie in .tar and .zip archives (shards.h), and be latents that another program encoded (.npy). Several
// captions of a clip, in files beside it, are drawn by shares or by scores (captions.h).
//
// A row's clip is its column video, image, file_name, file_path, path, video_path or image_path, its caption prompt,
// text, caption or cap: the first that is filled in. A JSON list of captions gives the clip several, one of which is
// drawn each epoch. Columns input_image, first_image or image (beside a video) and end_image or last_image are pictures
// that image-to-video models begin and end with, instead of the clip's own first and last frame. `type`, where there is
// one, must fit the clip. Paths are relative to the folder, or to `videos` or `train` in it.
#include "tessera/data/files/problems.h"
#include "tessera/data/item.h"

namespace tessera::data {

/// Items in a fixed order: files by name, rows as in the table, the whole list `repeats` times. Faulty rows go to
/// `problems` and are left out. Throws UserError (input) when there is no such folder or table, when it is ambiguous
/// which table is meant, and when no item is left.
Items read_dataset(const DatasetSpec& spec, Problems& problems);
Items read_dataset(const DatasetSpec& spec);  ///< stops at the first problem

}  // namespace tessera::data
