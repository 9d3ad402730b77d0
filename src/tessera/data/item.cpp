// Records of items: a number of flags, and behind it what these say is there. A path is the number of its folder, and its
// name.
#include "tessera/data/item.h"

#include <algorithm>
#include <array>
#include <stdexcept>

namespace tessera::data {

namespace {

/// What an item may be without.
enum Flag : uint64_t {
  kNamedByPath = 1,  // `where` is the path
  kNamedByStem = 2,  // its end is how the path's name begins
  kSeveral = 4,      // captions other than one
  kWeights = 8,
  kClassCaptions = 16,
  kSet = 32,
  kReferences = 64,
  kDirection = 128,
  kSpeed = 256,
  kFirstPath = 512  // and so on, for each of other_paths()
};

template <class AnItem>
auto other_paths(AnItem& item) {
  return std::array{&item.first_image, &item.last_image, &item.sound,  &item.mask, &item.pose,    &item.guide,
                    &item.guide_mask,  &item.control,    &item.camera, &item.face, &item.context, &item.pooled};
}

/// The length of the part of a text that many items share: a path's folder, a table's name.
size_t shared_length(const std::string& text, std::string_view until) {
  const size_t at = text.rfind(until);
  return at == text.npos ? 0 : at + until.size();
}

}  // namespace

RecordWriter Items::written(const Item& item) {
  RecordWriter out;
  const std::string& path = item.path.native();
  const size_t folder = shared_length(path, "/"), table = shared_length(item.where, ": ");
  const std::string_view name = std::string_view(path).substr(folder), end = std::string_view(item.where).substr(table);
  const auto paths = other_paths(item);
  uint64_t flags = item.where == path ? uint64_t{kNamedByPath} : name.starts_with(end) ? uint64_t{kNamedByStem} : 0;
  const auto flag = [&](bool is, uint64_t bit) { flags |= is ? bit : 0; };
  flag(item.captions.size() != 1, kSeveral), flag(!item.weights.empty(), kWeights);
  flag(!item.class_captions.empty(), kClassCaptions), flag(item.set != 0, kSet);
  flag(!item.references.empty(), kReferences), flag(!item.direction.empty(), kDirection);
  flag(item.camera_speed != 0, kSpeed);
  for (size_t i = 0; i < paths.size(); ++i) flag(!paths[i]->empty(), kFirstPath << i);
  out.number(flags);
  const auto add_path = [&](const std::string& whole) {
    const size_t shared = shared_length(whole, "/");
    out.number(records_.number_of(std::string_view(whole).substr(0, shared)));
    out.text(std::string_view(whole).substr(shared));
  };
  const auto add_texts = [&](const std::vector<std::string>& texts) {
    out.number(texts.size());
    for (const std::string& text : texts) out.text(text);
  };
  add_path(path);
  if (!(flags & kNamedByPath)) {
    out.number(records_.number_of(std::string_view(item.where).substr(0, table)));
    if (flags & kNamedByStem)
      out.number(end.size());
    else
      out.text(end);
  }
  if (flags & kSeveral)
    add_texts(item.captions);
  else
    out.text(item.captions.front());
  if (flags & kWeights) {
    out.number(item.weights.size());
    for (const double weight : item.weights) out.real(weight);
  }
  if (flags & kClassCaptions) add_texts(item.class_captions);
  if (flags & kSet) out.number(static_cast<uint64_t>(item.set));
  if (flags & kReferences) {
    out.number(item.references.size());
    for (const Path& reference : item.references) add_path(reference.native());
  }
  if (flags & kDirection) out.text(item.direction);
  if (flags & kSpeed) out.real(item.camera_speed);
  for (const Path* other : paths)
    if (!other->empty()) add_path(other->native());
  return out;
}

void Items::push_back(const Item& item) { records_.push_back(written(item)); }

void Items::append(const Items& more, size_t first, size_t last) {
  if (empty()) {
    *this = more;
    return records_.keep(first, last);
  }
  for (size_t i = first; i < last; ++i)
    if (&more == this)
      records_.repeat(i);
    else
      push_back(more[i]);
}

Item Items::at(size_t index) const {
  if (index >= size()) throw std::out_of_range("data.items: item " + std::to_string(index));
  return (*this)[index];
}

Item Items::operator[](size_t index) const {
  RecordReader in = records_[index];
  const uint64_t flags = in.number();
  const auto joined = [&](size_t beginning, std::string_view end) {
    std::string text;
    text.reserve(records_.text_of(beginning).size() + end.size());
    return text.append(records_.text_of(beginning)).append(end);
  };
  const auto read_path = [&] {
    const size_t folder = in.number();
    return joined(folder, in.text());
  };
  const auto read_texts = [&](std::vector<std::string>& texts) {
    texts.resize(in.number());
    for (std::string& text : texts) text = in.text();
  };
  const size_t folder = in.number();
  const std::string_view name = in.text();
  Item item{.path = joined(folder, name), .captions = {}, .where = {}};
  if (flags & kNamedByPath) {
    item.where = item.path.native();
  } else {
    const size_t table = in.number();
    item.where = joined(table, flags & kNamedByStem ? name.substr(0, in.number()) : in.text());
  }
  if (flags & kSeveral)
    read_texts(item.captions);
  else
    item.captions.emplace_back(in.text());
  if (flags & kWeights) {
    item.weights.resize(in.number());
    for (double& weight : item.weights) weight = in.real();
  }
  if (flags & kClassCaptions) read_texts(item.class_captions);
  if (flags & kSet) item.set = static_cast<int>(in.number());
  if (flags & kReferences) {
    item.references.resize(in.number());
    for (Path& reference : item.references) reference = read_path();
  }
  if (flags & kDirection) item.direction = in.text();
  if (flags & kSpeed) item.camera_speed = in.real();
  const auto paths = other_paths(item);
  for (size_t i = 0; i < paths.size(); ++i)
    if (flags & (kFirstPath << i)) *paths[i] = read_path();
  return item;
}

}  // namespace tessera::data
