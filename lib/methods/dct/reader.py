"""Values that reach a threshold and where they belong."""
from payloads.common import sparse


def decode(parameters, n, payload):
    return sparse(payload, n)
