"""Gives NumPy integers of 64 bits in the embedded engine's Python (python.py), which has 32 bits as a machine."""

import gc
import sys
import types

from builtins import *

# Folder of the libraries' code.
OF_LIBRARIES = "/usr/local/lib/"

# Functions of NumPy that add or multiply their arguments, or compare them with other numbers.
COMBINING = """
append clip convolve correlate cross diff dot ediff1d einsum full_like histogram inner insert kron matmul matrix_power
multi_dot nanpercentile nanquantile outer pad percentile polyadd polyder polymul polysub polyval ptp quantile tensordot
trapezoid unwrap vander vdot vecdot
""".split()
# Functions among COMBINING that also take single numbers.
PRODUCTS = "dot inner kron outer tensordot vdot".split()
# Functions that add or multiply in the type of the result, not of the numbers, and the position of that argument.
ACCUMULATING = {"cumprod": 2, "cumsum": 2, "cumulative_prod": 9, "cumulative_sum": 9, "nancumprod": 2, "nancumsum": 2}
ACCUMULATING |= {"nanprod": 2, "nansum": 2, "prod": 2, "sum": 2, "trace": 4}
# Position of the argument that is the type of the result.
TYPE_AT = ACCUMULATING | {"arange": 3, "eye": 3, "full": 2, "full_like": 2, "integers": 4, "linspace": 5, "randint": 4}
TYPE_AT |= {"mean": 2, "std": 2, "var": 2}
TYPE_AT |= dict.fromkeys(
    """
    array asanyarray asarray asarray_chkfinite ascontiguousarray asfortranarray empty empty_like frombuffer fromfile
    fromiter fromstring genfromtxt identity indices loadtxt ones ones_like require zeros zeros_like
    """.split(),
    1,
)
# Functions about types.
OF_TYPES = "can_cast common_type isdtype issubdtype min_scalar_type promote_types result_type".split()
# Functions that return positions or counts of elements.
COUNTING = "argmax argmin argpartition argsort argwhere bincount count_nonzero digitize flatnonzero nonzero searchsorted"
COUNTING = COUNTING.split()
# Functions that take positions or counts of elements, which compiled code needs in 32 bits: position and name of that
# argument.
COUNTED = {"binomial": (1, "n"), "choose": (0, "a"), "put": (1, "ind"), "repeat": (1, "repeats")}
UNIVERSAL = """
abs absolute add bitwise_and bitwise_invert bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil
conj conjugate divmod floor floor_divide fmax fmin fmod gcd invert lcm left_shift matmul matvec maximum minimum mod multiply
negative positive pow power reciprocal remainder right_shift sign square subtract trunc vecdot vecmat
""".split()

# Maximum number of elements of a list that are examined one by one. Longer lists hold numbers, whose sizes NumPy finds
# itself.
MOST_PARTS = 64

# Functions that take functions, one of which may be `int`, or that return what was saved.
AS_MADE = "apply_along_axis", "apply_over_axes", "frompyfunc", "load"


def patch_numpy():
    """Gives integers 64 bits if a program does not specify a size, as on other machines. NumPy's own have 32 bits here,
    and larger values wrap around without a warning. Libraries get the integers that they were made for."""
    import functools

    import numpy
    import pandas
    import pandas.core.dtypes.common as dtypes

    # Compiled code has no frame of its own, so it would be mistaken for the program that called it. It also writes
    # numbers of the type that it requested.
    as_made = types.ModuleType("numpy")
    vars(as_made).update(vars(numpy))
    for module in list(sys.modules.values()):
        if module.__spec__ and module.__spec__.origin == "built-in" and vars(module).get("np") is numpy:
            module.np = as_made

    narrow, wide, unsigned = numpy.dtype(int), numpy.dtype("int64"), numpy.dtype("uint64")
    array, frame_of = numpy.ndarray, sys._getframe
    sequences = list, tuple, range

    def is_for_library(frame):
        return frame.f_code.co_filename.startswith(OF_LIBRARIES)

    def is_narrow(value):
        return isinstance(value, (array, numpy.generic)) and value.dtype == narrow

    def is_narrow_array(value):
        if type(value) in (list, tuple):
            return any(isinstance(part, array) and is_narrow(part) for part in value[:MOST_PARTS])
        return isinstance(value, array) and value.ndim > 0 and is_narrow(value)

    def widened(value):
        if type(value) in (tuple, list):
            return type(value)(map(widened, value))
        return value.astype(wide) if is_narrow(value) else value

    def type_of(dtype):
        if type(dtype) is list:
            return [(part[0], type_of(part[1]), *part[2:]) if type(part) is tuple else part for part in dtype]
        return wide if dtype is int or type(dtype) is str and dtype == "int" else dtype

    def sum_type(value):
        """The type in which elements of an array are added up; None if that is their own type."""
        kind, size = value.dtype.kind, value.dtype.itemsize
        return (unsigned if kind == "u" else wide) if kind in "biu" and size < 8 else None

    def large(value):
        """Converts integers that do not fit into 32 bits, also those in a list."""
        if type(value) in (list, tuple) and len(value) <= MOST_PARTS:
            return type(value)(map(large, value))
        return numpy.int64(value) if type(value) is int and 1 << 31 <= abs(value) < 1 << 63 else value

    def numbers(value):
        """Converts lists to arrays."""
        return widened(numpy.asarray(value)) if type(value) in sequences else value

    def as_count(value):
        return value.astype(narrow) if isinstance(value, array) and value.dtype == wide else value

    def with_count(args, kwargs, at, name):
        if len(args) > at:
            args[at] = as_count(numbers(args[at]))
        elif name in kwargs:
            kwargs[name] = as_count(numbers(kwargs[name]))

    def with_type(args, kwargs, at, accumulated):
        """Returns whether the type of the result is specified. Specifies it if `accumulated` needs a wider one."""
        if len(args) > at:
            args[at] = type_of(args[at])
            return args[at] is not None
        if kwargs.get("dtype") is not None:
            kwargs["dtype"] = type_of(kwargs["dtype"])
        elif kwargs.get("out") is None and isinstance(accumulated, (array, numpy.generic)):
            if (kind := sum_type(accumulated)) is not None:
                kwargs["dtype"] = kind
        return kwargs.get("dtype") is not None

    def for_programs(name, function):
        accumulates, combines, counts = name in ACCUMULATING, name in COMBINING, name in COUNTING
        type_at, counted = TYPE_AT.get(name, 99), COUNTED.get(name)

        @functools.wraps(function)
        def call(*args, **kwargs):
            if is_for_library(frame_of(1)):
                return function(*args, **kwargs)
            if name in OF_TYPES:
                return function(*(wide if arg is int else arg for arg in args), **kwargs)
            args = list(map(large, args))
            first = "a" if "a" in kwargs else None
            if accumulates and args:
                args[0] = numbers(args[0])
            if combines or accumulates and first:
                kwargs = {key: value if key.startswith("ax") else numbers(value) for key, value in kwargs.items()}
            if combines:
                args = list(map(numbers, args))
            if name in PRODUCTS:
                args = [numpy.int64(arg) if type(arg) is int and abs(arg) < 1 << 63 else arg for arg in args]
            is_asked = any(map(is_narrow_array, (*args, *kwargs.values())))
            if counted:
                with_count(args, kwargs, *counted)
            accumulated = (args[0] if args else kwargs.get(first)) if accumulates else None
            is_said = with_type(args, kwargs, type_at, accumulated) or kwargs.get("out") is not None
            result = function(*args, **kwargs)
            return result if is_said or is_asked and not counts else widened(result)

        return call

    class Universal:
        """Wraps a function of NumPy that is applied to each number (a ufunc)."""

        __module__ = "numpy"
        __class__ = property(lambda self: numpy.ufunc)
        __doc__ = property(lambda self: self._function.__doc__)

        def __init__(self, function):
            self.__dict__["_function"] = function

        def __call__(self, *args, **kwargs):
            if not is_for_library(frame_of(1)):
                if any(type(arg) in sequences for arg in args) or all(type(arg) is int for arg in args):
                    args = self._numbers(args)
                if "dtype" in kwargs:
                    kwargs["dtype"] = type_of(kwargs["dtype"])
            return self._function(*args, **kwargs)

        def _numbers(self, args):
            args = list(map(numbers, args))
            kinds = {arg.dtype.kind for arg in args if isinstance(arg, (array, numpy.generic))}
            if kinds <= {"b", "i"}:
                args = [numpy.int64(arg) if type(arg) is int and abs(arg) < 1 << 63 else arg for arg in args]
            return args

        def _of_many(self, name):
            method, adds = getattr(self._function, name), self.__name__ in ("add", "multiply") and name != "outer"

            def call(*args, **kwargs):
                if not is_for_library(frame_of(1)):
                    args = list(map(numbers, args))
                    with_type(args, kwargs, 2 if name != "outer" else 99, args[0] if adds else None)
                return method(*args, **kwargs)

            return call

        def __getattr__(self, name):
            of_many = ("reduce", "accumulate", "outer")
            return self._of_many(name) if name in of_many else getattr(self._function, name)

        def __repr__(self):
            return repr(self._function)

        def __reduce__(self):
            return self._function.__name__

        def __eq__(self, other):
            return self._function is getattr(other, "_function", other)

        def __hash__(self):
            return hash(self._function)

    kinds = types.FunctionType, types.BuiltinFunctionType, type(numpy.sum)
    universal = {}
    for module in numpy, numpy.linalg:
        for name, function in list(vars(module).items()):
            if isinstance(function, numpy.ufunc):
                if name in UNIVERSAL:
                    setattr(module, name, universal.setdefault(function, Universal(function)))
            elif isinstance(function, kinds) and not name.startswith("_") and name not in AS_MADE:
                setattr(module, name, for_programs(name, function))
    for kind in type(numpy.r_).__mro__[1], type(numpy.mgrid).__mro__[1]:
        kind.__getitem__ = for_programs("", kind.__getitem__)
    printed = numpy._core.arrayprint._typelessdata
    printed[:] = [wide.type if kind is narrow.type else kind for kind in printed]

    # These types are NumPy's own. Methods cannot be assigned to them, but the dictionary behind `vars` can be changed.
    def methods_of(kind):
        return gc.get_referents(vars(kind))[0]

    for kind in numpy.random.Generator, numpy.random.RandomState:
        methods = methods_of(kind)
        for name, method in list(methods.items()):
            if callable(method) and not name.startswith("_"):
                methods[name] = for_programs(name, method)
    legacy = numpy.random.RandomState
    draw = legacy.randint

    @functools.wraps(draw)
    def randint(self, low, high=None, size=None, dtype=int):
        return draw(self, low, high, size, type_of(dtype))

    methods_of(legacy)["randint"] = randint
    getattr(sys, "_clear_type_cache", int)()
    for name, function in list(vars(numpy.random).items()):
        if isinstance(getattr(function, "__self__", None), legacy):
            setattr(numpy.random, name, getattr(function.__self__, function.__name__))
    as_type = array.astype

    @functools.wraps(as_type)
    def astype(self, dtype, *args, **kwargs):
        return as_type(self, dtype if is_for_library(frame_of(1)) else type_of(dtype), *args, **kwargs)

    def as_method(name, method):
        type_at, accumulates = TYPE_AT.get(name, 99), name in ACCUMULATING

        @functools.wraps(method)
        def call(*args, **kwargs):
            if is_for_library(frame_of(1)):
                return method(*args, **kwargs)
            args = list(args)
            if name in COUNTED:
                with_count(args, kwargs, *COUNTED[name])
            with_type(args, kwargs, type_at, args[0] if accumulates else None)
            result = method(*args, **kwargs)
            return widened(result) if name in COUNTING and kwargs.get("out") is None else result

        return call

    methods = methods_of(array)
    methods["astype"] = astype
    changed = (name for name in (*ACCUMULATING, *COUNTING, *COUNTED, "mean", "std", "var") if name in methods)
    methods.update({name: as_method(name, methods[name]) for name in changed})
    getattr(sys, "_clear_type_cache", int)()

    # Modules of pandas import this function by name, so its code is replaced.
    dtypes._type_of, dtypes._plain = type_of, types.FunctionType(dtypes.pandas_dtype.__code__, vars(dtypes))
    dtypes.pandas_dtype.__code__ = (lambda dtype: _plain(_type_of(dtype))).__code__  # noqa: F821

    def to_numpy_of(method):
        @functools.wraps(method)
        def to_numpy(self, dtype=None, *args, **kwargs):
            return method(self, type_of(dtype), *args, **kwargs)

        return to_numpy

    for kind in pandas.Series, pandas.Index, pandas.DataFrame:
        kind.to_numpy = to_numpy_of(kind.to_numpy)
