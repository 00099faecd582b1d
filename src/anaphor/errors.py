"""All that a user may ever see go wrong. Anything else that is raised is a bug of ours."""


class AnaphorError(Exception):
    """A problem told in one line: what was given, what is allowed, the nearest guess."""

    exit_code = 2


class ConfigError(AnaphorError):
    """A setting, a name or a shape that cannot work."""


class DataError(AnaphorError):
    """A data set or a file that is missing or broken."""


class CheckpointError(AnaphorError):
    """A checkpoint that is damaged or does not fit."""


class Diverged(AnaphorError):
    """Training reached a loss or a gradient that is not a finite number."""

    exit_code = 3
