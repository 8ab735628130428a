"""Signs and the mean magnitude; decode() is for a unit of one tensor."""
from payloads import signs


def decode(parameters, n, payload):
    return signs.decode_tensors([n], payload)
