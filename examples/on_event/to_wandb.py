#!/usr/bin/env python3
"""Events of a run to Weights & Biases:  run.on_event = "python3 examples/on_event/to_wandb.py"."""
import json
import os
import sys

import wandb

run = wandb.init(project=os.environ.get("WANDB_PROJECT", "tessera"), name=os.path.basename(os.environ["TESSERA_RUN"]))
for line in sys.stdin:
    event = json.loads(line)
    if event["type"] == "step":
        run.log({key: event[key] for key in ("loss", "grad_norm", "lr", "seconds", "mfu") if event.get(key) is not None},
                step=event["step"])
    elif event["type"] == "sample":
        run.log({"sample": wandb.Video(event["file"], caption=event["prompt"])}, step=event["step"])
    elif event["type"] in ("fault", "skip", "warning"):
        run.alert(title=event["type"], text=event.get("text") or event.get("why", ""))
run.finish()
