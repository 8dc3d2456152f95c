"""The structures of `pippin_kernels.h`, field by field."""

import ctypes as c

ABI = 7
BLOCK = 16


class CMatrix(c.Structure):
    _fields_ = [
        ("weights", c.c_void_p),
        ("scales", c.c_void_p),
        ("biases", c.c_void_p),
        ("addend", c.c_void_p),
        ("rows", c.c_int64),
        ("columns", c.c_int64),
        ("weight_bytes", c.c_int64),
        ("scale_bytes", c.c_int64),
        ("bias_bytes", c.c_int64),
        ("addend_bytes", c.c_int64),
        ("bits", c.c_int32),
        ("group", c.c_int32),
        ("type", c.c_int32),
        ("format", c.c_int32),
    ]


class CRope(c.Structure):
    _fields_ = [
        ("inverse_frequencies", c.c_void_p),
        ("dims", c.c_int32),
        ("interleaved", c.c_int32),
        ("scale", c.c_float),
        ("stretch", c.c_float),
    ]


class CExperts(c.Structure):
    _fields_ = [
        *((name, CMatrix) for name in ("router", "gate", "up", "down")),
        *((name, c.c_int32) for name in ("count", "chosen", "normalized")),
    ]


class CLayer(c.Structure):
    _fields_ = [
        *((name, CMatrix) for name in ("query", "key", "value", "output", "gate", "up", "down")),
        *((name, c.c_void_p) for name in ("input_norm", "attention_out_norm", "mlp_norm", "mlp_out_norm")),
        *((name, c.c_void_p) for name in ("query_norm", "key_norm", "sinks")),
        ("experts", c.POINTER(CExperts)),
        ("rope", c.c_int32),
        ("window", c.c_int32),
    ]


class CShape(c.Structure):
    _fields_ = [
        ("embedding", CMatrix),
        ("final_norm", c.c_void_p),
        ("layers", c.POINTER(CLayer)),
        ("ropes", c.POINTER(CRope)),
        *((name, c.c_int32) for name in ("layer_count", "rope_count", "hidden")),
        *((name, c.c_int32) for name in ("heads", "kv_heads", "head_dim", "activation")),
        *((name, c.c_float) for name in ("norm_eps", "attention_scale", "attention_softcap")),
        *((name, c.c_float) for name in ("embedding_scale", "residual_scale")),
    ]


class CAddition(c.Structure):
    _fields_ = [("down", CMatrix), ("up", CMatrix)]


class CStep(c.Structure):
    _fields_ = [
        *((name, c.c_void_p) for name in ("starts", "counts", "adapters", "kv")),
        ("sequences", c.c_int64),
    ]


KV_FIELDS = 17
"""Numbers of 64 bits in a `pk_kv`: six addresses, two strides, capacity, shift, bits, group; and of what is shared two
addresses, two strides, and the number of positions."""
SHARED_FIELDS = 5
