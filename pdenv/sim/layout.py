"""One relocatable byte block an environment, and accessors that make it read like structs.

Kernels get one value `S`. `request(S, i)` is the i-th record of kind REQUEST: compiled, it loads the kind's
offset from the header, adds `i × itemsize` and returns the address as a record, so that
`request(S, i).rate` is one load. Nothing in the type depends on sizes: one compilation serves every cluster.

With `NUMBA_DISABLE_JIT=1`, `S` is a `PythonBlock` over the same memory and the accessors index named views with
bounds checks, so the kernels run as plain Python.
"""

from __future__ import annotations

import numpy as np
from numba import config as numba_config
from numba import from_dtype, njit, types
from numba.extending import intrinsic

JIT = not numba_config.DISABLE_JIT

#: All kernels: C semantics for division, no interpreter lock, no fast-math.
kernel = njit(
    error_model="numpy",
    nogil=True,
    no_cpython_wrapper=True,
    no_cfunc_wrapper=True,
    no_rewrites=True,
    _nrt=False,
)


ALIGNMENT = 64


class PythonBlock:
    """The block as named views, for `NUMBA_DISABLE_JIT=1`."""

    def __init__(self, views: dict[str, np.ndarray]) -> None:
        self.views = {name: view.view(np.recarray) for name, view in views.items()}


def accessor(name: str, dtype: np.dtype, pointer_at: int, external: bool):
    """A function `(S, i) -> record` for one record kind.

    Args:
        name: of the view in a `PythonBlock`.
        dtype: of the record.
        pointer_at: byte position in the header of the kind's offset (or address, if external).
        external: the records lie outside the block.
    """
    if not JIT:

        def get_checked(S, i):
            view = S.views[name]
            if not 0 <= i < view.shape[0]:
                raise IndexError(f"{name}[{i}] of {view.shape[0]}")
            return view[i]

        return get_checked

    from llvmlite import ir

    record_type = from_dtype(dtype)
    itemsize = dtype.itemsize

    @intrinsic
    def get(_typing, S, i):
        def codegen(context, builder, signature, arguments):
            block, index = arguments
            word = ir.IntType(64)
            where = builder.inttoptr(builder.add(block, ir.Constant(word, pointer_at)), word.as_pointer())
            start = builder.load(where)
            if not external:
                start = builder.add(start, block)
            index = context.cast(builder, index, signature.args[1], types.int64)
            address = builder.add(start, builder.mul(index, ir.Constant(word, itemsize)))
            return builder.inttoptr(address, context.get_value_type(record_type))

        return record_type(S, i), codegen

    return get


def header_accessor(dtype: np.dtype):
    """A function `S -> header record`, at the start of the block."""
    if not JIT:
        return lambda S: S.views["header"][0]

    record_type = from_dtype(dtype)

    @intrinsic
    def get(_typing, S):
        def codegen(context, builder, _signature, arguments):
            return builder.inttoptr(arguments[0], context.get_value_type(record_type))

        return record_type(S), codegen

    return get
