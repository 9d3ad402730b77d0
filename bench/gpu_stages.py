"""The stages of scripts/gpu: what is run on a GPU and for how long, in the order of its value; on a CPU its dry form.

A command is for a shell, with {bin}, {goldens}, {demo}, {root} and {python}; {keep} is a folder whose files come back, {probed} where
the profile of the machine is written, {profile} the same or, where there is none yet, a shipped one.
"""
from dataclasses import dataclass


@dataclass
class Stage:
    name: str
    seconds: int  # that it may take
    command: str
    dry: str  # on a CPU, for which it has more seconds; empty: nothing to do there
    programs: bool = True  # needs ours; otherwise it needs a Python with torch, and waits until that has been imported once
    lacks: tuple = ()  # what a stage prints where the machine does not have what it needs, which is no failure
    patience: int = 0  # seconds after which it is cut off, where that is not `seconds`


GIVEN = {"first": 480, "second": 200, "later": 540}  # seconds of a call
SPARE = 15  # of those, at its end

# A step of the engine on synthetic data, with products and attention in bf16: blocks of Wan's 1.3B at 7,800 tokens, one of the 14B
# at 32,760.
CONFIG = "--config '{{\"dim\":{},\"num_heads\":{},\"num_layers\":{},\"ffn_dim\":{},\"in_dim\":16,\"out_dim\":16}}' "
STEP = "{bin}/tessera bench --device cuda --compute bf16 --latent 16,5,60,104 " + CONFIG.format(1536, 12, 4, 8960) + "--steps 4 --warmup 2 --recompute all"
DRY_STEP = "{bin}/tessera bench --compute bf16 --latent 16,1,8,8 " + CONFIG.format(64, 4, 2, 128) + "--steps 2 --warmup 1 --recompute all"

# On the simulated device, which says that it is an H100 and computes on one core.
DEVICE = "OMP_NUM_THREADS=1 TESSERA_SIMULATED_CHIP=sm_90 {bin}/tessera_on_device "
NO_DEVICE = ("tessera_on_device: No such file",)
SIMULATED, NO_SIMULATED = "{bin}/test_ops_simulated ", ("test_ops_simulated: No such file",)

# How fast the table's functions are, on a GiB of values each, and page-locked memory. On a CPU the simulated device has a few values.
TIMES, PINNED, FIGURES = "TableTimes.*", "PinnedMemory.*", "GpuFigures.*"
NOT_TIMED = f"--gtest_filter=-{TIMES}:{PINNED}:{FIGURES}"

# What compute-sanitizer says where the host hides the debugger's interface, as gVisor does, and what the shell says of none.
NO_SANITIZER = ("Device not supported", "compute-sanitizer: command not found")

PROBE = "probe --device cuda --folder {keep} --out {probed} ${TESSERA_GPU_HOST:+--host-memory $TESSERA_GPU_HOST}"

# Random plans against the plain loop on the CPU. A rank has 1 GiB of the GPU for its models of a megabyte, so two share one.
PLANS = "TESSERA_TEST_DEVICE=1 TESSERA_TEST_ALL=1 {bin}/plan_worker launch "
DRY_PLANS = "OMP_NUM_THREADS=1 TESSERA_TEST_DEVICE=1 TESSERA_TEST_ALL=1 TESSERA_TEST_BOUND=1 {bin}/plan_worker_on_device launch "
NO_PLANS = ("plan_worker_on_device: No such file",)
OF_TWO = ("dp_shard=2", "dp_replicate=2", "sp=2", "cp=2", "tp=2", "pp=2")
SHARED = "export CUDA_VISIBLE_DEVICES=0 TESSERA_SHARE_GPU=1; "
DRY_SHARED = "export TESSERA_SIMULATED_DEVICES=1 TESSERA_SHARE_GPU=1; "
TWO_GPUS = '[ "$(nvidia-smi -L | wc -l)" -ge 2 ] || { echo "this machine has one GPU"; exit 1; }; '
ONE_GPU = ("this machine has one GPU",)
TWO_RANKS = STEP.replace("bench", "launch -n 2 bench", 1)
DRY_TWO_RANKS = DEVICE + DRY_STEP.removeprefix("{bin}/tessera ").replace("bench", "launch -n 2 bench --device cuda", 1)


def plans(meshes, first, count):
    """`count` plans of each mesh: jobs of plan_worker."""
    return " ".join(f"{mesh}/{first + i * count}/{first + (i + 1) * count}" for i, mesh in enumerate(meshes))


# Steps of the 14B at 32,760 tokens, held against their plans by the profile.
def steps(what, program="{bin}/tessera", more=""):
    return "python3 {root}/bench/gpu_steps.py " + f"{what} {program}" + " --keep {keep} --profile {profile}" + more


def dry_steps(what):
    return "OMP_NUM_THREADS=1 TESSERA_SIMULATED_CHIP=sm_90 " + steps(what, "{bin}/tessera_on_device", " --small")


NO_STEPS = ("it does not fit this GPU", "tessera_on_device'")  # Python quotes the program that it does not find


def of_steps(name, seconds, what):
    return Stage(name, seconds, steps(what), dry_steps(what), lacks=NO_STEPS)


def figure(test, settings=""):
    """A test that prints numbers: a command, and its dry form."""
    return (f"{settings} {{bin}}/test_ops_gpu --gtest_filter=GpuFigures.{test}".strip(), SIMULATED + f"--gtest_filter=GpuFigures.{test}")


# cuDNN bounded by its own variable, small and large; and by the allocator, in each.
CONVOLUTION = figure("ConvolutionWorkspace", "TESSERA_CONVOLUTION_SIDE=240 CUDNN_CONV_WSCAP_DBG=64")
LARGER = figure("ConvolutionWorkspace", "TESSERA_CONVOLUTION_SIDE=240 CUDNN_CONV_WSCAP_DBG=4096")
MESSAGE = figure("HostTimeOfAMessage", "TESSERA_MESSAGES=200")
GOLDENS = "python3 {root}/bench/gpu_goldens.py {bin}/tessera {goldens} "
DEMO = "{root}/scripts/gpu-demo check {demo} {bin}/tessera "
NO_DEMO = ("has no curve.json",)
# One test that computes on a GPU. It is skipped where the library does not open; where it has passed once, it tells later whether the
# GPU answers still.
SUM = "{bin}/test_cuda_table --gtest_filter=Table.TensorsComeFromTheGivenAllocator | tee /dev/stderr | "
OPENS, ANSWERED = SUM + "{ ! grep -q SKIPPED; }", "  OK ]"
ANSWERS = SUM + f"grep -q '{ANSWERED}'"
LISTED = " && ".join("{bin}/" + name + " --gtest_list_tests > /dev/null" for name in ("test_cuda_gpu", "test_cuda_table", "test_ops_gpu"))

FIRST = [
    Stage("loader", 15, "{bin}/tessera --version && " + LISTED + " && " + OPENS,
          "{bin}/tessera --version && {bin}/test_ops_gpu --gtest_list_tests > /dev/null", patience=60),
    Stage("table and kernels", 20, "{bin}/test_cuda_table " + NOT_TIMED + " && {bin}/test_cuda_gpu " + NOT_TIMED, "{bin}/test_cuda_table && {bin}/test_cuda",
          lacks=("test_cuda: No such file",)),  # on a CPU: no pack has it
    Stage("memory after each first use", 10, *figure("MemoryAfterEachFirstUse"), lacks=NO_SIMULATED),
    Stage("attention", 40, "{python} {root}/bench/gpu_torch.py", "{python} {root}/bench/gpu_torch.py", programs=False),
    Stage("operators", 40, "{bin}/test_ops_gpu " + NOT_TIMED, SIMULATED + NOT_TIMED, lacks=NO_SIMULATED),
    Stage("goldens", 60, GOLDENS + "--seconds 57", GOLDENS + "--seconds 170 --device cpu"),
    of_steps("a block of the 14B, kept", 40, "block"),
    of_steps("eight blocks, recomputed", 50, "recompute"),
    Stage("demo", 30, DEMO + "cuda", DEMO + "cpu", lacks=NO_DEMO),
    Stage("demo with streams that spin", 20, "TESSERA_SPIN=1 " + DEMO + "cuda", "", lacks=NO_DEMO),
    Stage("random plans", 45, PLANS + plans(["dp_shard=1"], 0, 40) + " && " + SHARED + PLANS + plans(OF_TWO[:4], 0, 1),
          DRY_PLANS + plans(["dp_shard=1"], 0, 3) + " && " + DRY_SHARED + DRY_PLANS + plans(OF_TWO[:1], 0, 1), lacks=NO_PLANS),
    of_steps("a step of the 14B", 70, "real"),
    Stage("probe", 25, "{bin}/tessera " + PROBE + " --seconds 0.05", DEVICE + PROBE + " --small --seconds 0.001", lacks=NO_DEVICE, patience=90),
]
SECOND = [
    Stage("demo with graphs", 30, DEMO + "cuda --plan.graphs on",
          "OMP_NUM_THREADS=1 " + DEMO.replace("{bin}/tessera", "{bin}/tessera_on_device") + "cuda --plan.graphs on", lacks=NO_DEMO + NO_STEPS),
    Stage("states on the host", 25, STEP + " --offload-states", DRY_STEP + " --offload-states"),
    Stage("page-locked memory", 15, "TESSERA_PINNED_MIB=8192 {bin}/test_ops_gpu --gtest_filter=" + PINNED, SIMULATED + "--gtest_filter=" + PINNED,
          lacks=NO_SIMULATED),
    Stage("workspace of convolutions", 15, *CONVOLUTION, lacks=NO_SIMULATED),
    Stage("workspace of convolutions, bounded less", 10, *LARGER, lacks=NO_SIMULATED),
    Stage("host time of a message", 15, *MESSAGE, lacks=NO_SIMULATED),
    Stage("times of the table", 15, "TESSERA_TIMED_VALUES=268435456 {bin}/test_ops_gpu --gtest_filter=" + TIMES, SIMULATED + "--gtest_filter=" + TIMES,
          lacks=NO_SIMULATED),
    Stage("memcheck", 40, "compute-sanitizer --tool memcheck --error-exitcode 9 {bin}/test_cuda_gpu", "", lacks=NO_SANITIZER),
]
LATER = [
    Stage("whole probe", 90, "{bin}/tessera " + PROBE, DEVICE + PROBE + " --small --seconds 0.001", lacks=NO_DEVICE),
    of_steps("eight blocks, kept", 50, "keep"),
    of_steps("eight blocks, offloaded", 60, "offload"),
    of_steps("eight blocks, just in time", 60, "just-in-time"),
    of_steps("the whole 14B", 280, "whole"),
    Stage("200 random plans", 150, PLANS + plans(["dp_shard=1"], 0, 200), DRY_PLANS + plans(["dp_shard=1"], 0, 6), lacks=NO_PLANS),
    Stage("two ranks on one GPU", 90, SHARED + PLANS + plans(OF_TWO, 0, 4) + " && " + TWO_RANKS,
          DRY_SHARED + DRY_PLANS + plans(OF_TWO, 0, 1) + " && " + DRY_TWO_RANKS, lacks=NO_PLANS),
    Stage("two GPUs by NCCL", 90, TWO_GPUS + PLANS + plans(OF_TWO, 0, 4) + " && " + TWO_RANKS,
          "export TESSERA_SIMULATED_DEVICES=2; " + DRY_PLANS + plans(OF_TWO, 0, 1) + " && " + DRY_TWO_RANKS, lacks=ONE_GPU + NO_PLANS),
    Stage("host time of a message between two", 30, TWO_GPUS + "TESSERA_MESSAGE_RANKS=2 " + MESSAGE[0], "", lacks=ONE_GPU),
    Stage("probe of all GPUs", 110, TWO_GPUS + "{bin}/tessera launch " + PROBE,
          "TESSERA_SIMULATED_DEVICES=2 " + DEVICE + "launch " + PROBE + " --small --seconds 0.001", lacks=ONE_GPU + NO_DEVICE),
    Stage("racecheck", 60, "compute-sanitizer --tool racecheck --error-exitcode 9 {bin}/test_cuda_gpu", "", lacks=NO_SANITIZER),
]
CALLS = {"first": FIRST, "second": SECOND, "later": LATER}
