#include "tessera/checkpoint/pickle.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <unordered_map>

#include "tessera/base/check.h"
#include "tessera/checkpoint/cursor.h"
#include "tessera/checkpoint/json.h"

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

}  // namespace tessera::checkpoint
