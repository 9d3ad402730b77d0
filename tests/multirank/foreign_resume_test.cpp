// Going on from a file that another trainer saved: weights, moments and step as torch's AdamW and FSDP write them.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "data/archive_files.h"
#include "program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

/// torch.save without torch (a zip archive of a pickle and the storages that it refers to): its names are stood in for.
constexpr const char* kTorch = R"(
import array, collections, json, os, pickle, sys, types, zipfile
folder, out, form = sys.argv[1:4]
def stand_in(module, name):
    sys.modules.setdefault(module, types.ModuleType(module))
    made = type(name, (), {'__module__': module})
    setattr(sys.modules[module], name, made)
    return made
FloatStorage = stand_in('torch', 'FloatStorage')
rebuild = stand_in('torch._utils', '_rebuild_tensor_v2')
ShardedTensor = stand_in('torch.distributed._shard.sharded_tensor.api', 'ShardedTensor')
storages = []
class Storage:
    def __init__(self, data): self.data, self.key = data, str(len(storages)); storages.append(self)
class Reduced:
    def __init__(self, *how): self.how = how
    def __reduce__(self): return self.how
def tensor(data, shape):
    strides = [1] * len(shape)
    for d in range(len(shape) - 1, 0, -1): strides[d - 1] = strides[d] * shape[d]
    t = Reduced(rebuild, (Storage(data), 0, tuple(shape), tuple(strides), False, collections.OrderedDict()))
    t.shape = shape
    return t
class Pickler(pickle._Pickler):
    def persistent_id(self, o):
        if isinstance(o, Storage): return ('storage', FloatStorage, o.key, 'cpu', len(o.data) // 4)
def save(value, out):
    with zipfile.ZipFile(out, 'w', zipfile.ZIP_STORED) as z:
        with z.open('archive/data.pkl', 'w') as f: Pickler(f, 2).dump(value)
        z.writestr('archive/byteorder', 'little')
        for storage in storages: z.writestr('archive/data/' + storage.key, storage.data)
        z.writestr('archive/version', '3')
)";

/// Writes checkpoint_2.pt of the form argv[3] from a checkpoint of a run on one rank.
constexpr const char* kWriter = R"(
manifest = json.load(open(folder + '/manifest.json'))
files = {}
def stored(name):
    if name not in files:
        data = open(folder + '/' + name, 'rb').read()
        n = int.from_bytes(data[:8], 'little')
        files[name] = (json.loads(data[8:8 + n]), data[8 + n:])
    return files[name]
tensors = {}
for t in manifest['tensors']:
    flat = b''
    for part in sorted(t['parts'], key=lambda p: p['flat'][0]):
        head, data = stored(part['file'])
        begin, end = head[part['key']]['data_offsets']
        flat += data[begin:end]
    tensors[t['name'], t['kind']] = tensor(flat, t['shape'])
names = sorted((n for n, kind in tensors if kind == 'param'), reverse=True)  # any order: the numbers follow it
model = {'freqs': tensor(bytes(28), [7])}  # a buffer: it has no number
state = {}
for i, n in enumerate(names):
    model[n] = tensors[n, 'param']
    one = {'step': tensor(array.array('f', [2.0]).tobytes(), []), 'exp_avg': tensors[n, 'exp_avg'], 'exp_avg_sq': tensors[n, 'exp_avg_sq']}
    state[n if form == 'names' else i] = one
group = {'lr': 1e-3, 'betas': (0.9, 0.999), 'eps': 1e-8, 'weight_decay': 0.01, 'amsgrad': False, 'foreach': None,
         'maximize': False, 'capturable': False, 'differentiable': False, 'fused': None, 'params': list(state)}
groups = [group]
if form == 'groups':
    groups = [dict(group, params=list(state)[:3]), dict(group, params=list(state)[3:])]
if form == 'missing':
    del state[4]
frozen = {'folder_frozen': 'text_embedding.', 'folder_zeros': 'text_embedding.', 'folder_frozen_block': 'blocks.0.'}.get(form)
if form == 'folder_zeros':  # as if it had trained without a gradient
    for i, n in enumerate(names):
        if n.startswith(frozen):
            for kind in ('exp_avg', 'exp_avg_sq'): state[i][kind] = tensor(bytes(len(tensors[n, kind].how[1][0].data)), tensors[n, kind].shape)
elif frozen:  # filter(lambda p: p.requires_grad, model.parameters()) numbers the others
    state = dict(enumerate(state[i] for i, n in enumerate(names) if not n.startswith(frozen)))
    assert len(state) < len(names)
    group['params'] = list(state)
if form == 'order':
    a = next(i for i in range(len(names)) if state[i]['exp_avg'].shape != state[0]['exp_avg'].shape)
    state[0], state[a] = state[a], state[0]
saved = {'model': model, 'optimizer': {'state': state, 'param_groups': groups}, 'step': 2}
if form == 'sharded':
    model[names[0]] = Reduced(ShardedTensor, ())
if form == 'stepless':
    del saved['step']
def pieces(values, folder, stem, index):  # as ColossalAI cuts them, with its index
    os.makedirs(folder)
    keys, where = list(values), {}
    for p in range(2):
        file = f'{stem}-{p + 1:05d}.bin'
        part = keys[p * len(keys) // 2:(p + 1) * len(keys) // 2]
        save({k: values[k] for k in part}, f'{folder}/{file}')
        where.update({str(k): file for k in part})
    json.dump({'metadata': {'total_size': 0.1}, 'weight_map': where}, open(f'{folder}/{index}', 'w'), indent=2)
if form.startswith('folder'):
    pieces(model, out + '/model', 'pytorch_model', 'pytorch_model.bin.index.json')
    if form == 'folder_order':
        state = {i: state[len(names) - 1 - i] for i in range(len(names))}
    for one in state.values(): one['step'] = 2
    if form != 'folder_weights':
        pieces(state, out + '/optimizer', 'pytorch_optim', 'pytorch_optim.bin.index.json')
        save(groups, out + '/optimizer/pytorch_optim_group.bin')
    if form == 'folder_short':
        os.remove(out + '/optimizer/pytorch_optim-00002.bin')
    average = {n: tensor(tensors[n, 'param'].how[1][0].data, [len(tensors[n, 'param'].how[1][0].data) // 4] if form == 'folder_flat' else tensors[n, 'param'].shape) for n in names}
    save(average, out + '/ema.pt')
    json.dump({'epoch': 0, 'step': 2, 'global_step': 2}, open(out + '/running_states.json', 'w'))
else:
    save(saved, out)
)";

/// Writes adapter_model.bin from a .safetensors file of adapters.
constexpr const char* kAdapterWriter = R"(
data = open(folder, 'rb').read()
n = int.from_bytes(data[:8], 'little')
save({k: tensor(data[8 + n + v['data_offsets'][0]:8 + n + v['data_offsets'][1]], v['shape'])
      for k, v in json.loads(data[8:8 + n]).items() if k != '__metadata__'}, out)
)";

Result write(const std::string& script, const std::string& from, const std::string& to, const std::string& form = "") {
  return run_program({"/usr/bin/env", "python3", "-c", kTorch + script, from, to, form});
}

class ForeignResume : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!data::has_python()) GTEST_SKIP() << "needs python3, which writes the files";
    const Result whole = run_.train(1, "whole", {"--run.steps", "4", "--checkpoint.every", "2"});
    ASSERT_EQ(whole.code, 0) << whole.output;
  }
  /// A file of the form, from the checkpoint after two of the four steps.
  std::string saved(const std::string& form) const {
    const std::string file = (run_.folder() / ("checkpoint_2_" + form + ".pt")).string();
    const Result r = write(kWriter, run_.out("whole") + "/checkpoints/step-000002", file, form);
    EXPECT_EQ(r.code, 0) << r.output;
    return file;
  }
  void expect_refused(const std::string& form, int code, const std::vector<std::string>& words) const {
    SCOPED_TRACE(form);
    const Result r = run_.train(1, "refused", {"--run.steps", "4", "--run.resume", saved(form)});
    EXPECT_EQ(r.code, code) << r.output;
    for (const std::string& word : words) EXPECT_NE(r.output.find(word), std::string::npos) << word << "\n" << r.output;
  }

  const TinyRun run_{"foreign-resume"};
};

TEST_F(ForeignResume, WeightsMomentsAndStepGoOnAsIfNeverStopped) {
  const auto whole = run_.metrics("whole");
  for (const auto& [form, ranks] : {std::pair<std::string, int>{"numbers", 1}, {"names", 2}}) {
    SCOPED_TRACE(form);
    const std::vector<std::string> flags = {"--run.steps", "4", "--run.resume", saved(form)};
    const Result r = run_.train(ranks, form, flags);
    ASSERT_EQ(r.code, 0) << r.output;
    EXPECT_NE(r.output.find("weights, AdamW's moments and step 2 are adopted"), std::string::npos) << r.output;
    const auto steps = run_.metrics(form);
    ASSERT_EQ(steps.size(), 2u);
    for (size_t s = 0; s < 2; ++s) {
      EXPECT_EQ(steps[s].at("step"), 3 + s);
      EXPECT_EQ(steps[s].at("lr"), whole[2 + s].at("lr"));
      if (ranks == 1)
        EXPECT_EQ(steps[s].at("loss"), whole[2 + s].at("loss")) << "bit for bit";
      else
        EXPECT_NEAR(steps[s].at("loss").get<double>(), whole[2 + s].at("loss").get<double>(), 1e-5);
    }
    if (ranks == 1) EXPECT_EQ(run_.model(form), run_.model("whole")) << "the moments count in the second step";
  }
}

TEST_F(ForeignResume, AFolderOfColossalAIsTrainersGoesOnWithItsMomentsAndItsAverage) {
  const auto whole = run_.metrics("whole");
  const std::string folder = saved("folder");
  Result r = run_.train(1, "one", {"--run.steps", "4", "--run.resume", folder});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("weights, AdamW's moments and step 2 are adopted"), std::string::npos) << r.output;
  const auto steps = run_.metrics("one");
  ASSERT_EQ(steps.size(), 2u);
  for (size_t s = 0; s < 2; ++s) EXPECT_EQ(steps[s].at("loss"), whole[2 + s].at("loss")) << "bit for bit";
  EXPECT_EQ(run_.model("one"), run_.model("whole"));
  r = run_.train(2, "averaged", {"--run.steps", "4", "--run.resume", folder, "--train.ema", "0.9", "--mesh", "tp=2"});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("AdamW's moments, their average and step 2"), std::string::npos) << r.output;
  for (size_t s = 0; s < 2; ++s)
    EXPECT_NEAR(run_.metrics("averaged").at(s).at("loss").get<double>(), whole[2 + s].at("loss").get<double>(), 1e-5);
  r = run_.train(1, "weights", {"--run.steps", "1", "--model.path", folder, "--model.extra_tensors", "ignore"});
  EXPECT_EQ(r.code, 0) << r.output;
  r = run_.train(1, "average", {"--run.steps", "1", "--model.path", folder + "/ema.pt"});
  EXPECT_EQ(r.code, 0) << r.output;
  expect_refused("folder_order", 3, {"0.exp_avg of pytorch_optim.bin.index.json: expected", "in another order"});
  expect_refused("folder_short", 3, {"pytorch_optim-00002.bin, which is not there"});
  expect_refused("folder_weights", 3, {"has no optimizer/", "model.path"});
  const Result flat =
      run_.train(1, "flat", {"--run.steps", "4", "--run.resume", saved("folder_flat"), "--train.ema", "0.9"});
  EXPECT_EQ(flat.code, 3) << flat.output;
  EXPECT_NE(flat.output.find("the first rank's part alone"), std::string::npos) << flat.output;
}

/// Its optimiser has the other parameters alone, numbered without them.
TEST_F(ForeignResume, AModuleThatItsTrainerFrozeBeginsWithMomentsOfZero) {
  for (const std::string form : {"folder_zeros", "folder_frozen"}) {
    const Result r = run_.train(1, form, {"--run.steps", "4", "--run.resume", saved(form)});
    ASSERT_EQ(r.code, 0) << r.output;
    const bool told = r.output.find("text_embedding has no moments there (4 parameters") != std::string::npos;
    EXPECT_EQ(told, form == "folder_frozen") << r.output;
  }
  EXPECT_EQ(run_.model("folder_frozen"), run_.model("folder_zeros"));
  EXPECT_NE(run_.model("folder_frozen"), run_.model("whole"));
  expect_refused("folder_frozen_block", 3, {"without each of blocks.0, blocks.1", "which of these was frozen"});
}

TEST_F(ForeignResume, AdaptersOfATrainersFolderAreGoneOnFrom) {
  const std::vector<std::string> lora = {"--run.steps", "2", "--train.mode", "lora",
                                         "--lora.rank", "4", "--model.path", run_.out("whole") + "/model"};
  const auto train = [&](const std::string& name, const std::string& key, const std::string& value) {
    auto flags = lora;
    if (!key.empty()) flags.insert(flags.end(), {key, value});
    return run_.train(1, name, flags);
  };
  Result r = train("adapters", "", "");
  ASSERT_EQ(r.code, 0) << r.output;
  const std::string own = run_.out("adapters") + "/model/pytorch_lora_weights.safetensors";
  const fs::path peft = run_.folder() / "peft", folder = run_.folder() / "epoch0-global_step2";
  r = run_.tessera({"convert", own, peft.string(), "--to", "peft"});
  ASSERT_EQ(r.code, 0) << r.output;
  fs::create_directories(folder / "lora");
  fs::copy(peft / "adapter_config.json", folder / "lora/adapter_config.json");
  r = write(kAdapterWriter, peft / "adapter_model.safetensors", folder / "lora/adapter_model.bin");
  ASSERT_EQ(r.code, 0) << r.output;
  std::ofstream(folder / "running_states.json")
      << R"({"epoch": 0, "step": 4, "global_step": 4, "actual_update_step": 2})";
  std::vector<std::vector<double>> losses;
  for (const std::string& from : {own, (folder / "lora").string()}) {
    r = train("from" + std::to_string(losses.size()), "--lora.init", from);
    ASSERT_EQ(r.code, 0) << r.output;
    auto& list = losses.emplace_back();
    for (const auto& step : run_.metrics("from" + std::to_string(losses.size() - 1))) list.push_back(step.at("loss"));
  }
  ASSERT_EQ(losses[0].size(), 2u);
  EXPECT_EQ(losses[0], losses[1]) << "the same adapters";
  r = train("resumed", "--run.resume", folder.string());
  EXPECT_EQ(r.code, 2) << r.output;
  EXPECT_NE(r.output.find("lora.init"), std::string::npos) << r.output;
}

TEST_F(ForeignResume, WhatIsNoWholeStateIsRefusedByName) {
  expect_refused("sharded", 3, {"ShardedTensor", "FULL_STATE_DICT"});
  expect_refused("missing", 3, {"has no optimizer.state.4.exp_avg", "every parameter"});
  expect_refused("order", 3, {"optimizer.state.0.exp_avg: expected", "in another order"});
  expect_refused("groups", 3, {"2 groups of parameters", "by name"});
  expect_refused("stepless", 3, {"has no step"});
  EXPECT_FALSE(fs::exists(run_.out("refused") + "/adopted")) << "nothing was written";
  const Result lora =
      run_.train(1, "lora", {"--run.steps", "4", "--run.resume", saved("numbers"), "--train.mode", "lora"});
  EXPECT_EQ(lora.code, 2) << lora.output;
  EXPECT_NE(lora.output.find("it has no adapters"), std::string::npos) << lora.output;
}

}  // namespace
}  // namespace tessera::testing
