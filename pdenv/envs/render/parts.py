"""What a scene consists of: plain data, units in the names. Shares are in [0, 1]."""

from __future__ import annotations

from dataclasses import dataclass

STATES = ("off", "warming", "active", "draining")
#: Where a request can be, in the order in which it passes.
STAGES = ("gateway", "prefill queue", "prefill", "transfer", "decode")


@dataclass(frozen=True)
class Prefill:
    """A prefill instance."""

    name: str
    rack: int
    state: str  # of STATES
    waiting_requests: int  # delivered and not started
    tokens_left: int  # to compute, of all prompts dispatched to it
    step_requests: int  # in the running step; 0: idle
    step_share: float  # of the running step's duration that has passed
    step_left_s: float
    stalled: bool  # a prompt waits for staging memory
    staging_used_bytes: int
    staging_bytes: int
    egress_bytes_per_s: float  # KV that leaves it now
    egress_share: float  # of its fullest port


@dataclass(frozen=True)
class Decode:
    """A decode instance."""

    name: str
    rack: int
    state: str
    sequences: int  # in the batch
    max_batch: int
    iteration_s: float  # duration of the iteration in flight; 0: none
    restoring: bool  # in a stop step: preempted KV is moved or computed again
    running_bytes: int  # KV of the batch
    reserved_bytes: int  # granted to requests that have not joined
    kv_bytes: int  # capacity
    receiving_requests: int  # depth of the receive queue
    ready_requests: int  # transferred, waiting for the next boundary
    preempted_requests: int
    ingress_bytes_per_s: float
    ingress_share: float


@dataclass(frozen=True)
class Colocated:
    """A co-located instance."""

    name: str
    rack: int
    waiting_requests: int
    prefilling_requests: int
    sequences: int
    max_batch: int
    iteration_s: float
    mixed: bool  # the iteration in flight also computes prompt tokens
    step_share: float  # of its duration that has passed
    step_left_s: float
    running_bytes: int
    reserved_bytes: int
    kv_bytes: int


@dataclass(frozen=True)
class Flow:
    """The transfers from one prefill to one decode instance in one wire precision."""

    prefill: int
    decode: int
    precision: str  # of PRECISIONS
    tier: str  # of TIERS: the slowest kind of hop
    requests: int
    bytes_per_s: float
    left_bytes: float
    port: str  # its fullest port
    port_share: float


@dataclass(frozen=True)
class Port:
    """A link of the fabric."""

    name: str
    tier: str
    bytes_per_s: float
    capacity_bytes_per_s: float

    @property
    def share(self) -> float:
        return self.bytes_per_s / self.capacity_bytes_per_s


@dataclass(frozen=True)
class Head:
    """The request at the head of the gateway queue."""

    number: int
    prompt_tokens: int
    predicted_tokens: int
    waited_s: float
    tier: int
    precisions: tuple[str, ...]  # that its tier allows
    held: bool


@dataclass(frozen=True)
class Running:
    """Metrics of the requests that count, up to now. None: no sample yet."""

    arrived: int
    ended: int
    completed: int
    joint_tpot_s: float | None
    prefill_s: float | None  # mean parts of joint TPOT
    transfer_s: float | None
    decode_s: float | None
    slo_share: float | None  # of those that have ended; None also without limits
    goodput_per_s: float | None
    prefill_busy: float | None  # share of active time since the start
    colocated_busy: float | None
    decode_memory: float | None  # share now
    colocated_memory: float | None
    busiest_port: str  # empty: nothing is sent
    busiest_share: float | None  # now
    preemptions: int
