"""The base of every config, and the types of keys that several configs share."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from guie.base.errors import URL

# How images are decoded: as a person sees them, or as the challenge's host; see `guie.data.images`
Decode = Literal["seen", "host"]
Fault = tuple[str, str]  # a key, and what is wrong with its value


class ConfigError(ValueError):
    """Report a fault of one key below the model that is checked; an empty key is the model itself."""

    def __init__(self, key: str, fault: str):
        super().__init__(f"{key}: {fault}" if key else fault)
        self.keys, self.fault = tuple(key.split(".")) if key else (), fault


class Config(BaseModel):
    """Base of every config model: frozen, strict about types, no unknown keys, finite numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    # A block of defaults, and the list whose entries inherit them
    COMMON: ClassVar[tuple[str, str] | None] = None
    # Keys without effect unless another key is set, or has one of these values
    NEEDS: ClassVar[Mapping[str, str | tuple[str, ...]]] = {}

    def faults(self) -> Iterator[Fault]:
        """Yield keys whose values do not fit the others, and what is wrong; the first is reported."""
        yield from ()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for key, needs in self.NEEDS.items():
            other, *allowed = (needs,) if isinstance(needs, str) else needs
            value, default = getattr(self, other), type(self).model_fields[key].default
            if getattr(self, key) != default and (value not in allowed if allowed else not value):
                fault = f"is for {other} {' or '.join(allowed)}" if allowed else f"needs {other}"
                shown = "null" if value is None else value
                raise ConfigError(key, f"{fault}; {other} is {shown}; change one of the two")
        for key, fault in self.faults():
            raise ConfigError(key, fault)
        return self


class Images(Config):
    """The images of a manifest."""

    manifest: str  # CSV or Parquet, as curate.py writes it
    root: str | None = None  # null: the manifest's folder


def remedy(given: int | str, allowed: Sequence[str], always: bool = False) -> str:
    """Return the nearest allowed value, or all of them if none is near; with `always`, both."""
    near = difflib.get_close_matches(str(given), allowed, n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    if not allowed or (near and not always):
        return meant
    return f"{meant} Allowed: {', '.join(allowed)}" if near else f"; allowed: {', '.join(allowed)}"


def of_form(pattern: str, form: str) -> AfterValidator:
    """Return a check that a text matches the whole pattern; `form` says what that is."""

    def checked(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"must be {form}")
        return text

    return AfterValidator(checked)


# Of a run, an ensemble or a mix, whose folder is not that of all runs, or its parent
_NAME = "letters, digits, '_', '-' and '.', and not dots alone"
Name = Annotated[str, of_form(r"(?!\.+$)[\w.-]+", _NAME)]
# In a manifest `|` joins two labels, and a line break ends a row
_TEXT = r"[^|\x00-\x1f\x7f-\x9f\u2028\u2029]+"
Domain = Annotated[str, of_form(_TEXT, "text of one line without |")]
# A path to write
Output = Annotated[str, of_form(f"(?!{URL})(?s:.*)", "on a disk, not a URL; name a local path")]
Seed = Annotated[int, Field(ge=0, lt=2**64)]  # torch takes 64 bits
PositiveInt = Annotated[int, Field(gt=0, lt=2**31)]  # lengths and indices are 32-bit
Pixels = Annotated[int, Field(gt=0, le=2**14)]  # side length
BatchSize = Annotated[int, Field(gt=0, le=2**20)]  # images
Workers = Annotated[int, Field(ge=0, le=1024)]  # processes that load images
Width = Annotated[int, Field(gt=0, le=2**16)]  # dimension of an embedding, or outputs of a layer
Probability = Annotated[float, Field(ge=0, le=1)]
Names = Annotated[list[str], Field(min_length=1)]

# A name alone is short for a mapping: `cosine` for {name: cosine}
ByName = BeforeValidator(lambda value: {"name": value} if isinstance(value, str) else value)

# A value, such as a number, or a mapping. By the tags, only the faults of the chosen branch are reported.
VALUE, MAPPING = "a value", "a mapping"
Value = TypeVar("Value")
Block = TypeVar("Block")
Either = Annotated[
    Annotated[Value, Tag(VALUE)] | Annotated[Block, Tag(MAPPING)],
    Discriminator(lambda value: MAPPING if isinstance(value, dict | BaseModel) else VALUE),
]
