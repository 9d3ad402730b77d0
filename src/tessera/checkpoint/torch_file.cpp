#include "tessera/checkpoint/torch_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include "tessera/base/check.h"
#include "tessera/base/hash.h"
#include "tessera/checkpoint/cursor.h"
#include "tessera/checkpoint/json.h"
#include "tessera/checkpoint/torch_zip.h"

namespace tessera::checkpoint {

using Kind = Pickle::Kind;
using Ref = Pickle::Ref;

/// The stack machine. Instructions as in Python's pickletools; the bytes are the contract of the format.
class PickleMachine {
 public:
  PickleMachine(std::string_view bytes, const std::string& what, const std::set<std::string>& allowed)
      : code_(bytes, what), what_(what), allowed_(allowed) {}

  Pickle run() {
    while (!done_) step(code_.number<uint8_t>());
    return std::move(pickle_);
  }

 private:
  Ref make(Pickle::Value value) {
    constexpr size_t kMost = 4'000'000;  // a 14B model with its optimiser's states has 40'000
    if (pickle_.values_.size() >= kMost) code_.refuse("the pickle has more than " + std::to_string(kMost) + " values");
    pickle_.values_.push_back(std::move(value));
    return static_cast<Ref>(pickle_.values_.size() - 1);
  }
  void push(Pickle::Value value) { stack_.push_back(make(std::move(value))); }
  void push_text(Kind kind, std::string_view text) { push({.kind = kind, .text = std::string(text)}); }
  void push_integer(int64_t value) { push({.kind = Kind::integer, .integer = value}); }
  Pickle::Value& value(Ref ref) { return pickle_.values_[ref]; }

  /// How far down the stack may be popped: to the newest mark.
  size_t bottom() const { return marks_.empty() ? 0 : marks_.back(); }
  Ref pop() {
    if (stack_.size() <= bottom()) code_.refuse("the pickle takes more values than it has");
    const Ref ref = stack_.back();
    stack_.pop_back();
    return ref;
  }
  Ref top() {
    const Ref ref = pop();
    stack_.push_back(ref);
    return ref;
  }
  std::vector<Ref> pop_to_mark() {
    if (marks_.empty()) code_.refuse("the pickle lacks a mark");
    std::vector<Ref> items(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }
  void push_tuple(size_t count) {
    std::vector<Ref> items(count);
    for (size_t i = count; i > 0; --i) items[i - 1] = pop();
    push({.kind = Kind::tuple, .items = std::move(items)});
  }
  void extend(Kind kind, const std::vector<Ref>& items) {
    const Ref target = top();
    if (value(target).kind != kind || (kind == Kind::dict && items.size() % 2 != 0))
      code_.refuse("the pickle adds items to what is no list or dict");
    auto& all = value(target).items;
    all.insert(all.end(), items.begin(), items.end());
  }
  void memoize(uint64_t index) { memo_[index] = top(); }
  void recall(uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) code_.refuse("the pickle recalls value " + std::to_string(index) + ", never kept");
    stack_.push_back(found->second);
  }
  /// A little-endian two's complement number of any length; those of tensors fit 64 bits.
  void push_long(uint64_t bytes) {
    const std::string_view digits = code_.take(bytes);
    const bool negative = bytes > 0 && (digits.back() & 0x80);
    uint64_t number = negative ? ~uint64_t{0} : 0;
    for (uint64_t i = std::min<uint64_t>(bytes, 8); i > 0; --i)
      number = number << 8 | static_cast<uint8_t>(digits[i - 1]);
    if (bytes > 8)
      return push({.kind = Kind::real, .real = negative ? -1e300 : 1e300});  // no size or offset is this large
    push_integer(static_cast<int64_t>(number));
  }
  void push_real() {  // the only big-endian number
    uint64_t bits = 0;
    for (const char c : code_.take(8)) bits = bits << 8 | static_cast<uint8_t>(c);
    push({.kind = Kind::real, .real = std::bit_cast<double>(bits)});
  }
  void push_global(const std::string& module, const std::string& name) {
    const std::string full = module + "." + name;
    if (!allowed_.count(full))
      throw UserError(
          Exit::input, "checkpoint.pickle",
          what_ + ": refers to " + shown(full) +
              ", which is no part of a file of tensors; loading it in Python would call that, nothing was run",
          "get the safetensors file of the model, or, if you trust this one, load it in Python and save "
          "its tensors alone: torch.save(model.state_dict(), PATH)");
    push_text(Kind::global, full);
  }
  /// Arguments may be shared and are copied: a small pickle must not become a large one.
  const std::vector<Ref>& charged(Ref ref) {
    copied_ += value(ref).items.size();
    if (copied_ > code_.position()) code_.refuse("the pickle repeats itself beyond its size");
    return value(ref).items;
  }
  void reduce() {
    const Ref arguments = pop(), function = pop();
    if (value(function).kind != Kind::global || value(arguments).kind != Kind::tuple)
      code_.refuse("the pickle calls what is no global");
    if (value(function).text != "collections.OrderedDict")
      return push({.kind = Kind::call, .text = value(function).text, .items = charged(arguments)});
    Pickle::Value dict{.kind = Kind::dict};
    for (const Ref list : value(arguments).items) {  // at most one: a list of pairs
      for (const Ref pair : charged(list)) {
        if (value(pair).items.size() != 2) code_.refuse("an OrderedDict of what are no pairs");
        dict.items.insert(dict.items.end(), value(pair).items.begin(), value(pair).items.end());
      }
    }
    push(std::move(dict));
  }
  void build() {
    pop();
    const Kind kind =
        value(top()).kind;  // of a call that nothing runs, such as that of a numpy array, they mean nothing
    if (kind != Kind::dict && kind != Kind::call) code_.refuse("the pickle sets attributes of what is no dict or call");
  }
  void step(uint8_t code);

  Cursor code_;
  const std::string& what_;
  const std::set<std::string>& allowed_;
  Pickle pickle_;
  std::vector<Ref> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, Ref> memo_;
  size_t copied_ = 0;
  bool done_ = false;
};

void PickleMachine::step(uint8_t code) {
  switch (code) {
    case 0x80:  // PROTO
      code_.take(1);
      return;
    case 0x95:  // FRAME
      code_.take(8);
      return;
    case '.':  // STOP
      pickle_.root_ = pop();
      done_ = true;
      return;

    case 'N':
      return push({});
    case 0x88:  // NEWTRUE, NEWFALSE
    case 0x89:
      return push({.kind = Kind::boolean, .integer = code == 0x88});
    case 'J':  // BININT
      return push_integer(code_.number<int32_t>());
    case 'K':  // BININT1
      return push_integer(code_.number<uint8_t>());
    case 'M':  // BININT2
      return push_integer(code_.number<uint16_t>());
    case 0x8a:  // LONG1
      return push_long(code_.number<uint8_t>());
    case 0x8b:  // LONG4
      return push_long(code_.number<uint32_t>());
    case 'G':  // BINFLOAT
      return push_real();
    case 'X':  // BINUNICODE, SHORT_BINUNICODE, BINUNICODE8
      return push_text(Kind::text, code_.take(code_.number<uint32_t>()));
    case 0x8c:
      return push_text(Kind::text, code_.take(code_.number<uint8_t>()));
    case 0x8d:
      return push_text(Kind::text, code_.take(code_.number<uint64_t>()));
    case 'T':  // BINSTRING, SHORT_BINSTRING: the texts of Python 2
      return push_text(Kind::text, code_.take(code_.number<uint32_t>()));
    case 'U':
      return push_text(Kind::text, code_.take(code_.number<uint8_t>()));
    case 'B':  // BINBYTES, SHORT_BINBYTES
      return push_text(Kind::bytes, code_.take(code_.number<uint32_t>()));
    case 'C':
      return push_text(Kind::bytes, code_.take(code_.number<uint8_t>()));

    case '(':  // MARK
      marks_.push_back(stack_.size());
      return;
    case '0':  // POP
      pop();
      return;
    case ')':
      return push({.kind = Kind::tuple});
    case ']':
      return push({.kind = Kind::list});
    case '}':
      return push({.kind = Kind::dict});
    case 0x85:  // TUPLE1, TUPLE2, TUPLE3
    case 0x86:
    case 0x87:
      return push_tuple(static_cast<size_t>(code - 0x84));
    case 't':
      return push({.kind = Kind::tuple, .items = pop_to_mark()});
    case 'a':
      return extend(Kind::list, {pop()});
    case 'e':
      return extend(Kind::list, pop_to_mark());
    case 's': {
      const Ref item = pop(), key = pop();
      return extend(Kind::dict, {key, item});
    }
    case 'u':
      return extend(Kind::dict, pop_to_mark());

    case 'q':  // BINPUT, LONG_BINPUT, MEMOIZE
      return memoize(code_.number<uint8_t>());
    case 'r':
      return memoize(code_.number<uint32_t>());
    case 0x94:
      return memoize(memo_.size());
    case 'h':  // BINGET, LONG_BINGET
      return recall(code_.number<uint8_t>());
    case 'j':
      return recall(code_.number<uint32_t>());

    case 'c':    // GLOBAL
    case 'i': {  // INST: the same and a call at once, of protocol 0
      const std::string module(code_.line());
      push_global(module, std::string(code_.line()));
      if (code == 'i') code_.refuse("a pickle of protocol 0");
      return;
    }
    case 0x93: {  // STACK_GLOBAL
      const Ref name = pop(), module = pop();
      if (value(name).kind != Kind::text || value(module).kind != Kind::text) code_.refuse("a global without a name");
      return push_global(value(module).text, value(name).text);
    }
    case 'R':
      return reduce();
    case 'b':
      return build();
    case 'Q':  // BINPERSID
      return push({.kind = Kind::persistent, .items = {pop()}});
    default:
      code_.refuse("pickle instruction " + std::to_string(code) + " at byte " + std::to_string(code_.position() - 1) +
                   ", which files of tensors do not use");
  }
}

Pickle Pickle::parse(std::string_view bytes, const std::string& what, const std::set<std::string>& allowed) {
  return PickleMachine(bytes, what, allowed).run();
}

std::vector<std::pair<Ref, Ref>> Pickle::pairs(Ref dict) const {
  std::vector<std::pair<Ref, Ref>> result;
  const Value& value = at(dict);
  if (value.kind != Kind::dict) return result;
  for (size_t i = 0; i + 1 < value.items.size(); i += 2) result.emplace_back(value.items[i], value.items[i + 1]);
  return result;
}

// Format: the zip layout of torch.save (torch/csrc/jit/docs/serialization.md) and the calls its pickles make.

namespace {

using Kind = Pickle::Kind;
using Ref = Pickle::Ref;

constexpr int64_t kMaxPickle = int64_t{64} << 20;  // names and shapes of a 14B model take 0.2 MiB
constexpr int kMaxDepth = 16;                      // dicts within dicts
constexpr int64_t kMaxVisits = 10'000'000;  // values may be shared: what is walked is not bound by the file's size

struct TypeRow {
  std::string_view name;
  DType dtype;
};
constexpr TypeRow kStorages[] = {{"torch.DoubleStorage", DType::f64}, {"torch.FloatStorage", DType::f32},
                                 {"torch.HalfStorage", DType::f16},   {"torch.BFloat16Storage", DType::bf16},
                                 {"torch.LongStorage", DType::i64},   {"torch.IntStorage", DType::i32},
                                 {"torch.ShortStorage", DType::i16},  {"torch.CharStorage", DType::i8},
                                 {"torch.ByteStorage", DType::u8},    {"torch.BoolStorage", DType::boolean},
                                 {"torch.UntypedStorage", DType::u8}, {"torch.storage.UntypedStorage", DType::u8}};
constexpr TypeRow kDTypes[] = {{"torch.float64", DType::f64},
                               {"torch.float32", DType::f32},
                               {"torch.float16", DType::f16},
                               {"torch.bfloat16", DType::bf16},
                               {"torch.float8_e4m3fn", DType::f8_e4m3},
                               {"torch.float8_e5m2", DType::f8_e5m2},
                               {"torch.int64", DType::i64},
                               {"torch.int32", DType::i32},
                               {"torch.int16", DType::i16},
                               {"torch.int8", DType::i8},
                               {"torch.uint8", DType::u8},
                               {"torch.bool", DType::boolean}};
// A tensor with attributes of Python, as FSDP's state_dict has them: (function, class, its arguments, attributes).
constexpr std::string_view kWithAttributes = "torch._tensor._rebuild_from_type_v2";
// What else a file of tensors may refer to. None of it does anything; see pickle.h. The dtypes are those that we do not
// have: a tensor of one is refused by its own name. The arrays are states of random generators, which trainers save beside
// the weights.
constexpr std::string_view kOthers[] = {"collections.OrderedDict",
                                        "torch._utils._rebuild_tensor",
                                        "torch._utils._rebuild_tensor_v2",
                                        "torch._utils._rebuild_tensor_v3",
                                        "torch._utils._rebuild_parameter",
                                        "torch._utils._rebuild_parameter_with_state",
                                        kWithAttributes,
                                        "torch.Tensor",
                                        "torch._utils._rebuild_wrapper_subclass",  // so that its class is named
                                        "torch.uint16",
                                        "torch.uint32",
                                        "torch.uint64",
                                        "torch.complex64",
                                        "torch.complex128",
                                        "torch.ComplexFloatStorage",
                                        "torch.ComplexDoubleStorage",
                                        "torch.Size",
                                        "torch.device",
                                        "_codecs.encode",
                                        "numpy.ndarray",
                                        "numpy.dtype",
                                        "numpy.core.multiarray._reconstruct",
                                        "numpy._core.multiarray._reconstruct"};
// Dicts that only wrap the weights, by the programs that write them.
constexpr std::string_view kWrappers[] = {"state_dict", "model_state", "model_state_dict", "model", "module",
                                          "generator",  "ema",         "params_ema",       "params"};

// Dicts of averaged weights, which trainers save beside them.
constexpr std::string_view kAverages[] = {"state_dict_ema", "ema", "ema_state_dict", "model_ema", "params_ema"};

const std::set<std::string>& allowed() {
  static const std::set<std::string> names = [] {
    std::set<std::string> all(std::begin(kOthers), std::end(kOthers));
    for (const TypeRow& row : kStorages) all.emplace(row.name);
    for (const TypeRow& row : kDTypes) all.emplace(row.name);
    return all;
  }();
  return names;
}

enum class Wanted { weights, average, everything };

/// Turns the description of a pickle into entries.
class Collector {
 public:
  Collector(const Pickle& pickle, std::map<std::string, ZipEntry> storages, std::string file)
      : pickle_(pickle), storages_(std::move(storages)), file_(std::move(file)) {}

  std::vector<TorchFile::Entry> entries;
  Metadata metadata;

  void collect(Wanted wanted) {
    for (const auto& [key, value] : pickle_.pairs(pickle_.root())) note(key, value);
    if (wanted == Wanted::everything)
      walk(pickle_.root(), "", 0);
    else
      walk(wanted == Wanted::average ? averages() : unwrapped(pickle_.root(), 0), "", 0);
    if (entries.empty()) refuse(file_ + ": holds no tensors", "is this a file of weights?");
  }

 private:
  using Value = Pickle::Value;

  [[noreturn]] void refuse(const std::string& what,
                           std::string_view hint = "the file is damaged: fetch it again") const {
    throw UserError(Exit::input, "checkpoint.torch", what, hint);
  }
  const Value& at(Ref ref) const { return pickle_.at(ref); }

  static std::string text_of(const Value& value) {
    if (value.kind == Kind::text) return value.text;
    if (value.kind == Kind::integer) return std::to_string(value.integer);
    if (value.kind == Kind::real) return Json(value.real).dump();
    if (value.kind == Kind::boolean) return value.integer ? "true" : "false";
    return {};
  }
  void note(Ref key, Ref value) {
    charge(at(key).text.size() + at(value).text.size());
    if (const std::string text = text_of(at(value)); !text.empty()) metadata[text_of(at(key))] = text;
  }
  /// Texts may be shared too, and are copied: a long name that many tensors have makes a large table of a small file.
  void charge(size_t bytes) {
    constexpr size_t kMost = size_t{256} << 20;
    copied_ += bytes;
    if (copied_ > kMost) refuse(file_ + ": its names take more than " + std::to_string(kMost >> 20) + " MiB");
  }

  bool is_tensor(Ref ref) const {
    return at(ref).kind == Kind::call &&
           (at(ref).text.starts_with("torch._utils._rebuild_") || at(ref).text == kWithAttributes);
  }

  /// The dict within that holds the weights, where there is exactly one that may and no tensor stands beside it.
  Ref unwrapped(Ref ref, int depth) const {
    std::vector<Ref> inner;
    for (const auto& [key, value] : pickle_.pairs(ref)) {
      if (is_tensor(value)) return ref;
      const bool wrapper = std::find(std::begin(kWrappers), std::end(kWrappers), at(key).text) != std::end(kWrappers);
      if (wrapper && at(value).kind == Kind::dict && !at(value).items.empty()) inner.push_back(value);
    }
    return inner.size() == 1 && depth < kMaxDepth ? unwrapped(inner[0], depth + 1) : ref;
  }

  /// The dict of averaged weights.
  Ref averages() const {
    std::string found;
    for (const auto& [key, value] : pickle_.pairs(pickle_.root())) {
      if (at(value).kind != Kind::dict || at(value).items.empty()) continue;
      const std::string name = text_of(at(key));
      if (std::find(std::begin(kAverages), std::end(kAverages), name) != std::end(kAverages))
        return unwrapped(value, 0);
      found += (found.empty() ? "" : ", ") + shown(name);
    }
    refuse(file_ + ": holds no average of the weights, expected a dict state_dict_ema or ema, found " +
               (found.empty() ? "none" : found),
           "was it saved by a run that averages? The weights themselves are read without --ema");
  }

  void walk(Ref ref, const std::string& name, int depth) {
    if (++visits_ > kMaxVisits || depth > kMaxDepth)
      refuse(file_ + ": " + shown(name) + ": nested too deep",
             "save the tensors alone: torch.save(model.state_dict())");
    const auto below = [&](const std::string& key) {
      charge(name.size() + key.size());
      return name.empty() ? key : name + "." + key;
    };
    const Value& value = at(ref);
    if (is_tensor(ref)) {
      add(ref, name);
    } else if (value.kind == Kind::dict) {
      for (const auto& [key, item] : pickle_.pairs(ref)) walk(item, below(text_of(at(key))), depth + 1);
    } else if (value.kind == Kind::list || value.kind == Kind::tuple) {
      if (name.ends_with(".param_groups")) metadata[name] = std::to_string(value.items.size());
      for (size_t i = 0; i < value.items.size(); ++i) walk(value.items[i], below(std::to_string(i)), depth + 1);
    }
  }

  const Value& argument(const Value& call, size_t index, Kind kind, const std::string& what) const {
    if (index >= call.items.size() || at(call.items[index]).kind != kind)
      refuse(what + ": argument " + std::to_string(index) + " of " + call.text + " is not what torch.save writes");
    return at(call.items[index]);
  }
  Shape integers(const Value& tuple, const std::string& what) const {
    constexpr size_t kMostDims = 64;  // as LibTorch has it
    if (tuple.items.size() > kMostDims) refuse(what + ": has " + std::to_string(tuple.items.size()) + " dimensions");
    Shape result;
    for (const Ref item : tuple.items) {
      if (at(item).kind != Kind::integer || at(item).integer < 0)
        refuse(what + ": expected sizes of 0 and more, found " + shown(text_of(at(item))));
      result.push_back(at(item).integer);
    }
    return result;
  }
  static const DType* find_type(std::string_view name, const TypeRow* begin, const TypeRow* end) {
    const auto* row = std::find_if(begin, end, [&](const TypeRow& r) { return r.name == name; });
    return row == end ? nullptr : &row->dtype;
  }

  /// The call that makes the tensor alone. Classes of tensors with other contents than a plain one's are refused.
  Value without_attributes(const Value& call, const std::string& what) const {
    const std::string& type = argument(call, 1, Kind::global, what).text;
    if (type != "torch.Tensor") refuse(what + ": is a " + shown(type), "save it as a plain tensor");
    Value made = argument(call, 2, Kind::tuple, what);
    made.kind = Kind::call, made.text = argument(call, 0, Kind::global, what).text;
    return made;
  }

  void add(Ref ref, const std::string& name) {
    const std::string what = file_ + ": tensor " + shown(name);
    Value inner;
    const Value* call = &at(ref);
    if (call->text == kWithAttributes) inner = without_attributes(*call, what), call = &inner;
    for (int depth = 0; call->text.starts_with("torch._utils._rebuild_parameter");
         ++depth) {  // (tensor, requires_grad, ...)
      if (depth > 1) refuse(what + ": a parameter of a parameter");
      call = &argument(*call, 0, Kind::call, what);
    }
    if (!call->text.starts_with("torch._utils._rebuild_tensor")) refuse(what + ": is " + shown(call->text));
    TorchFile::Entry entry;
    entry.name = name;
    entry.shape = integers(argument(*call, 2, Kind::tuple, what), what);
    entry.strides = integers(argument(*call, 3, Kind::tuple, what), what);
    const int64_t offset = argument(*call, 1, Kind::integer, what).integer;
    const ZipEntry& storage = storage_of(*call, what, entry.dtype);
    place(entry, offset, storage, what);
    if (!names_.insert(name).second) refuse(what + " is there twice");
    entries.push_back(std::move(entry));
  }

  /// ('storage', type, key, device, elements), and the dtype that the call or the type says.
  const ZipEntry& storage_of(const Value& call, const std::string& what, DType& dtype) {
    const Value& tuple = at(argument(call, 0, Kind::persistent, what).items[0]);
    const Value& type = argument(tuple, 1, Kind::global, what);
    const Value& key = argument(tuple, 2, Kind::text, what);
    const int64_t elements = argument(tuple, 4, Kind::integer, what).integer;
    const DType* stored = find_type(type.text, std::begin(kStorages), std::end(kStorages));
    if (!stored) refuse(what + ": a storage of " + shown(type.text), "convert it to one of " + dtype_names());
    dtype = *stored;
    if (call.text.ends_with("_v3")) {
      const Value& wanted = argument(call, 6, Kind::global, what);
      const DType* known = find_type(wanted.text, std::begin(kDTypes), std::end(kDTypes));
      if (!known) refuse(what + ": dtype " + shown(wanted.text), "convert it to one of " + dtype_names());
      dtype = *known;
    }
    const auto found = storages_.find(key.text);
    if (found == storages_.end()) refuse(what + ": its data/" + key.text + " is not in the archive");
    if (byte_count({elements}, *stored) != found->second.bytes)
      refuse(what + ": data/" + key.text + " has " + std::to_string(found->second.bytes) + " bytes, expected " +
             std::to_string(elements) + " elements of " + std::string(dtype_name(*stored)));
    return found->second;
  }

  /// Checks that every element lies in the storage.
  void place(TorchFile::Entry& entry, int64_t offset, const ZipEntry& storage, const std::string& what) const {
    const int64_t size = size_of(entry.dtype), held = storage.bytes / size;
    const auto outside = [&] {
      refuse(what + ": shape " + shape_text(entry.shape) + " with strides " + shape_text(entry.strides) +
             " from element " + std::to_string(offset) + " leaves its storage of " + std::to_string(held));
    };
    const std::optional<int64_t> count = byte_count(entry.shape, entry.dtype);
    if (!count || entry.shape.size() != entry.strides.size() || offset < 0 || offset > held) outside();
    entry.begin = storage.begin + offset * size;
    if (*count == 0) return;
    int64_t last = 0, expected = 1;
    for (size_t i = entry.shape.size(); i > 0; --i) {
      int64_t reach = 0;
      if (__builtin_mul_overflow(entry.shape[i - 1] - 1, entry.strides[i - 1], &reach) ||
          __builtin_add_overflow(last, reach, &last))
        outside();
      if (entry.shape[i - 1] == 1) continue;
      entry.contiguous = entry.contiguous && entry.strides[i - 1] == expected;
      expected *= entry.shape[i - 1];
    }
    if (last >= held - offset) outside();
    entry.span = last + 1;
    // An expanded tensor (stride 0) can be far larger than its file.
    if (*count / size > entry.span)
      refuse(what + ": is " + shape_text(entry.shape) + " but holds " + std::to_string(entry.span) +
                 " elements (expanded)",
             "save it after .contiguous()");
  }

  const Pickle& pickle_;
  const std::map<std::string, ZipEntry> storages_;
  const std::string file_;
  std::set<std::string> names_;
  int64_t visits_ = 0;
  size_t copied_ = 0;
};

std::string read_entry(const ReadFile& file, const ZipEntry& entry) {
  const std::string what = file.path().string() + ": " + shown(entry.name);
  check_input(entry.bytes <= kMaxPickle, "checkpoint.torch",
              what + " has " + std::to_string(entry.bytes) + " bytes, expected at most " + std::to_string(kMaxPickle),
              "is this a file of weights?");
  std::string bytes(static_cast<size_t>(entry.bytes), '\0');
  file.read(entry.begin, entry.bytes, bytes.data());
  check_input(entry.crc32 == 0 || crc32_zip(bytes.data(), bytes.size()) == entry.crc32, "checkpoint.torch",
              what + " does not have its checksum", "the file is damaged: fetch it again");
  return bytes;
}

}  // namespace

namespace {

struct Contents {
  std::vector<TorchFile::Entry> entries;
  Metadata metadata;
};

Contents contents_of(const ReadFile& file, Wanted wanted) {
  const std::string name = file.path().string();
  char start = 0;
  if (file.size() > 0) file.read(0, 1, &start);
  check_input(start != '\x80', "checkpoint.torch", name + ": is of the form torch.save wrote before version 1.6",
              "load it in Python and save it again: torch.save(torch.load(PATH, weights_only=True), PATH)");

  std::string root;
  std::map<std::string, ZipEntry> entries;
  for (ZipEntry& entry : read_zip(file)) {
    if (entry.name.ends_with("/data.pkl") && entry.name.find('/') == entry.name.size() - 9)
      root = entry.name.substr(0, entry.name.size() - 8);
    entries.emplace(entry.name, entry);
  }
  check_input(!root.empty(), "checkpoint.torch", name + ": a zip archive without data.pkl, not a file of torch.save",
              "unpack it, or name the file of weights");
  const auto order = entries.find(root + "byteorder");
  check_input(order == entries.end() || read_entry(file, order->second) == "little", "checkpoint.torch",
              name + ": is not little endian", "load it in Python and save it again on a little-endian machine");

  const Pickle pickle = Pickle::parse(read_entry(file, entries.at(root + "data.pkl")), name, allowed());
  std::map<std::string, ZipEntry> storages;
  const std::string data = root + "data/";
  for (const auto& [entry_name, entry] : entries)
    if (entry_name.starts_with(data)) storages.emplace(entry_name.substr(data.size()), entry);
  Collector collector(pickle, std::move(storages), name);
  collector.collect(wanted);
  return {std::move(collector.entries), std::move(collector.metadata)};
}

void read_elements(const ReadFile& file, const TorchFile::Entry& entry, int64_t first, int64_t count, void* to) {
  check_input(first >= 0 && count >= 0 && first <= entry.count() - count, "checkpoint.torch",
              file.path().string() + ": tensor " + shown(entry.name) + ": elements [" + std::to_string(first) + ", +" +
                  std::to_string(count) + ") wanted, it has " + std::to_string(entry.count()),
              "this is the file of another model");
  const int64_t size = size_of(entry.dtype);
  if (entry.contiguous) return file.read(entry.begin + first * size, count * size, to);
  std::vector<char> all(static_cast<size_t>(entry.span * size));
  file.read(entry.begin, entry.span * size, all.data());
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = first + i, place = 0;
    for (size_t dim = entry.shape.size(); dim > 0; --dim) {
      place += rest % entry.shape[dim - 1] * entry.strides[dim - 1];
      rest /= entry.shape[dim - 1];
    }
    std::memcpy(static_cast<char*>(to) + i * size, all.data() + place * size, static_cast<size_t>(size));
  }
}

std::unordered_map<std::string, size_t> index_of(const std::vector<TorchFile::Entry>& entries) {
  std::unordered_map<std::string, size_t> index;
  for (size_t i = 0; i < entries.size(); ++i) index[entries[i].name] = i;
  return index;
}

}  // namespace

bool TorchFile::recognises(const ReadFile& file) {
  char start[4] = {};
  file.read(0, std::min<int64_t>(file.size(), 4), start);
  return std::memcmp(start, "PK\x03\x04", 4) == 0 || std::memcmp(start, "\x80\x02\x8a\x0a", 4) == 0;
}

TorchFile TorchFile::open(const Path& path, bool averaged) {
  TorchFile result(path);
  Contents contents = contents_of(result.file_, averaged ? Wanted::average : Wanted::weights);
  result.entries_ = std::move(contents.entries);
  result.metadata_ = std::move(contents.metadata);
  result.index_ = index_of(result.entries_);
  return result;
}

const TorchFile::Entry* TorchFile::find(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &entries_[found->second];
}

void TorchFile::read(const Entry& entry, int64_t first, int64_t count, void* to) const {
  read_elements(file_, entry, first, count, to);
}

TorchTree::TorchTree(const Path& path) : file_(path) {
  Contents contents = contents_of(file_, Wanted::everything);
  entries_ = std::move(contents.entries);
  metadata_ = std::move(contents.metadata);
  index_ = index_of(entries_);
}

const TorchFile::Entry* TorchTree::find(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &entries_[found->second];
}

void TorchTree::read_f32(const TorchFile::Entry& entry, int64_t first, int64_t count, float* to) const {
  std::vector<char> stored(static_cast<size_t>(count * size_of(entry.dtype)));
  read_elements(file_, entry, first, count, stored.data());
  to_f32(entry.dtype, stored.data(), count, to);
}

}  // namespace tessera::checkpoint
