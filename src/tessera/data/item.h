#pragma once
// A clip with its captions, and what a recipe's [data] says of where they are.
//
//   Item item{"clips/a.mp4", {"a cat"}, "clips/a.mp4"};
#include <filesystem>
#include <initializer_list>
#include <string>
#include <vector>

#include "tessera/data/captions.h"
#include "tessera/data/files/records.h"

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

/// The items of a data set, of which there may be millions: each is kept as some tens of bytes beside its captions, and made
/// again whenever it is asked for. So what it gives are values, not places in memory; edit() changes them.
class Items {
 public:
  Items() = default;
  Items(std::initializer_list<Item> items) {
    for (const Item& item : items) push_back(item);
  }

  void push_back(const Item& item);
  /// Items [first, last) of others behind these; where all of one list are, they take no more memory than it.
  void append(const Items& more, size_t first, size_t last);
  void append(const Items& more) { append(more, 0, more.size()); }
  /// Calls change(item), which says whether it changed it.
  template <class Change>
  void edit(const Change& change) {
    for (size_t i = 0; i < size(); ++i)
      if (Item item = (*this)[i]; change(item)) records_.set(i, written(item));
  }
  template <class Keep>
  void keep_if(const Keep& keep) {
    size_t kept = 0;
    for (size_t i = 0; i < size(); ++i)
      if (keep((*this)[i])) records_.copy(i, kept++);
    records_.keep(0, kept);
  }

  size_t size() const { return records_.size(); }
  bool empty() const { return size() == 0; }
  Item operator[](size_t index) const;
  Item at(size_t index) const;  ///< throws std::out_of_range
  Item front() const { return (*this)[0]; }
  Item back() const { return (*this)[size() - 1]; }

  using Iterator = ListIterator<Items, Item>;
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, size()}; }

 private:
  RecordWriter written(const Item& item);

  Records records_;
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
