"""Where FP8 pays."""

from ._errors import Error
from .context import parse_device, shared


def fp8_worthwhile(m, n, k, device=None):
    """Whether a Linear of m tokens, n outputs and k inputs is expected to be faster in FP8 than in bfloat16, forward and backward.

    An estimate from the device's rates: products at half the time, against the casts' memory traffic and launches. False where there is
    no such device, or where it has no FP8 tensor cores. device: None is the current CUDA device.
    """
    kind, index = parse_device("cuda" if device is None else device)
    if kind == "cpu":
        return False
    try:
        if not shared(index).capability().fp8_gemm_hardware:
            return False
    except Error:
        return False
    # Measured on one H200: products near 700 and 1200 TFLOP/s, casts near 3.5 TB/s, 2 µs for each more launch (four of them).
    products = 6.0 * m * n * k
    saved = products / 700e12 - products / 1200e12
    traffic = 4.0 * (m * k + n * k + m * n)
    return saved > traffic / 3.5e12 + 8e-6
