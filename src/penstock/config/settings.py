"""What can be set, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from penstock.config.files import Found, check_keys, named_file, of_file, of_project, user_file
from penstock.errors import InvalidOption

PREFIX = "PENSTOCK_"
Level = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


class DashboardSettings(BaseModel):
    """Where the dashboard listens, and who may see it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    """Its address. Another one than a loopback address needs a token."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 8_420
    """Its port; 0 takes a free one."""
    token: SecretStr | None = None
    """What a browser has to give once. Never shown."""


class ThresholdSettings(BaseModel):
    """From when on something counts as wrong."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stalled_seconds: Seconds = 30.0
    """A group that has records to read and did not go on for so long is stalled."""
    lag_records: Count = 100_000
    """A group that is further behind is shown as late."""
    lag_seconds: Seconds = 300.0
    """A group whose oldest record is older is shown as late."""
    disk_free_bytes: Count = 1024**3
    """``penstock doctor`` warns below it."""
    fsync_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 50.0
    """``penstock doctor`` warns when a sync of the disk takes longer."""


class Settings(BaseSettings):
    """The settings in use: given ones first, then the environment, the project's file, the user's.

    ``Settings(url="nats://localhost")`` reads all of them; ``load_settings`` also turns what is wrong
    into an InvalidOption that says where it stands.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="_",
        env_nested_max_split=1,
        extra="forbid",
        frozen=True,
        validate_default=True,
    )

    url: Annotated[str, Field(min_length=1, repr=False)] = "log:./data"
    """Where the topics are: ``log:./data``, ``nats://localhost``, …"""
    name: Annotated[str, Field(min_length=1)] = "bus"
    """The name of the bus whose dead letters are meant."""
    tier: Annotated[str | None, Field(repr=False)] = None
    """Where the log's sealed segments are moved to, if they are."""
    offsets: Annotated[str | None, Field(repr=False)] = None
    """Where the log's offsets are, if not in the log."""
    connect_seconds: Seconds = 10.0
    """How long a broker may take to answer."""
    log_level: Level = "WARNING"
    """Which messages of the library are written to standard error."""
    dashboard: DashboardSettings = DashboardSettings()
    thresholds: ThresholdSettings = ThresholdSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - no such file is read
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The order; the first one that has a value wins, field by field."""
        return (
            init_settings,
            env_settings,
            *(FileSource(settings_cls, found) for found in files_in_use()),
        )


class FileSource(PydanticBaseSettingsSource):
    """What a file says, as a source of settings."""

    def __init__(self, settings_cls: type[BaseSettings], found: Found) -> None:
        super().__init__(settings_cls)
        check_keys(found, known_keys())
        self._found = found

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """A value of the file."""
        return self._found.values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return dict(self._found.values)


_named: Path | None = None


def files_in_use() -> tuple[Found, ...]:
    """The files that count, the stronger ones first."""
    project = of_project() if _named is None else named_file(_named)
    return tuple(one for one in (project, of_file(user_file())) if one.place)


def known_keys() -> dict[str, tuple[str, ...]]:
    """The settings by name; those that are tables with the names inside."""
    tables: Mapping[str, type[BaseModel]] = {
        "dashboard": DashboardSettings,
        "thresholds": ThresholdSettings,
    }
    return {
        name: tuple(tables[name].model_fields) if name in tables else ()
        for name in Settings.model_fields
    }


def load_settings(file: Path | str | None = None, **given: Any) -> Settings:
    """The settings in use; what is given counts before everything else, unless it is None.

    ``file`` is read in place of the project's. InvalidOption says what is wrong, and where.
    """
    global _named
    before, _named = _named, None if file is None else Path(file)
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as wrong:
        raise _refusal(wrong) from None
    finally:
        _named = before


def _refusal(wrong: ValidationError) -> InvalidOption:
    first = wrong.errors(include_url=False, include_input=False)[0]
    name = ".".join(str(part) for part in first["loc"])
    variable = PREFIX + "_".join(str(part) for part in first["loc"]).upper()
    return InvalidOption(
        f"the setting {name} ({variable} in the environment) is wrong: {first['msg']}", option=name
    )
