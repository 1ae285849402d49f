"""The data plane: what runs on the nodes. Never imports sweeps, ray.tune or mlflow."""
