# SPDX-License-Identifier: Apache-2.0
"""SQL functions in Python. They run on the host, which EXPLAIN gives as the reason."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow

from devicefusion import _devicefusion

Volatility = Literal["immutable", "stable", "volatile"]


@dataclass(frozen=True)
class ScalarUDF:
    """A scalar function for `SessionContext.register_udf`; `udf` makes it."""

    name: str
    function: Callable[..., Any]
    input_types: Sequence[pyarrow.DataType]
    return_type: pyarrow.DataType
    volatility: Volatility

    def _register(self, session: _devicefusion.Session) -> None:
        session.register_scalar(
            self.name, self._call, list(self.input_types), self.return_type, self.volatility
        )

    def _call(self, *arguments: Any) -> pyarrow.Array:
        values = self.function(*(pyarrow.array(argument) for argument in arguments))
        if not isinstance(values, Iterable) and not hasattr(values, "__arrow_c_array__"):
            kind = type(values).__name__
            raise TypeError(f"the function {self.name} is to give an array, and gave one {kind}")
        return _array(values, self.return_type)


def udf(
    function: Callable[..., Any],
    input_types: Sequence[pyarrow.DataType],
    return_type: pyarrow.DataType,
    volatility: Volatility = "immutable",
    name: str | None = None,
) -> ScalarUDF:
    """A scalar function. It gets `pyarrow.Array`s of one length, and gives one of that length.

    >>> from devicefusion import SessionContext
    >>> import pyarrow.compute
    >>> ctx = SessionContext()
    >>> string = pyarrow.string()
    >>> ctx.register_udf(udf(pyarrow.compute.utf8_reverse, [string], string, name="mirrored"))
    >>> ctx.sql("SELECT mirrored('tea') AS m").to_pydict()
    {'m': ['aet']}
    """
    _check("udf", function, input_types, [return_type])
    name = name or str(getattr(function, "__name__", "udf"))
    if name == "<lambda>":
        raise ValueError("udf needs the name of a lambda: pass name='…'")
    return ScalarUDF(name, function, tuple(input_types), return_type, volatility)


class Accumulator(ABC):
    """The state of an aggregate for one group. Each call gets `pyarrow.Array`s."""

    @abstractmethod
    def update(self, *values: pyarrow.Array) -> None:
        """Adds rows: an array for each argument."""

    @abstractmethod
    def merge(self, states: list[pyarrow.Array]) -> None:
        """Adds the states of other accumulators: an array for each value of `state`."""

    @abstractmethod
    def state(self) -> list[Any]:
        """The state, as Python values or scalars of pyarrow."""

    @abstractmethod
    def evaluate(self) -> Any:
        """The result, as a Python value or a scalar of pyarrow."""


@dataclass(frozen=True)
class AggregateUDF:
    """An aggregate for `SessionContext.register_udaf`; `udaf` makes it."""

    name: str
    accumulator: Callable[[], Accumulator]
    input_types: Sequence[pyarrow.DataType]
    return_type: pyarrow.DataType
    state_type: Sequence[pyarrow.DataType]
    volatility: Volatility

    def _register(self, session: _devicefusion.Session) -> None:
        session.register_aggregate(
            self.name,
            lambda: _NativeAccumulator(self.accumulator(), self.return_type, self.state_type),
            list(self.input_types),
            self.return_type,
            list(self.state_type),
            self.volatility,
        )


def udaf(
    accumulator: Callable[[], Accumulator],
    input_types: Sequence[pyarrow.DataType],
    return_type: pyarrow.DataType,
    state_type: Sequence[pyarrow.DataType],
    volatility: Volatility = "immutable",
    name: str | None = None,
) -> AggregateUDF:
    """An aggregate, whose accumulators a class or function makes.

    >>> from devicefusion import Accumulator, SessionContext
    >>> class Product(Accumulator):
    ...     def __init__(self):
    ...         self.product = 1.0
    ...     def update(self, values):
    ...         for value in values.to_pylist():
    ...             self.product *= value
    ...     def merge(self, states):
    ...         self.update(states[0])
    ...     def state(self):
    ...         return [self.product]
    ...     def evaluate(self):
    ...         return self.product
    >>> ctx = SessionContext()
    >>> double = pyarrow.float64()
    >>> ctx.register_udaf(udaf(Product, [double], double, [double]))
    >>> ctx.sql("SELECT product(value::DOUBLE) AS p FROM generate_series(1, 5)").to_pydict()
    {'p': [120.0]}
    """
    _check("udaf", accumulator, input_types, [return_type, *state_type])
    shown = name or str(getattr(accumulator, "__name__", "udaf")).lower()
    return AggregateUDF(
        shown, accumulator, tuple(input_types), return_type, tuple(state_type), volatility
    )


def _check(maker: str, function: Any, input_types: Sequence[Any], others: Sequence[Any]) -> None:
    if not callable(function):
        raise TypeError(f"{maker} needs a function, not a {type(function).__name__}")
    if not isinstance(input_types, Sequence) or isinstance(input_types, str):
        raise TypeError(f"{maker} needs a sequence of input types, such as [pyarrow.int64()]")
    for data_type in [*input_types, *others]:
        if not isinstance(data_type, pyarrow.DataType):
            kind = type(data_type).__name__
            raise TypeError(
                f"{maker} needs types of pyarrow, such as pyarrow.int64(), not a {kind}"
            )


class _NativeAccumulator:
    """An accumulator with arrays for the native half."""

    def __init__(
        self,
        accumulator: Accumulator,
        return_type: pyarrow.DataType,
        state_type: Sequence[pyarrow.DataType],
    ) -> None:
        self._accumulator = accumulator
        self._return_type = return_type
        self._state_type = state_type

    def update(self, *values: Any) -> None:
        self._accumulator.update(*(pyarrow.array(value) for value in values))

    def merge(self, *states: Any) -> None:
        self._accumulator.merge([pyarrow.array(state) for state in states])

    def state(self) -> list[pyarrow.Array]:
        states = self._accumulator.state()
        if len(states) != len(self._state_type):
            expected = len(self._state_type)
            raise ValueError(f"a state has {expected} values, and this one {len(states)}")
        return [
            _one(value, data_type)
            for value, data_type in zip(states, self._state_type, strict=True)
        ]

    def evaluate(self) -> pyarrow.Array:
        return _one(self._accumulator.evaluate(), self._return_type)


def _one(value: Any, data_type: pyarrow.DataType) -> pyarrow.Array:
    return pyarrow.array([value.as_py() if isinstance(value, pyarrow.Scalar) else value], data_type)


def _array(values: Any, data_type: pyarrow.DataType) -> pyarrow.Array:
    if isinstance(values, pyarrow.ChunkedArray):
        values = values.combine_chunks()
    if not isinstance(values, pyarrow.Array):
        return pyarrow.array(values, data_type)
    return values if values.type == data_type else values.cast(data_type)
