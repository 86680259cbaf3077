"""Each committed `*_pb2.py` is what `make proto` makes of its proto file, and runs with the protobuf of users."""

from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

from tpsl.net import scoring_pb2, wire_pb2

SOURCES = Path(__file__).parents[2] / "src"
GENERATED = pytest.mark.parametrize("generated", [wire_pb2, scoring_pb2], ids=["wire", "scoring"])


@GENERATED
def test_the_generated_code_is_that_of_the_proto_file(generated: ModuleType, tmp_path: Path) -> None:
    compiled, proto = tmp_path / "compiled.binpb", SOURCES / generated.DESCRIPTOR.name
    assert protoc.main(["protoc", f"-I{SOURCES}", f"--descriptor_set_out={compiled}", str(proto)]) == 0
    (wanted,) = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes()).file
    # protoc gives each field its JSON name as well, which the generated code leaves out.
    for message in wanted.message_type:
        for field in message.field:
            field.ClearField("json_name")
    assert descriptor_pb2.FileDescriptorProto.FromString(generated.DESCRIPTOR.serialized_pb) == wanted


@GENERATED
def test_the_generated_code_does_not_ask_for_the_protobuf_of_its_compiler(generated: ModuleType) -> None:
    assert generated.__file__ is not None
    assert "runtime_version" not in Path(generated.__file__).read_text()
