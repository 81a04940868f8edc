"""The messages for values that a setting, an option or a message refuses."""

from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from solstice_common.values.validation import in_words


class Size(StrEnum):
    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")

    size: Size = Size.SMALL
    colour: Literal["red", "blue"] = "red"
    count: Annotated[int, Field(ge=1, le=99)] = 1
    strict_count: Annotated[int, Field(strict=True)] = 1
    price: Annotated[float, Field(gt=0, lt=1.5, allow_inf_nan=False)] = 1
    gift: bool = False
    name: Annotated[str, Field(min_length=1, max_length=5)] = "x"
    code: Annotated[str, Field(min_length=3, pattern="^[a-z]+$")] = "abc"
    label: str = ""

    @field_validator("label")
    @classmethod
    def _label(cls, label: str) -> str:
        if label == "bad":
            raise ValueError("must be a good label")
        return label


def words(**given: Any) -> str:
    with pytest.raises(ValidationError) as refused:
        Order(**given)
    (problem,) = refused.value.errors()
    return in_words(problem)


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ({"size": "huge"}, "must be one of small, medium, large"),
        ({"colour": "green"}, "must be one of red, blue"),
        ({"unknown": 1}, "is not known here"),
        ({"count": "x"}, "must be a whole number"),
        ({"count": "9" * 5000}, "is too large a number"),
        ({"count": 1.5}, "must be a whole number"),
        ({"strict_count": "1"}, "must be a whole number"),
        ({"count": 0}, "must be at least 1"),
        ({"count": 100}, "must be at most 99"),
        ({"price": "x"}, "must be a number"),
        ({"price": []}, "must be a number"),
        ({"price": "nan"}, "must be a finite number"),
        ({"price": 0}, "must be more than 0"),
        ({"price": 1.5}, "must be less than 1.5"),
        ({"gift": "perhaps"}, "must be true or false"),
        ({"gift": []}, "must be true or false"),
        ({"name": 7}, "must be text"),
        ({"name": "caf\udce9"}, "must be text in UTF-8"),
        ({"name": ""}, "must not be empty"),
        ({"name": "longer"}, "must have at most 5 characters"),
        ({"code": "ab"}, "must have at least 3 characters"),
        ({"code": "AB9"}, "must have the form ^[a-z]+$"),
        ({"label": "bad"}, "must be a good label"),
    ],
)
def test_each_mistake_is_reported_in_words_of_our_own(given: dict[str, Any], reported: str) -> None:
    assert words(**given) == reported


def test_what_is_missing_is_reported() -> None:
    class Needed(BaseModel):
        name: str

    with pytest.raises(ValidationError) as refused:
        Needed.model_validate({})
    assert in_words(refused.value.errors()[0]) == "is missing"


def test_mistake_that_has_no_words_of_ours_keeps_those_it_came_with() -> None:
    class Dated(BaseModel):
        place: tuple[int, int]

    with pytest.raises(ValidationError) as refused:
        Dated.model_validate({"place": 7})
    assert in_words(refused.value.errors()[0]) == "Input should be a valid tuple"
