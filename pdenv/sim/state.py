"""The engine's one declared state: every record kind, field by field, with units.

`B` is the number of batches: decode instances 0..D−1, then co-located instances D..D+H−1. A request that has
arrived and not ended has a slot in the pool (`REQUEST`); rows −1 mean "none". Times are seconds, memory is bytes.
Records in the block are copied when the block is copied; `EXTERNAL` kinds are shared, constant (or, for
RECORD, written once a request) and lie outside it.
"""

from __future__ import annotations

import numpy as np

from pdenv.sim.layout import accessor, header_accessor
from pdenv.sim.records import ARRIVAL, RECORD

N_PRECISIONS = 4
MAX_HOPS = 5  # ports on a path
N_LINKS = 4  # linked lists that a request can be in at once
MAX_KNOTS = 24
N_PARAMETERS = 40  # rows of Header.parameter, see rules/rows.py

# Links: which of a request's list pointers a queue uses.
LINK_PREFILL = 0  # gateway, delivery, prefill queue, co-located queue
LINK_DECODE = 1  # pairing, receive queue, granted
LINK_BATCH = 2  # ready, preempted, fresh
LINK_FLOW = 3  # inbound flows of a decode instance

# Where a request's prefill, decode side and flow are.
AT_GATEWAY, IN_DELIVERY, QUEUED, STARTED, PREFILLED = range(5)
UNPAIRED, PAIRED, RECEIVING, GRANTED, READY, ACTIVE_SEQ, PREEMPTED = range(7)
NO_FLOW, FLOWING, TAIL, FLOW_ENDED = range(4)
LATE_EVENT, LATE_RATE = 1, 2
LAST_BYTE, BACKLOG_GONE, FIRST_LAYER, NOTHING = range(4)  # next event of a flow

# Scaling states of an instance.
OFF, WARMING, ACTIVE, DRAINING = range(4)

# What a batch is doing.
IDLE, BOUNDARY, ITERATING, STOPPED, MIXED = range(5)

# Kinds of decision (Header.pending) and of action (Header.act_kind).
NO_DECISION, ROUTE, PAIR, SCALE = range(4)
ACT_PAIR, ACT_COLOCATED, ACT_HOLD, ACT_REJECT, ACT_WAIT = range(5)  # WAIT: nothing is legal now

# Where a settle is (Header.phase); EVENTS means that none is under way.
EVENTS, SCALING, PAIRING, BOUNDARIES, PAIRING_AGAIN, GATEWAY = range(6)

# Decisions that come from outside (Header.outside, a sum of these).
OUTSIDE_ROUTE, OUTSIDE_PAIR, OUTSIDE_SCALE = 1, 2, 4

# Rows of Header.cost_weight.
W_TTFT_STEP, W_TTFT_SLOPE, W_TPOT_STEP, W_TPOT_SLOPE, W_PREFILL, W_TRANSFER, W_DECODE = range(7)
W_QUALITY = 7  # and the rows after it: a wire or store precision each
W_REJECTION, W_FAILURE, W_GPU, W_CHURN = range(W_QUALITY + N_PRECISIONS, W_QUALITY + N_PRECISIONS + 4)

#: Terms of the cost as it accrues, rows of TERM.
TERMS = (
    "prefill",
    "transfer",
    "decode",
    "ttft_penalty",
    "tpot_penalty",
    "rejection_penalty",
    "failure_penalty",
    "quality",
    "gpu",
    "churn",
)
N_TERMS = len(TERMS)
T_PREFILL, T_TRANSFER, T_DECODE, T_TTFT, T_TPOT, T_REJECTION, T_FAILURE, T_QUALITY, T_GPU, T_CHURN = range(N_TERMS)

# Which part of a request's cost accrues (Request.stage), limits that have passed (Request.late), kinds of due.
STAGE_NONE, STAGE_PREFILL, STAGE_TRANSFER, STAGE_DECODE = range(4)
TTFT_LATE, TPOT_LATE = 1, 2
DUE_TTFT, DUE_TPOT, DUE_FIRST_TOKEN = range(3)

# Why advance() returned.
RETURN_TIME, RETURN_DECISION, RETURN_DONE, RETURN_GROW, RETURN_ERROR = range(5)

# Header.error
ERROR_NONE, ERROR_ILLEGAL_ACTION = range(2)

#: Iteration boundaries admit what is ready this much later; events this close form one instant.
TIE_S = 1e-9

i8, i4, f8 = np.int64, np.int32, np.float64


def _record(*fields: tuple) -> np.dtype:
    return np.dtype(list(fields), align=True)


REQUEST = _record(
    ("id", i8),  # row of ARRIVAL and RECORD
    ("prompt", i8),  # tokens
    ("output", i8),  # tokens, true length
    ("predicted", i8),  # tokens
    ("tokens", i8),  # tokens to prefill: the prompt, or what a preempted sequence held
    ("cached", i8),  # of them found in the prefix cache
    ("done", i8),  # of the others computed in earlier steps
    ("step", i8),  # computed in the step that runs
    ("emitted", i8),  # tokens emitted when it joined its batch (total when not active)
    ("joined_at", i8),  # batch iteration counter when it joined
    ("finish_at", i8),  # batch iteration counter after its last token
    ("join_order", i8),  # global order of (last) joining a batch
    ("grant_bytes", i8),  # decode memory reserved and not yet joined
    ("bytes", f8),  # KV bytes to send
    ("sent", f8),  # KV bytes sent until sent_t
    ("sent_t", f8),  # s
    ("rate", f8),  # bytes/s since sent_t
    ("unsent", f8),  # R: bytes that pay the path's cost
    ("first_layer_t", f8),  # s, end of the first layer in the step that computes its chunk
    ("pace", f8),  # bytes/s that become available from then on
    ("flow_event_t", f8),  # s, next event of the flow
    ("arrival_t", f8),
    ("deliver_t", f8),
    ("last_token_t", f8),  # s, NaN before the first token
    ("work_s", f8),  # predicted prefill seconds still counted in its instance's load
    ("hold_since_t", f8),  # s, first hold; NaN
    ("first_t", f8),  # s, first token as the accrual knows it; NaN
    ("first_due_t", f8),  # s, end of the iteration that emits it; NaN
    ("quality", f8),  # cost units charged for its precisions
    ("link_next", i4, (N_LINKS,)),
    ("link_prev", i4, (N_LINKS,)),
    ("hop_prev", i4, (MAX_HOPS,)),  # port lists, as FLOW.hop_next
    ("way", i4),  # its flow's row of PATH
    ("p", i4),
    ("d", i4),  # decode instance
    ("b", i4),  # batch it is active, preempted or queued in (co-located: D + h)
    ("tier", i4),
    ("priority", i4),
    ("wire", i4),  # precision
    ("store", i4),  # precision
    ("mode", i4),  # index into MODES
    ("prefill_state", i4),
    ("decode_state", i4),
    ("flow_state", i4),
    ("backlog", i4),  # the flow has bytes available and unsent
    ("attempts", i4),  # times offered at the gateway
    ("dirty", i4),  # the flow's next event (LATE_EVENT) or also its rate (LATE_RATE) is out of date
    ("fresh", i4),  # its next gap is counted on its own
    ("pairing", i4),  # in the pairing queue
    ("swapped", i4),  # preempted with its KV in host memory
    ("flow_next", i4),  # what the flow's next event is
    ("stage", i4),  # which part of its cost accrues
    ("late", i4),  # limits that it has passed
)

#: What the solver reads of a request's flow: one cache line.
FLOW = _record(
    ("bound", f8),  # min(cap, smallest capacity on its path), bytes/s
    ("next_rate", f8),  # bytes/s
    ("visited", i4),
    ("hops", i4),
    ("port", i4, (MAX_HOPS,)),  # PATH.narrow of its way
    ("hop_next", i4, (MAX_HOPS,)),  # port lists; an entry is request × 8 + hop
)

QUEUE = _record(("head", i4), ("tail", i4), ("count", i8))

PREFILL = _record(
    ("state", i4),
    ("profile", i4),
    ("chunked", i4),
    ("sjf", i4),
    ("busy", i4),  # a step runs
    ("kicked", i4),  # to be looked at in the next settle
    ("stalled", i4),
    ("flip", i4),  # becomes a decode instance when OFF
    ("candidate", i4),  # of the rule that is deciding
    ("kv_precision", i4),
    ("gpus", i4),
    ("step_requests", i8),  # the first so many requests of its queue are in the step
    ("started", i8),  # requests at the head of its queue that have staging memory
    ("staging_bytes", i8),  # capacity
    ("staging_used", i8),
    ("kv_bytes_per_token", i8),
    ("max_batch_tokens", i8),
    ("max_batch_requests", i8),
    ("step_start", f8),
    ("step_end", f8),
    ("startup_s", f8),
    ("timer_t", f8),  # end of warming
    ("stalled_since", f8),
    ("state_since", f8),
    ("queue_since", f8),
    ("staging_since", f8),
    ("busy_s", f8),  # until step_start
    ("stalled_s", f8),
    ("active_s", f8),
    ("billed_s", f8),
    ("queue_s", f8),
    ("memory_byte_s", f8),
    ("tick_busy_s", f8),  # at the last control tick
    ("tick_demand_s", f8),
    ("tick_active_s", f8),
)

BATCH = _record(
    ("state", i4),
    ("profile", i4),
    ("doing", i4),
    ("kicked", i4),
    ("arrivals_changed", i4),  # inbound flows changed: their earliest event is to be found again
    ("next_flow", i4),  # inbound flow with the earliest event; −1: none, or another one has it at the same time
    ("colocated", i4),
    ("store", i4),  # precision
    ("flip", i4),
    ("gpus", i4),
    ("restoring", i4),  # request that joins at the end of a stop step
    ("active", i4),  # B, sequences
    ("max_batch", i8),
    ("max_batch_tokens", i8),  # co-located
    ("step_requests", i8),  # co-located: requests at the head of its queue in the chunk
    ("started", i8),  # co-located: requests at the head of its queue that hold memory
    ("capacity", i8),
    ("reserved", i8),  # granted and not joined (co-located: prompts being prefilled)
    ("kv", i8),  # of the active, in the first iteration after the anchor
    ("growth", i8),  # bytes an iteration
    ("iterations", i8),  # counter at the anchor
    ("event_at", i8),  # iterations after the anchor at which the next event falls
    ("count", i8, (N_PRECISIONS,)),  # active sequences
    ("context", i8, (N_PRECISIONS,)),  # sum of contexts in the first iteration after the anchor
    ("anchor_t", f8),
    ("first_s", f8),  # A: duration of the first iteration
    ("slope_s", f8),  # G: growth of the duration an iteration
    ("carry_s", f8),  # stop steps since the last token of those who were active
    ("startup_s", f8),
    ("timer_t", f8),  # end of warming, or drain deadline
    ("state_since", f8),
    ("reserved_since", f8),
    ("queue_since", f8),
    ("busy_s", f8),
    ("active_s", f8),
    ("billed_s", f8),
    ("queue_s", f8),
    ("memory_byte_s", f8),
)

#: What schedulers read of an instance (prefill 0..P−1, then batches).
LOAD = _record(
    ("requests", i8),  # dispatched to it and not done there
    ("tokens", i8),  # prefill: prompt tokens to compute; batch: prompt + predicted tokens of its requests
    ("kv_bytes", i8),  # prefill: staging bytes in use; batch: KV bytes of its requests' prompts
    ("receiving", i8),  # batch: receive-queue depth; co-located: its queue
    ("work_s", f8),  # predicted seconds of prefill work
)

PORT = _record(
    ("capacity", f8),  # bytes/s, achievable
    ("bounds", f8),  # sum of its flows' bounds
    ("left", f8),  # solver
    ("carried", f8),  # bytes of ended flows
    ("head", i4),  # entries request × 8 + hop
    ("tail", i4),
    ("flows", i4),
    ("unfixed", i4),  # solver
    ("dirty", i4),
    ("binding", i4),  # at the last solve
    ("visited", i4),  # solver
    ("seen_flows", i4),  # at the last scrape
)

TERM = _record(("rate", f8), ("value", f8))  # cost units per s, and cost units
DUE = _record(("t", f8), ("request", i8), ("id", i8), ("kind", i8))  # heap by time
SLOT = _record(("t", f8))
SLOT_BLOCK = _record(("t", f8), ("slot", i8))
HEAP = _record(("key", i8), ("request", i8))
INDEX = _record(("i", i4))  # work lists
CACHE = _record(  # a prefix cache: prefill instances, then co-located
    ("capacity", i8),  # blocks
    ("count", i8),
    ("first_node", i8),  # in CACHE_NODE
    ("first_cell", i8),  # in CACHE_CELL
    ("mask", i8),  # cells − 1
    ("newest", i4),
    ("oldest", i4),
)
CACHE_NODE = _record(("hash", i8), ("newer", i4), ("older", i4))
CACHE_CELL = _record(("node", i4))

PROFILE = _record(
    ("prefill_a", f8),
    ("prefill_b", f8),
    ("prefill_c", f8),
    ("decode_a", f8),
    ("decode_b", f8),
    ("piggyback", f8),
    ("decode_c", f8, (N_PRECISIONS,)),
    ("prefill_knots", i8),
    ("decode_knots", i8),
    ("prefill_x", f8, (MAX_KNOTS,)),
    ("prefill_y", f8, (MAX_KNOTS,)),
    ("decode_x", f8, (MAX_KNOTS,)),
    ("decode_y", f8, (MAX_KNOTS,)),
)

PATH = _record(
    ("latency_s", f8),
    ("smallest", f8),  # bytes/s, smallest capacity on the path
    ("cost", f8, (N_PRECISIONS,)),  # s/byte
    ("port", i4, (MAX_HOPS,)),
    ("hops", i4),
    ("narrow", i4, (MAX_HOPS,)),  # the ports that can hold its flows down when others share them
    ("narrow_hops", i4),
    ("tier", i4),
)

#: Kinds in the block, in the order in which they lie there; EXTERNAL ones are addressed by pointers.
INTERNAL = {
    "request": REQUEST,
    "flow": FLOW,
    "queue": QUEUE,
    "prefill": PREFILL,
    "batch": BATCH,
    "load": LOAD,
    "seen": LOAD,  # the same memory as "load" while metrics are always fresh
    "scraped": LOAD,
    "ledger": LOAD,  # dispatched in all
    "ledger_at_scrape": LOAD,
    "port": PORT,
    "slot": SLOT,
    "slot_block": SLOT_BLOCK,
    "heap": HEAP,
    "flow_list": INDEX,
    "port_list": INDEX,
    "dirty_flow": INDEX,
    "dirty_port": INDEX,
    "kicked_prefill": INDEX,
    "kicked_batch": INDEX,
    "changed_inbound": INDEX,
    "cache": CACHE,
    "cache_node": CACHE_NODE,
    "cache_cell": CACHE_CELL,
    "gap_bin": _record(("count", i8)),
    "term": TERM,
    "due": DUE,
}
EXTERNAL = {
    "arrival": ARRIVAL,
    "record": RECORD,
    "prefix_block": _record(("hash", i8)),
    "profile": PROFILE,
    "path": PATH,
}
KINDS = {**INTERNAL, **EXTERNAL}

HEADER = _record(
    *((f"at_{name}", i8) for name in KINDS),  # offset in the block, or address
    ("size", i8),  # bytes of the block
    ("now", f8),
    ("instant_t", f8),  # opening of the instant under way; NaN
    ("phase", i8),
    ("pending", i8),  # decision asked for
    ("pending_request", i8),
    ("error", i8),
    # sizes
    ("n_prefill", i8),
    ("n_decode", i8),
    ("n_colocated", i8),
    ("n_ports", i8),
    ("n_slots", i8),
    ("pool", i8),  # request slots
    ("free", i8),  # first free request slot
    ("heap_stride", i8),  # heap entries a batch
    ("n_arrivals", i8),
    ("next_arrival", i8),
    ("offer_until", i8),  # arrivals from this row on are not read (all: n_arrivals)
    # lists
    ("dirty_flows", i8),
    ("dirty_ports", i8),
    ("binding_ports", i8),  # how many
    ("kicked_prefills", i8),
    ("kicked_batches", i8),
    ("changed_inbounds", i8),
    ("epoch", i8),  # solver
    # the cluster's rules
    ("layers", i8),
    ("kv_bytes_per_token", i8, (N_PRECISIONS,)),
    ("tier_precisions", i8, (8,)),
    ("block_tokens", i8),
    ("reserve", i8),
    ("bind_at_prefill_end", i8),
    ("decode_first", i8),
    ("layerwise", i8),
    ("swap", i8),
    ("mixed_store", i8),
    ("receive_bypass", i8),
    ("allow_reject", i8),
    ("swap_bytes_per_s", f8),
    ("control_plane_delay_s", f8),
    ("scrape_interval_s", f8),
    ("scrape_delay_s", f8),
    ("hold_max_s", f8),
    ("scaling_interval_s", f8),
    ("flip_delay_s", f8),
    ("drain_max_s", f8),
    ("gpu_budget", i8),
    ("gpus_on", i8),  # in instances that are not OFF
    ("largest_pair", i8, (8,)),  # tokens of the longest prompt that some pair could take, a tier each
    ("largest_colocated", i8, (8,)),
    # the gateway
    ("holding", i8),
    ("hold_until", f8),
    ("visible", i8),  # something visible changed in this instant
    ("tick", i8),  # control ticks so far
    ("tick_due", i8),
    ("scrapes", i8),
    ("scraped", i8),  # with stale metrics: something visible changed in this instant
    ("draining", i8),  # instances
    # the decision taken
    ("act_kind", i8),
    ("act_p", i8),
    ("act_d", i8),
    ("act_h", i8),
    ("act_precision", i8),
    ("act_scale_prefill", i8),
    ("act_scale_decode", i8),
    ("act_flip", i8),  # 1: prefill to decode, 2: decode to prefill
    # the scheduler
    ("outside", i8),  # kinds of decision that come from outside
    ("rule", i8),  # compiled rule for the others
    ("scaler", i8),
    ("random", np.uint64),
    ("parameter", f8, (N_PARAMETERS,)),
    ("ttft_limit_s", f8),
    ("tpot_limit_s", f8),
    ("cost_weight", f8, (W_CHURN + 1,)),
    ("last_p", i8),  # of a round-robin
    ("last_d", i8),
    ("tick_prefill_busy", f8),  # over the last control interval
    ("tick_prefill_demanded", f8),
    ("tick_decode_memory", f8),  # at the tick
    ("tick_waiting_tokens", i8),  # prompt tokens at the gateway at the tick
    ("tick_offered_s", f8),  # arrivals of the last control interval: seconds of prefill on prefill instance 0
    ("offered_s", f8),  # the same since the last tick
    ("scale_quiet", i8),  # ticks since the last scaling action
    ("spare_prefill_ticks", i8),  # in a row in which the pool could do with one instance fewer
    ("spare_decode_ticks", i8),
    ("forecasts", i8),  # ticks that the forecast has seen
    ("prefill_level", f8),  # of the forecast: seconds of prefill offered a second
    ("prefill_trend", f8),  # a tick
    ("decode_level", f8),  # of the forecast: bytes of KV demanded
    ("decode_trend", f8),  # a tick
    # accounts
    ("arrived", i8),
    ("ended", i8),
    ("measured_from", i8),
    ("measured_to", i8),
    ("measured_left", i8),  # not ended
    ("quiet", i8),  # ticks in a row in which nothing else happened
    ("in_flight", i8),  # requests with KV in staging
    ("idle_decodes", i8),
    ("starved_since", f8),
    ("starved_s", f8),
    ("joins", i8),
    ("preemptions", i8),
    ("revocations", i8),
    ("gap_sum_s", f8),
    ("gap_max_s", f8),
    ("events", i8),
    ("scalings", i8),  # instances switched on or drained
    # cost as it accrues
    ("accruing", i8),
    ("standard", i8),  # the decode part runs from the first token on and is the only one
    ("charged_from", i8),  # requests that count, by number
    ("charged_to", i8),
    ("charged_since_t", f8),  # time in which GPUs and scaling count, s
    ("charged_until_t", f8),
    ("beta_per_s", f8),  # discount rate
    ("origin_t", f8),  # start of the interval, s
    ("n_dues", i8),
    ("due_rows", i8),
)


_HEADER_OFFSETS = {name: field[1] for name, field in (HEADER.fields or {}).items()}


def _accessor(name: str):
    return accessor(name, KINDS[name], _HEADER_OFFSETS[f"at_{name}"], name in EXTERNAL)


header = header_accessor(HEADER)
request = _accessor("request")
flow = _accessor("flow")
queue = _accessor("queue")
prefill = _accessor("prefill")
batch = _accessor("batch")
load = _accessor("load")
seen = _accessor("seen")
scraped = _accessor("scraped")
ledger = _accessor("ledger")
ledger_at_scrape = _accessor("ledger_at_scrape")
port = _accessor("port")
slot = _accessor("slot")
slot_block = _accessor("slot_block")
heap = _accessor("heap")
flow_list = _accessor("flow_list")
port_list = _accessor("port_list")
dirty_flow = _accessor("dirty_flow")
dirty_port = _accessor("dirty_port")
kicked_prefill = _accessor("kicked_prefill")
kicked_batch = _accessor("kicked_batch")
changed_inbound = _accessor("changed_inbound")
cache = _accessor("cache")
cache_node = _accessor("cache_node")
cache_cell = _accessor("cache_cell")
gap_bin = _accessor("gap_bin")
term = _accessor("term")
due = _accessor("due")
arrival = _accessor("arrival")
record = _accessor("record")
prefix_block = _accessor("prefix_block")
profile = _accessor("profile")
path = _accessor("path")
