#!/usr/bin/env python3
"""The files of examples/ for schedulers: read, and their commands run on this machine with the variables that the scheduler
sets. A machine of a file is a launcher here, without GPUs, so with one rank; a training of two steps has to come out.

    tests/scripts/schedulers_test.py PROGRAM
"""
import json
import os
import re
import shlex
import socket
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCHEDULERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "SLURM_", "PET_", "OMPI_", "SKYPILOT_", "JOB_COMPLETION", "TESSERA_")


def scalar(text):
    text = text.strip()
    if text.startswith(("[", '"')):
        return json.loads(text)
    return {"null": None, "true": True, "false": False}.get(text, int(text) if re.fullmatch(r"\d+", text) else text)


class Yaml:
    """What our files use of YAML: tables, lists, flow lists, texts of several lines, anchors."""

    def __init__(self, text):
        self.lines = [re.sub(r"(^|\s)#.*", "", line).rstrip() for line in text.splitlines()]
        self.raw, self.at, self.anchors = text.splitlines(), 0, {}

    def indent(self):
        while self.at < len(self.lines) and not self.lines[self.at].strip():
            self.at += 1
        line = self.lines[self.at] if self.at < len(self.lines) else ""
        return len(line) - len(line.lstrip()) if line else -1

    def block(self):
        depth = self.indent()
        is_list = self.lines[self.at].lstrip().startswith("- ")
        found = [] if is_list else {}
        while self.indent() == depth and self.lines[self.at].lstrip().startswith("- ") == is_list:
            line = self.lines[self.at].strip()
            if is_list:
                if not re.match(r"[\w.]+:", line[2:]):
                    found.append(scalar(line[2:]))
                    self.at += 1
                    continue
                self.lines[self.at] = " " * (depth + 2) + line[2:]
                found.append(self.block())
                continue
            key, _, value = line.partition(":")
            value, self.at = value.strip(), self.at + 1
            anchor = value[1:] if value.startswith("&") else None
            if value == "|":
                found[key] = self.text(depth)
            elif value.startswith("*"):
                found[key] = self.anchors[value[1:]]
            elif value and not anchor:
                found[key] = scalar(value)
            else:
                deeper = self.indent()
                nested = deeper > depth or (deeper == depth and self.lines[self.at].lstrip().startswith("- "))
                found[key] = self.block() if nested else None
            if anchor:
                self.anchors[anchor] = found[key]
        return found

    def text(self, depth):
        lines = []
        while self.at < len(self.raw) and (not self.raw[self.at].strip() or self.raw[self.at].startswith(" " * (depth + 1))):
            lines.append(self.raw[self.at].strip())
            self.at += 1
        return "".join(line + "\n" for line in lines)


def documents(name):
    text = (EXAMPLES / name).read_text()
    found = [Yaml(part).block() for part in text.split("\n---\n")]
    try:
        import yaml
    except ImportError:
        return found
    assert found == list(yaml.safe_load_all(text)), f"{name} is read in two ways"
    return found


def picture(file, shade):
    rows = b"".join(b"\0" + b"".join(bytes((x * 7 % 256, y * 7 % 256, shade)) for x in range(32)) for y in range(32))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0)
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return str(held.getsockname()[1])


RECIPE = """[run]
out = "{folder}/run"
steps = 2
[model]
family = "wan"
config = {{ dim = 64, ffn_dim = 128, num_heads = 4, num_layers = 1, in_dim = 12, out_dim = 12, freq_dim = 32, text_dim = 64, text_len = 16 }}
[data]
path = "{folder}/data"
cache = "{folder}/cache"
size = [32, 32]
frames = 1
vae = "haar"
text_encoder = "umt5-demo"
[train]
global_batch = 2
lr = 1e-3
"""

# What srun is here: it starts the tasks of the job with their variables, on "two machines" that are this one.
SRUN = r"""#!/usr/bin/env python3
import os, subprocess, sys
words = sys.argv[1:]
flags = [words.pop(0) for _ in list(words) if words[0].startswith("--")]
nodes, each = int(os.environ["FAKE_NODES"]), int(os.environ["FAKE_TASKS"])
open(os.environ["FAKE_LOG"], "a").write("srun " + " ".join(flags) + "\n")
tasks = []
for rank in range(nodes * each):
    told = {"SLURM_PROCID": rank, "SLURM_LOCALID": rank % each, "SLURM_NODEID": rank // each, "SLURM_STEP_ID": 0,
            "SLURM_STEP_NUM_TASKS": nodes * each, "SLURM_STEP_NUM_NODES": nodes, "SLURM_STEP_NODELIST": "localhost,other",
            "SLURM_STEP_TASKS_PER_NODE": f"{each}(x{nodes})"}
    tasks.append(subprocess.Popen(words, env=os.environ | {name: str(value) for name, value in told.items()}))
sys.exit(max(task.wait() for task in tasks))
"""


class Schedulers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.kept = tempfile.TemporaryDirectory(prefix="tessera-schedulers-")
        cls.shared = Path(cls.kept.name)
        (cls.shared / "data").mkdir()
        for i in range(3):
            picture(cls.shared / f"data/{i}.png", 80 * i)
            (cls.shared / f"data/{i}.txt").write_text(f"a picture, number {i}")

    @classmethod
    def tearDownClass(cls):
        cls.kept.cleanup()

    def setUp(self):
        self.folder = self.shared / self.id().rsplit(".", 1)[1]
        (self.folder / "bin").mkdir(parents=True)
        for shared in ("data", "cache"):
            (self.shared / shared).mkdir(exist_ok=True)
            (self.folder / shared).symlink_to(self.shared / shared)
        self.recipe = self.folder / "recipe.toml"
        self.recipe.write_text(RECIPE.format(folder=self.folder))
        (self.folder / "bin/tessera").symlink_to(PROGRAM)
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(SCHEDULERS)}
        self.environment |= {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}

    def tool(self, name, text):
        file = self.folder / "bin" / name
        file.write_text(text)
        file.chmod(0o755)

    def together(self, machines, code=0):
        """Runs the commands, each with its variables, and wants the code of each; gives what they said."""
        running = []
        for i, (words, variables) in enumerate(machines):
            with open(self.folder / f"log-{i}", "w") as log:
                running.append(subprocess.Popen(words, env=self.environment | variables, stdout=log, stderr=log))
        codes = [each.wait(120) for each in running]
        said = [(self.folder / f"log-{i}").read_text() for i in range(len(machines))]
        self.assertEqual(codes, [code] * len(machines), "\n".join(said))
        return said

    def rows(self):
        rows = map(json.loads, (self.folder / "run/metrics.jsonl").read_text().splitlines())
        return [(row["step"], len(row["ranks"])) for row in rows if row["type"] == "step"]

    def batch(self, name, tasks, more=()):
        """The script as sbatch runs it, with as many machines as it asks for and `tasks` on each."""
        script = EXAMPLES / "slurm" / name
        asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", script.read_text(), re.M))
        self.tool("srun", SRUN)
        self.tool("scontrol", "#!/bin/sh\necho scontrol $* >> $FAKE_LOG\n")
        log = self.folder / "calls"
        variables = {"FAKE_NODES": asked["nodes"], "FAKE_TASKS": str(tasks), "FAKE_LOG": str(log), "SLURM_JOB_ID": str(os.getpid()),
                     "SLURM_NNODES": asked["nodes"], "SLURM_JOB_NODELIST": "localhost,other", "ENVIRONMENT": "BATCH",
                     "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_CPUS_PER_TASK": "1",
                     "SLURM_NTASKS": str(int(asked["nodes"]) * tasks)}
        done = subprocess.run(["bash", script, self.recipe, *more], env=self.environment | variables, capture_output=True, text=True)
        return asked, done, log.read_text()

    def test_sbatch_with_a_task_for_each_gpu(self):
        asked, done, calls = self.batch("rank_a_gpu.sbatch", tasks=1)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.rows(), [(1, 2), (2, 2)], "steps of two ranks")
        self.assertEqual(asked["ntasks-per-node"], asked["gpus-per-node"])
        self.assertIn("--kill-on-bad-exit=1", calls)
        self.assertNotIn("scontrol", calls)

    def test_sbatch_with_a_launcher_for_each_machine(self):
        asked, done, calls = self.batch("launcher_a_node.sbatch", tasks=1)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.rows(), [(1, 2), (2, 2)], "steps of two ranks")
        self.assertEqual(asked["ntasks-per-node"], "1")
        self.assertIn("machine 1 of 2 by srun's variables, rendezvous at localhost:", done.stdout + done.stderr)

    def test_sbatch_queues_again_what_a_signal_stopped_and_nothing_else(self):
        for name in ("rank_a_gpu.sbatch", "launcher_a_node.sbatch"):
            for code, again in ((75, True), (5, True), (3, False)):
                (self.folder / "bin/tessera").unlink()
                self.tool("tessera", f"#!/bin/sh\nexit {code}\n")
                (self.folder / "calls").unlink(missing_ok=True)
                asked, done, calls = self.batch(name, tasks=1)
                self.assertEqual((done.returncode, f"scontrol requeue {os.getpid()}" in calls), (code, again))
                self.assertRegex(asked["signal"], r"^(USR1|TERM)@\d+$")

    def pods_of(self, spec, machines, host, address):
        """Runs a pod template's container for each machine; `machines` has their variables. `host`: the name that pod 0 must be
        called by."""
        container, = spec["containers"]
        self.assertGreaterEqual(spec["terminationGracePeriodSeconds"], 60)
        shm, = (v for v in spec["volumes"] if v["name"] == "shm")
        self.assertEqual(shm["emptyDir"]["medium"], "Memory")
        self.assertIn({"name": "shm", "mountPath": "/dev/shm"}, container["volumeMounts"])
        self.assertNotIn("command", container, "the image's entry point, not a shell, is process 1")
        variables = {}
        for entry in container["env"]:
            variables[entry["name"]] = entry["value"] if "value" in entry else "a secret of sixteen letters"
        if address:
            self.assertEqual(variables[address], host)
            variables |= {address: "127.0.0.1", "MASTER_PORT": free_port()}
        words = [PROGRAM, *(word.replace("/runs/recipe.toml", str(self.recipe)) for word in container["args"])]
        said = self.together([(words, variables | machine) for machine in machines])
        self.assertEqual(self.rows(), [(1, 2), (2, 2)], "steps of two ranks")
        return said

    def test_indexed_job(self):
        service, job = documents("kubernetes/indexed_job.yaml")
        spec, pod = job["spec"], job["spec"]["template"]["spec"]
        name = service["metadata"]["name"]
        self.assertEqual((service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]), ("None", True))
        self.assertEqual(service["spec"]["selector"], {"job-name": job["metadata"]["name"]})
        self.assertEqual((pod["subdomain"], spec["completionMode"], pod["restartPolicy"]), (name, "Indexed", "Never"))
        self.assertEqual(spec["completions"], spec["parallelism"])
        args = pod["containers"][0]["args"]
        self.assertEqual(args[args.index("--nnodes") + 1], str(spec["completions"]))
        fails = spec["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"]
        self.assertFalse({0, 5, 70, 75} & set(fails), "after these it goes on")
        self.pods_of(pod, [{"JOB_COMPLETION_INDEX": str(i)} for i in range(2)], f"{job['metadata']['name']}-0.{name}", "MASTER_ADDR")

    def test_jobset(self):
        jobset, = documents("kubernetes/jobset.yaml")
        replicated, = jobset["spec"]["replicatedJobs"]
        spec, name = replicated["template"]["spec"], jobset["metadata"]["name"]
        self.assertEqual((spec["completions"], spec["parallelism"], replicated["replicas"]), (2, 2, 1))
        self.assertTrue(jobset["spec"]["network"]["enableDNSHostnames"])
        self.pods_of(spec["template"]["spec"], [{"JOB_COMPLETION_INDEX": str(i)} for i in range(2)],
                     f"{name}-{replicated['name']}-0-0.{name}", "MASTER_ADDR")

    def test_pytorchjob(self):
        job, = documents("kubernetes/pytorchjob.yaml")
        replicas = job["spec"]["pytorchReplicaSpecs"]
        self.assertEqual({kind: spec["restartPolicy"] for kind, spec in replicas.items()}, {"Master": "OnFailure", "Worker": "OnFailure"})
        nodes = sum(spec["replicas"] for spec in replicas.values())
        self.assertEqual(replicas["Master"]["template"], replicas["Worker"]["template"])
        self.assertEqual(replicas["Master"]["template"]["spec"]["containers"][0]["name"], "pytorch", "the operator looks for it")
        port = free_port()
        set_by_operator = lambda i: {"PET_NNODES": str(nodes), "PET_NODE_RANK": str(i), "PET_NPROC_PER_NODE": "1", "RANK": str(i),
                                     "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": port, "MASTER_ADDR": "127.0.0.1",
                                     "MASTER_PORT": port, "WORLD_SIZE": str(nodes)}
        said = self.pods_of(replicas["Master"]["template"]["spec"], [set_by_operator(i) for i in range(nodes)], None, None)
        self.assertIn("machine 1 of 2 by PET_NNODES", said[1])

    def test_skypilot(self):
        task, = documents("skypilot/train.yaml")
        self.assertEqual(task["num_nodes"], 2)
        lines = [line for line in task["run"].splitlines() if not line.startswith("export PATH")]
        script = "\n".join(lines).replace("/runs/recipe.toml", str(self.recipe))
        variables = lambda i: {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": str(i), "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.2",
                               "TESSERA_TOKEN": "a secret of sixteen letters", "MASTER_PORT": port}
        port = free_port()
        self.together([(["bash", "-c", script], variables(i)) for i in range(2)])
        self.assertEqual(self.rows(), [(1, 2), (2, 2)], "steps of two ranks")

    def test_mpirun_starts_a_launcher_for_each_machine(self):
        port = free_port()
        variables = lambda i: {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": str(i), "OMPI_COMM_WORLD_LOCAL_RANK": "0",
                               "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "PMIX_NAMESPACE": "prterun-7@1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        self.together([([PROGRAM, "launch", "train", self.recipe], variables(i)) for i in range(2)])
        self.assertEqual(self.rows(), [(1, 2), (2, 2)], "steps of two ranks")

    def test_a_program_of_ones_own_is_started_for_each_rank(self):
        program = self.folder / "mine"
        program.write_text('#!/bin/sh\n[ "$1" = --help ] && echo its own help && exit 0\n'
                           'echo "rank $RANK of $WORLD_SIZE, on $MASTER_ADDR: $*"\nexit $((RANK == 1 ? $1 : 0))\n')
        program.chmod(0o755)
        launch = lambda *words: subprocess.run([PROGRAM, "launch", "-n", "2", *words], cwd=self.folder, env=self.environment,
                                               capture_output=True, text=True)
        done = launch("./mine", "0", "--table.key", "a b")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()),
                         [f"rank {rank} of 2, on 127.0.0.1: 0 --table.key a b" for rank in range(2)])
        self.assertIn("its own help", launch("./mine", "--help").stdout)
        self.assertEqual(launch("./mine", "7").returncode, 7)
        for words in ("./none",), (".",), (str(self.recipe),):
            self.assertEqual(launch(*words).returncode, 2)
        self.assertIn("A program of your own is ./mine", launch("mine").stderr)

    def test_images_start_the_program_itself_and_name_no_registry(self):
        docker = (EXAMPLES / "container/Dockerfile").read_text()
        instructions = re.findall(r"^([A-Z]+) (.*)$", docker, re.M)
        self.assertEqual(instructions[0], ("FROM", "debian:12"))
        self.assertEqual([json.loads(v) for k, v in instructions if k == "ENTRYPOINT"], [["tessera"]])
        self.assertLessEqual({k for k, _ in instructions}, {"FROM", "RUN", "COPY", "ENV", "WORKDIR", "ENTRYPOINT"})
        apptainer = (EXAMPLES / "container/tessera.def").read_text()
        sections = dict(re.findall(r"^%(\w+)\n((?:(?!%).*\n)*)", apptainer, re.M))
        self.assertEqual(set(sections), {"files", "post", "environment", "runscript"})
        for text in sections["post"], sections["runscript"], *(v.replace("\\\n", "") for k, v in instructions if k == "RUN"):
            self.assertEqual(subprocess.run(["bash", "-n"], input=text, text=True).returncode, 0)
        self.assertEqual(shlex.split(sections["runscript"]), ["exec", "tessera", "$@"])
        for text in docker, apptainer:
            self.assertNotRegex(text, r"https?://|index.url")


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
