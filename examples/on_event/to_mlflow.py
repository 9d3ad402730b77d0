#!/usr/bin/env python3
"""Events of a run to MLflow:  run.on_event = "python3 examples/on_event/to_mlflow.py"."""
import json
import os
import sys

import mlflow

mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", "tessera"))
with mlflow.start_run(run_name=os.path.basename(os.environ["TESSERA_RUN"])):
    for line in sys.stdin:
        event = json.loads(line)
        if event["type"] == "step":
            mlflow.log_metrics({key: event[key] for key in ("loss", "grad_norm", "lr", "seconds", "mfu")
                                if event.get(key) is not None}, step=event["step"])
        elif event["type"] == "sample":
            mlflow.log_artifact(event["file"], "samples")
