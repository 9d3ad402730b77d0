#pragma once
// A clip with its captions, and what a recipe's [data] says of where they are.
//
//   Item item{"clips/a.mp4", {"a cat"}, "clips/a.mp4"};
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/data/captions.h"

namespace tessera::data {

using Path = std::filesystem::path;

/// Where masks of what counts in the loss are, white where a clip trains, and how they come onto the grid of latents.
struct MaskFiles {
  bool column = false;          ///< the table's
  Path folder = {};             ///< with a file of the name of each clip, whatever its ending
  std::string suffix = {};      ///< beside each clip, in place of its ending: "-masklabel.png"
  bool alpha = false;           ///< what shows of a transparent picture
  std::string resize = "area";  ///< or nearest, nearest_exact, bilinear
  bool of_files() const { return column || !folder.empty() || !suffix.empty(); }
  bool on() const { return of_files() || alpha; }
};

struct Item {
  Path path;                               ///< a file, the member of an archive, or a folder of frames
  std::vector<std::string> captions;       ///< UTF-8, as written; at least one
  std::string where;                       ///< for messages: file and row, or the clip itself
  Path first_image = {}, last_image = {};  ///< of the row, for models that begin or end with one; or empty

  Path sound = {};  ///< of the row, or a sound file beside the clip; empty: the clip's own track, if it has one
  Path mask = {};   ///< of what counts in the loss, a picture or a clip of as many frames; empty: all of it
  Path pose = {};   ///< of the row: a clip of poses, frame by frame beside this one; or empty

  /// Of the row, for models that follow a clip: what it is made from, which of that is to change, and what it follows frame
  /// by frame; pictures of what it shows; how its camera moves, as a file or as the name of a movement with its speed; the
  /// face of its person, frame by frame.
  Path guide = {}, guide_mask = {}, control = {}, camera = {}, face = {};
  std::vector<Path> references = {};
  std::string direction = {};
  double camera_speed = 0;

  /// The clip of poses; of tables with one column for all that is followed, the control video.
  const Path& driver() const { return pose.empty() ? control : pose; }
  /// The first of them; empty: none.
  Path reference() const { return references.empty() ? Path() : references.front(); }

  Path context = {}, pooled = {};  ///< files of the row: the embedding of its caption and its pooled vector; or empty

  std::vector<double> weights = {};  ///< of each caption, how often it is drawn; empty: all alike
  /// Of each caption the one with the class word in place of the trigger (train.preserve = "class"); else none.
  std::vector<std::string> class_captions = {};

  int set = 0;  ///< of the run's data sets, from 0

  const std::string& caption() const { return captions.front(); }
};

struct DatasetSpec {
  Path path;        ///< a folder, or one clip
  Path metadata;    ///< a table of rows.h; empty: the one in `path` if there is one
  int repeats = 1;  ///< times each item comes in an epoch

  std::string caption = {};    ///< of clips without one of their own; empty: they are faulty
  CaptionRules captions = {};  ///< which of several captions are drawn
  bool latents = false;        ///< the .npy of each clip in place of its picture
  bool latent_column = false;  ///< the file in a column of the table in place of each clip
  MaskFiles masks = {};        ///< of the clips
  Path controls = {};          ///< folder with the clip that each follows, by its name; empty: tables alone name them
  bool text_columns = false;   ///< the row names files of its caption's embedding
};

}  // namespace tessera::data
