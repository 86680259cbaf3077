"""The committed `wire_pb2.py` is what `make proto` makes of `wire.proto`, and runs with the protobuf of users."""

from pathlib import Path

from google.protobuf import descriptor_pb2
from grpc_tools import protoc

from tpsl.transport import wire_pb2

SOURCES = Path(__file__).parents[2] / "src"
PROTO = SOURCES / "tpsl" / "transport" / "wire.proto"


def test_the_generated_code_is_that_of_the_proto_file(tmp_path: Path) -> None:
    compiled = tmp_path / "wire.binpb"
    assert protoc.main(["protoc", f"-I{SOURCES}", f"--descriptor_set_out={compiled}", str(PROTO)]) == 0
    (wanted,) = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes()).file
    # protoc gives each field its JSON name as well, which the generated code leaves out.
    for message in wanted.message_type:
        for field in message.field:
            field.ClearField("json_name")
    assert descriptor_pb2.FileDescriptorProto.FromString(wire_pb2.DESCRIPTOR.serialized_pb) == wanted


def test_the_generated_code_does_not_ask_for_the_protobuf_of_its_compiler() -> None:
    assert wire_pb2.__file__ is not None
    assert "runtime_version" not in Path(wire_pb2.__file__).read_text()
