#include "tessera/engine/saved.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include "tessera/base/check.h"
#include "tessera/engine/memory/meter.h"

namespace tessera::engine {

namespace {
thread_local SavedStorages* listing = nullptr;
thread_local std::string current_site;
}  // namespace

/// Holds one saved tensor, as the node itself would, and lists it; or holds a use of a recomputed one.
struct SavedHook final : torch::autograd::SavedVariableHooks {
  void call_pack_hook(const at::Tensor& tensor) override {
    if (listing->rebuilds_) use_ = listing->rebuilds_->use(tensor);
    if (use_) return;
    // A tensor of its own: one that several nodes save is then seen to be held by each (is_sole_owner in
    // ops/node.h), and a node that saves its result does not hold itself.
    tensor_ = tensor.detach();
    listing->note(tensor, current_site);
  }
  at::Tensor call_unpack_hook() override { return use_ ? use_->take() : tensor_; }

 private:
  at::Tensor tensor_;
  std::unique_ptr<ops::Rebuilds::Use> use_;
};

namespace {

/// Autograd asks its engine for the hooks of saved tensors; LibTorch's own engine returns none.
class ListingEngine final : public torch::autograd::Engine {
 public:
  static Engine& instance() {
    static auto* engine = new ListingEngine;  // its threads end with the process
    return *engine;
  }
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return listing ? std::make_unique<SavedHook>() : nullptr;
  }
};

}  // namespace

SavedStorage::SavedStorage(std::string site, const at::Tensor& tensor)
    : site(std::move(site)),
      storage(tensor.storage()),
      type(tensor.scalar_type()),
      row(tensor.dim() > 1 ? tensor.size(-1) : 1) {}

int64_t SavedStorage::bytes() const { return round_up(static_cast<int64_t>(storage.nbytes()), 64); }

void free_memory(SavedStorage& saved) {
  saved.storage.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(nullptr, saved.storage.device()));
}

void take_memory(SavedStorage& saved) {
  c10::Allocator* allocator = Meter::allocator(saved.storage.device_type());
  saved.storage.unsafeGetStorageImpl()->set_data_ptr_noswap(allocator->allocate(saved.storage.nbytes()));
}

SavedStorages::SavedStorages(const std::vector<at::Tensor>& foreign, bool selective) {
  check_internal(!listing, "engine.saved", "two listings at once on one thread");
  static const bool installed = (torch::autograd::set_default_engine_stub(&ListingEngine::instance), true);
  (void)installed;
  for (const at::Tensor& t : foreign)
    if (t.defined()) seen_.insert(t.storage().unsafeGetStorageImpl());
  if (selective)
    rebuilds_.emplace([this](const at::Tensor& tensor, const std::string& site) { note(tensor, site); }, current_site);
  listing = this;
}

SavedStorages::~SavedStorages() { listing = nullptr; }

std::vector<SavedStorage> SavedStorages::take(const std::vector<at::Tensor>& stream,
                                              const std::vector<at::Tensor>& cond) {
  for (const auto* outputs : {&stream, &cond})
    for (const at::Tensor& t : *outputs)
      std::erase_if(found_, [&](const SavedStorage& s) {
        return s.storage.unsafeGetStorageImpl() == t.storage().unsafeGetStorageImpl();
      });
  return std::move(found_);
}

void SavedStorages::at_site(std::string_view site) {
  if (listing) current_site = site;
}

void SavedStorages::note(const at::Tensor& tensor, const std::string& site) {
  if (tensor.defined() && tensor.has_storage() && seen_.insert(tensor.storage().unsafeGetStorageImpl()).second)
    found_.push_back({site, tensor});
}

}  // namespace tessera::engine
