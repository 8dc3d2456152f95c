"""Every sampling parameter stands once: what reads the table has its names, its ranges and its neutral values."""

import msgspec
import pytest

from pippin.api.dialects.shared.engine_fields import SamplingFields, sampling_of
from pippin.config.options.model import ModelOptions
from pippin.core.decoding import convert
from pippin.core.parameters import PARAMETERS, Parameter
from pippin.core.requests import Sampling

NUMBERS = pytest.mark.parametrize("parameter", PARAMETERS, ids=lambda parameter: parameter.name)
OPTIONS = [each for each in PARAMETERS if each.public_name in ModelOptions.__struct_fields__]


def test_the_table_holds_all_numbers_of_a_request() -> None:
    assert {each.name for each in PARAMETERS} == set(Sampling.__struct_fields__) - {"logit_bias"}


@NUMBERS
def test_a_client_may_write_the_ends_of_the_range_and_nothing_beyond(parameter: Parameter) -> None:
    low, high = parameter.wire or (parameter.low, parameter.high)
    for value in (low, high):
        convert({parameter.public_name: value}, SamplingFields)
    for value in (low - 1, high + 1):
        with pytest.raises(msgspec.ValidationError):
            convert({parameter.public_name: value}, SamplingFields)


@NUMBERS
def test_what_a_client_may_write_is_what_the_sampler_honours_or_off(parameter: Parameter) -> None:
    if parameter.wire is None:
        return
    low, _ = parameter.wire
    given = convert({parameter.public_name: low}, SamplingFields)
    read = getattr(sampling_of(given), parameter.name)
    assert read is None or parameter.holds(read)


@pytest.mark.parametrize("parameter", OPTIONS, ids=lambda parameter: parameter.name)
def test_an_option_has_the_range_of_the_sampler(parameter: Parameter) -> None:
    convert({parameter.public_name: parameter.high}, ModelOptions)
    for value in (parameter.low - 1, parameter.high + 1):
        with pytest.raises(msgspec.ValidationError):
            convert({parameter.public_name: value}, ModelOptions)


@NUMBERS
def test_the_neutral_value_is_in_range_and_does_nothing(parameter: Parameter) -> None:
    assert not parameter.acts(None)
    if parameter.neutral is not None:
        assert parameter.holds(parameter.neutral)
        assert not parameter.acts(parameter.neutral)
    if parameter.default is not None:
        assert parameter.holds(parameter.default)


@NUMBERS
def test_only_finite_numbers_of_the_type_are_in_range(parameter: Parameter) -> None:
    strangers = [None, True, "1", float("nan"), float("inf"), -float("inf")]
    assert not any(parameter.holds(value) for value in strangers)
    assert parameter.holds(parameter.high)
    assert parameter.holds(parameter.low) is not parameter.above_low
