"""What of a trial's settings is in force, asked of what runs it: the traced step and TensorFlow. Nothing here looks
at what was asked for."""

from __future__ import annotations

from typing import Any

CONTRACTIONS = ("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter", "DepthwiseConv2dNative", "MatMul")
ONE_BY_ONE, GROUPED = "HorovodAllreduce", "HorovodGroupedAllreduce"


def of_step(graph: Any) -> dict[str, str]:
    """Return what a traced step (a GraphDef) has in force: the formats that it multiplies in, whether XLA compiles it,
    how it reduces its gradients and in which formats. A rank alone reduces nothing."""
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    is_compiled = any(function.attr["_XlaMustCompile"].b for function in graph.library.function)
    found = {"precision": _formats(nodes, CONTRACTIONS), "xla": "on" if is_compiled else "off"}
    if reduced := {node.op for node in nodes} & {ONE_BY_ONE, GROUPED}:
        found["reduction"] = "grouped" if GROUPED in reduced else "one by one"
        found["compression"] = _formats(nodes, reduced)
    return found


def _formats(nodes: Any, operations: Any) -> str:
    import tensorflow as tf

    return ", ".join(sorted({tf.dtypes.as_dtype(node.attr["T"].type).name for node in nodes if node.op in operations}))


def of_tensorflow() -> dict[str, str]:
    """Return what this process has in force."""
    import tensorflow as tf

    return {
        "tf32": "on" if tf.config.experimental.tensor_float_32_execution_enabled() else "off",
        "intra_op_threads": str(tf.config.threading.get_intra_op_parallelism_threads()),
        "inter_op_threads": str(tf.config.threading.get_inter_op_parallelism_threads()),
    }
