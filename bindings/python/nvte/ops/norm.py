"""LayerNorm and RMSNorm."""

from .. import _abi
from .._library import check, lib, packer
from ..dtypes import float32
from ._common import any_output, asked, first_space, handle_of, in_memory, scratch, whole

_forward = packer(_abi.nvte_norm_fwd_args_t, "zero_centered_gamma x gamma beta y mu rsigma eps reserved residual sum")
_backward = packer(
    _abi.nvte_norm_bwd_args_t, "zero_centered_gamma dy x gamma mu rsigma dx dgamma dbeta workspace workspace_bytes dsum"
)


def _fwd(function, x, gamma, beta, eps, zero_centered_gamma, mu, rsigma, with_mu, stats, residual, sum_out, kind, stream, context):
    space = first_space(x)
    source, rows, cols = space.high("x", x)
    more = total = None
    if residual is not None:
        more, _, _ = space.high("residual", space.require("residual", residual))
        if sum_out is None:
            sum_out = space.empty(x.shape, space.known(x))
        total, _, _ = space.high("sum_out", space.writable("sum_out", space.require("sum_out", sum_out)))
    elif sum_out is not None:
        raise ValueError("sum_out goes with a residual")
    out, target = any_output(space, x.shape, rows, cols, x, **kind)
    if stats:
        shape = tuple(x.shape[:-1]) or (1,)
        if with_mu and mu is None:
            mu = space.empty(shape, float32)
        if rsigma is None:
            rsigma = space.empty(shape, float32)
    held, (a, b, c, d, e, f) = in_memory(
        source, space.parameter("gamma", gamma), space.parameter("beta", beta), target, more, total
    )
    mu_at, rsigma_at = space.written("mu", mu, rows), space.written("rsigma", rsigma, rows)
    arguments = _forward(bool(zero_centered_gamma), a, b, c, d, mu_at, rsigma_at, eps, 0, e, f)
    check(function(space.context(context), arguments, space.stream(stream)))
    return (out, mu, rsigma) if residual is None else (out, mu, rsigma, sum_out)


def layernorm_fwd(
    x, gamma=None, beta=None, eps=1e-5, *, zero_centered_gamma=False, dtype=None, scale=None, amax=None, rowwise=True, transpose=False,
    out=None, mu=None, rsigma=None, stats=True, residual=None, sum_out=None, stream=None, context=None,
):  # fmt: skip
    """LayerNorm over the last dimension: y = (x - mean) * rsigma * weight + beta, with rsigma = 1/sqrt(var + eps).

    x: float32, float16 or bfloat16 [..., hidden]. gamma, beta: [hidden] or None (1 and 0); zero_centered_gamma: the weight is 1 + gamma.
    dtype: of y; None: that of x. An FP8 y is cast from the float32 result as in cast_to_fp8 (scale, amax, rowwise, transpose).
        Both layouts of one call hold the same codes; a call for one layout may round a few to the neighbouring code.
    residual: of x's type and shape; x + residual, rounded to that type, is then what is normalised, and the last result.
    out, mu, rsigma, sum_out: memory for the results; stats=False: mu and rsigma are not made.
    Returns (y, mu, rsigma), with a residual (y, mu, rsigma, x + residual); y is an Fp8Tensor where its type is FP8.
    """
    kind = dict(dtype=dtype, out=out, scale=scale, amax=amax, rowwise=rowwise, transpose=transpose)
    return _fwd(
        lib.nvte_layernorm_fwd, x, gamma, beta, eps, zero_centered_gamma, mu, rsigma, True, stats, residual, sum_out, kind, stream, context
    )


def rmsnorm_fwd(
    x, gamma=None, eps=1e-5, *, zero_centered_gamma=False, dtype=None, scale=None, amax=None, rowwise=True, transpose=False,
    out=None, rsigma=None, stats=True, residual=None, sum_out=None, stream=None, context=None,
):  # fmt: skip
    """RMSNorm over the last dimension: y = x * rsigma * weight, with rsigma = 1/sqrt(mean(x^2) + eps).

    Arguments as in layernorm_fwd. Returns (y, rsigma), with a residual (y, rsigma, x + residual).
    """
    kind = dict(dtype=dtype, out=out, scale=scale, amax=amax, rowwise=rowwise, transpose=transpose)
    y, _, *others = _fwd(
        lib.nvte_rmsnorm_fwd, x, gamma, None, eps, zero_centered_gamma, None, rsigma, False, stats, residual, sum_out, kind, stream, context
    )
    return y, *others


def norm_bwd_workspace(device, hidden):
    """Bytes of workspace of the backward passes, for a Context or a device."""
    return asked(lib.nvte_norm_bwd_workspace, handle_of(device), whole("hidden", hidden))


def _gradient(space, name, wanted, parameter, cols, like):
    """Where the gradient of a parameter goes: the array given; a new one for None with a parameter, or True; None for False."""
    if wanted is False or wanted is None and parameter is None:
        return None
    if wanted is None or wanted is True:
        like = like if parameter is None else parameter
        return space.empty((cols,), space.known(like))
    return space.writable(name, space.require(name, wanted))


def _bwd(function, dy, x, gamma, mu, rsigma, zero_centered_gamma, dx, dgamma, dbeta, dsum, workspace, stream, context):
    space = first_space(x)
    source, rows, cols = space.high("x", x)
    gradient, _, _ = space.high("dy", space.given("dy", dy))
    if dx is None:
        dx = space.empty(x.shape, space.known(x))
    else:
        space.writable("dx", space.require("dx", dx))
    target, _, _ = space.high("dx", dx)
    more = None if dsum is None else space.high("dsum", space.require("dsum", dsum))[0]
    handle = space.context(context)
    keep, work, size = None, 0, 0
    if dgamma is not None or dbeta is not None:
        keep, work, size = scratch(space, workspace, lib.nvte_norm_bwd_workspace, handle, cols)
    held, (a, b, c, d, e, f, g) = in_memory(
        gradient, source, space.parameter("gamma", gamma), target, space.parameter("dgamma", dgamma), space.parameter("dbeta", dbeta), more
    )
    mu_at, rsigma_at = space.floats("mu", mu, rows), space.floats("rsigma", rsigma, rows)
    arguments = _backward(bool(zero_centered_gamma), a, b, c, mu_at, rsigma_at, d, e, f, work, size, g)
    check(function(handle, arguments, space.stream(stream)))
    return dx


def layernorm_bwd(
    dy, x, gamma, mu, rsigma, *, zero_centered_gamma=False, dx=None, dgamma=None, dbeta=None, dsum=None, workspace=None, stream=None,
    context=None,
):  # fmt: skip
    """Gradients of layernorm_fwd; gamma, mu and rsigma are the forward pass' own, and so is x, its sum where it had a residual.

    dsum: the gradient that reached x by another way than the norm, as that of a residual stream does; dx is the sum of both.
    dx, dgamma, dbeta: memory for the results. dgamma and dbeta: None: a new array in gamma's type (none without a gamma), True: a new
    one in any case, False: not wanted. workspace: scratch memory of norm_bwd_workspace bytes, aligned to 16; None: made here.
    Returns (dx, dgamma, dbeta).
    """
    space, cols = first_space(x), x.shape[-1] if len(x.shape) else 1
    dgamma = _gradient(space, "dgamma", dgamma, gamma, cols, x)
    dbeta = _gradient(space, "dbeta", dbeta, gamma, cols, x)
    dx = _bwd(lib.nvte_layernorm_bwd, dy, x, gamma, mu, rsigma, zero_centered_gamma, dx, dgamma, dbeta, dsum, workspace, stream, context)
    return dx, dgamma, dbeta


def rmsnorm_bwd(
    dy, x, gamma, rsigma, *, zero_centered_gamma=False, dx=None, dgamma=None, dsum=None, workspace=None, stream=None, context=None
):
    """Gradients of rmsnorm_fwd; arguments as in layernorm_bwd. Returns (dx, dgamma)."""
    space, cols = first_space(x), x.shape[-1] if len(x.shape) else 1
    dgamma = _gradient(space, "dgamma", dgamma, gamma, cols, x)
    dx = _bwd(lib.nvte_rmsnorm_bwd, dy, x, gamma, None, rsigma, zero_centered_gamma, dx, dgamma, None, dsum, workspace, stream, context)
    return dx, dgamma
