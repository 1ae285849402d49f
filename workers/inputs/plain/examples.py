"""The two fields of a record that are an image and its label.

A record is a `tf.train.Example`, a map of lists by name. Its messages are described here, as TensorFlow's example.proto
and feature.proto have them, for their parser comes with protobuf and their description only with TensorFlow.
"""

from __future__ import annotations

import functools
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

Field = descriptor_pb2.FieldDescriptorProto
LISTS = {"bytes_list": Field.TYPE_BYTES, "float_list": Field.TYPE_FLOAT, "int64_list": Field.TYPE_INT64}


class NoExample(Exception):  # noqa: N818 — a finding about a record, not an error of ours
    """This record has no image with a label."""


def parsed(record: bytes) -> tuple[bytes, int]:
    """Return the encoded image of a record, and its label as it is written there."""
    try:
        feature = example_type().FromString(record).features.feature
    except DecodeError as error:
        raise NoExample(f"must be a tf.train.Example, but got {error}") from error
    encoded, label = feature["image/encoded"].bytes_list.value, feature["image/class/label"].int64_list.value
    if len(encoded) != 1 or len(label) != 1:
        raise NoExample(f"must have one image/encoded and one image/class/label, but got {len(encoded)}, {len(label)}")
    return encoded[0], label[0]


@functools.cache
def example_type() -> Any:
    """Return the class of `tf.train.Example`, in a pool of its own: where TensorFlow is, it has one too."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="records", syntax="proto3")
    for name, kind in LISTS.items():
        message = file.message_type.add(name=name)
        message.field.add(name="value", number=1, type=kind, label=Field.LABEL_REPEATED)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(LISTS, start=1):
        _holds(feature, name, number, f"records.{name}").oneof_index = 0
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
    _holds(entry, "value", 2, "records.Feature")
    _holds(features, "feature", 1, "records.Features.FeatureEntry").label = Field.LABEL_REPEATED
    _holds(file.message_type.add(name="Example"), "features", 1, "records.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("records.Example"))


def _holds(message: Any, name: str, number: int, type_name: str) -> Any:
    """Give a message a field that is another message; return the field."""
    kind = Field.TYPE_MESSAGE
    return message.field.add(name=name, number=number, type=kind, type_name=f".{type_name}", label=Field.LABEL_OPTIONAL)
