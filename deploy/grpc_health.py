"""Asks for a service's health over gRPC: ``python - ADDRESS < deploy/grpc_health.py``.

It runs inside an image, so it shows that the image has what gRPC needs.
"""

import sys

import grpc

SERVING = b"\x08\x01"  # the message HealthCheckResponse: field 1 has the value 1

with grpc.insecure_channel(sys.argv[1]) as channel:
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    answer = check(b"", timeout=10, wait_for_ready=True)
assert answer == SERVING, answer
print("gRPC: serving")
