"""The `workload`, `window` and `target` keys of a scenario: what arrives, how long, and how much of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from pdenv.errors import nearest

#: Longest prompt or output that is believed, tokens.
MAX_TOKENS = 10_000_000

#: Quantile tables of public traces, written by benchmarks/fit_workloads.py.
FITTED = Path(__file__).parent / "fitted"

Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
MedianTokens = Annotated[float, Field(ge=1, le=MAX_TOKENS)]
LogSigma = Annotated[float, Field(ge=0.0, le=5.0)]


def fitted_names() -> tuple[str, ...]:
    """Names of the fitted length tables, sorted."""
    return tuple(sorted(path.stem for path in FITTED.glob("*.yaml")))


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class FixedLengths(_Frozen):
    """Every request alike."""

    kind: Literal["fixed"] = Field(description="every request has the same lengths")
    prompt_tokens: Tokens = Field(description="prompt length, tokens")
    output_tokens: Tokens = Field(description="output length, tokens")


class LognormalLengths(_Frozen):
    """Prompt and output drawn independently from lognormal laws, capped."""

    kind: Literal["lognormal"] = Field(description="independent lognormal prompt and output lengths")
    prompt_median_tokens: MedianTokens = Field(description="median prompt, tokens")
    prompt_sigma: LogSigma = Field(description="standard deviation of ln(prompt tokens), dimensionless")
    prompt_max_tokens: Tokens = Field(default=131_072, description="longer prompts are cut to this length, tokens")
    output_median_tokens: MedianTokens = Field(description="median output, tokens")
    output_sigma: LogSigma = Field(description="standard deviation of ln(output tokens), dimensionless")
    output_max_tokens: Tokens = Field(default=8_192, description="longer outputs are cut to this length, tokens")


class QuantileLengths(_Frozen):
    """Prompt and output drawn from the quantile tables of a public trace, with its rank correlation."""

    kind: Literal["quantiles"] = Field(description="lengths from the quantile tables fitted to a public trace")
    table: str = Field(description="fitted table (a name, no unit): azure-code, azure-conv, mooncake-conversation")

    @field_validator("table")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in fitted_names():
            raise ValueError(f"no fitted table '{name}'{nearest(name, fitted_names())}")
        return name


OneLaw = Annotated[FixedLengths | LognormalLengths | QuantileLengths, Field(discriminator="kind")]


class MixturePart(_Frozen):
    """One law of a mixture and how often it is drawn from."""

    share: float = Field(gt=0.0, le=1.0, description="share of all requests, dimensionless; shares sum to 1")
    lengths: OneLaw = Field(description="law of this part, tokens")


class MixtureLengths(_Frozen):
    """Every request drawn from one of several laws, such as short chats and now and then a document."""

    kind: Literal["mixture"] = Field(description="each request from one of several laws, drawn by their shares")
    parts: tuple[MixturePart, ...] = Field(min_length=1, description="the laws with their shares, tokens")

    @model_validator(mode="after")
    def _whole(self) -> MixtureLengths:
        total = sum(part.share for part in self.parts)
        if abs(total - 1.0) > 1e-6:
            raise ValueError(f"shares of parts sum to {total:g}; they must sum to 1")
        return self


LengthsConfig = Annotated[
    FixedLengths | LognormalLengths | QuantileLengths | MixtureLengths, Field(discriminator="kind")
]


class OnOffConfig(_Frozen):
    """Bursts: the rate jumps between a high and a low value, each kept for an exponentially distributed time.

    A Markov-modulated Poisson process of two states, as it is in the long run. `rate_per_s` is its mean, so that the
    high rate is rate_per_s × (on + off) / (on + off × off_ratio), with the mean durations on and off.
    """

    mean_on_s: float = Field(ge=1e-3, le=1e8, description="mean duration of a burst, s")
    mean_off_s: float = Field(ge=1e-3, le=1e8, description="mean time between two bursts, s")
    off_ratio: float = Field(
        default=0.0, ge=0.0, le=1.0, description="rate between bursts / rate in a burst, dimensionless; 0: silence"
    )


class DiurnalConfig(_Frozen):
    """A rate that rises and falls as a sine: rate_per_s × (1 + amplitude × sin(2π (t / period_s + phase)))."""

    amplitude: float = Field(gt=0.0, le=1.0, description="(highest rate − mean) / mean, dimensionless")
    period_s: float = Field(ge=1e-3, le=1e8, description="time from one peak to the next, s")
    phase: float | None = Field(
        default=None,
        ge=0.0,
        lt=1.0,
        description="where in a period a window starts, as a share of it from the rising mean on, dimensionless; "
        "default: drawn for each window",
    )


class PredictorConfig(_Frozen):
    """What the gateway believes about the output length of a request, fixed at its arrival.

    The default error, σ = 0.5, puts two predictions in three within a factor of 1.65 of the truth. Output
    lengths themselves spread by a σ of 0.85 to 1.36 around their median in the public traces, so such a
    predictor is much better than the mean and still far from an oracle.
    """

    kind: Literal["mean", "noisy", "oracle"] = Field(
        default="noisy",
        description="mean: the workload's mean output; noisy: true length × lognormal error of mean 1; "
        "oracle: the true length, barred from published results (tokens)",
    )
    sigma: LogSigma = Field(
        default=0.5,
        description="standard deviation of ln(predicted / true) of the noisy predictor, dimensionless",
    )

    @model_validator(mode="after")
    def _noise_is_noise(self) -> PredictorConfig:
        if self.kind == "noisy" and self.sigma == 0.0:
            raise ValueError("sigma 0 makes an oracle; write kind: oracle, or a sigma above 0")
        return self

    @property
    def is_oracle(self) -> bool:
        """Whether predictions are the true lengths, so that a result must not be published."""
        return self.kind == "oracle"


class WorkloadConfig(_Frozen):
    """What arrives: requests at random times with lengths from a law, or a recorded trace."""

    kind: Literal["poisson", "on_off", "diurnal", "trace"] = Field(
        default="poisson",
        description="generated at a steady rate, in bursts or in a daily rhythm, or recorded arrivals (no unit)",
    )
    rate_per_s: float | None = Field(
        default=None, gt=0.0, le=1e6, description="mean arrival rate of generated arrivals, requests/s"
    )
    lengths: LengthsConfig | None = Field(
        default=None, description="law of prompt and output lengths of generated arrivals, tokens"
    )
    on_off: OnOffConfig | None = Field(default=None, description="bursts of `kind: on_off` (no unit)")
    diurnal: DiurnalConfig | None = Field(default=None, description="rhythm of `kind: diurnal` (no unit)")
    trace: Path | None = Field(
        default=None,
        description="recorded arrivals (a file, no unit): Azure LLM inference CSV, Mooncake JSONL, or a CSV "
        "arrival_s,prompt_tokens,output_tokens",
    )
    predictor: PredictorConfig = Field(default_factory=PredictorConfig, description="output length predictor, tokens")
    priority_shares: tuple[Annotated[float, Field(ge=0.0)], ...] = Field(
        default=(1.0,),
        min_length=1,
        description="shares of requests of priority 0, 1, 2, … (higher is kept longer when memory is short); "
        "dimensionless, normalised to 1",
    )

    @field_validator("priority_shares")
    @classmethod
    def _some_share(cls, shares: tuple[float, ...]) -> tuple[float, ...]:
        if sum(shares) <= 0.0:
            raise ValueError("all shares are 0; at least one must be above 0")
        return shares

    @model_validator(mode="after")
    def _complete(self) -> WorkloadConfig:
        needed = {
            "poisson": ("rate_per_s", "lengths"),
            "on_off": ("rate_per_s", "lengths", "on_off"),
            "diurnal": ("rate_per_s", "lengths", "diurnal"),
            "trace": ("trace",),
        }[self.kind]
        missing = [name for name in needed if getattr(self, name) is None]
        if missing:
            raise ValueError(f"kind: {self.kind} needs {' and '.join(missing)}")
        return self


class WindowConfig(_Frozen):
    """Which requests of a run are measured, and how long the run may go on for them.

    Measured are the requests that arrive from `warmup_s` on: the first `requests` of them, or those of the
    next `duration_s`. Later arrivals go on as load until the measured ones have ended, at most `drain_max_s`.
    """

    requests: int | None = Field(default=None, ge=1, le=100_000_000, description="measured requests, a count")
    duration_s: float | None = Field(default=None, gt=0.0, le=1e8, description="length of the measured span, s")
    warmup_s: float = Field(
        default=0.0,
        ge=0.0,
        le=1e8,
        description="arrivals before this time are not measured, s; at most a tenth of a trace that is taken whole",
    )
    drain_max_s: float = Field(
        default=600.0,
        ge=0.0,
        le=1e8,
        description="longest wait for measured requests after the last of them arrived, s",
    )

    @model_validator(mode="after")
    def _one_length(self) -> WindowConfig:
        if (self.requests is None) == (self.duration_s is None):
            raise ValueError("give either requests or duration_s")
        return self


class TargetConfig(_Frozen):
    """The load that a scenario is made for."""

    prefill_load: float | None = Field(
        default=None,
        gt=0.0,
        le=10.0,
        description="offered prefill work / capacity of the active prefill pool, dimensionless; "
        "what a rate scale of 'auto' aims at",
    )
