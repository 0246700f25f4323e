"""Lists the devices of an rpc-server through the .proto files alone, as a client in another language does.

Usage: list_devices.py PROTO_DIR HOST:PORT. Needs grpcio, grpcio-tools, grpcio-health-checking and grpcio-reflection.
Prints one JSON document: version, devices, health, services.
"""

import json
import sys
import tempfile
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_tools import protoc

DEADLINE = 10


def main() -> None:
    proto_dir, endpoint = sys.argv[1:]
    with tempfile.TemporaryDirectory() as out:
        files = [str(f.relative_to(proto_dir)) for f in sorted(Path(proto_dir).rglob("*.proto"))]
        if protoc.main(["protoc", f"-I{proto_dir}", f"--python_out={out}", f"--grpc_python_out={out}", *files]) != 0:
            sys.exit("the .proto files do not compile")
        sys.path.insert(0, out)
        from outboard.v1 import devices_pb2, hello_pb2, outboard_pb2_grpc

        with grpc.insecure_channel(endpoint) as channel:
            stub = outboard_pb2_grpc.OutboardStub(channel)
            hello = stub.Hello(
                hello_pb2.HelloRequest(min_version=1, max_version=1, client="python"), timeout=DEADLINE
            )
            health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE)
            services = ProtoReflectionDescriptorDatabase(channel).get_services()
            listed = stub.Devices(devices_pb2.DevicesRequest(), timeout=DEADLINE).devices
            assert [d.name for d in listed] == [d.name for d in hello.devices]
            devices = [
                {"name": d.name, "kind": d.kind, "backend": d.backend, "memory_total": d.memory_total}
                for d in listed
            ]
            status = health_pb2.HealthCheckResponse.ServingStatus.Name(health.status)
            json.dump(
                {"version": hello.version, "devices": devices, "health": status, "services": sorted(services)},
                sys.stdout,
            )


main()
