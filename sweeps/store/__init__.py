"""MLflow: what is written to it, how it is read back, its copies and its pages. The only home of mlflow."""
