"""What every number of a summary means: printed beside the numbers, in `--help`, and in JSON."""

from __future__ import annotations

DEFINITIONS: dict[str, str] = {
    "requests": "measured requests: those that arrive in [warm-up, end of the window)",
    "completed": "measured requests that emitted all their tokens",
    "rejected": "measured requests that the scheduler rejected",
    "failed": "measured requests too large for every instance, or that ran out of memory",
    "unfinished": "measured requests still in the system at the drain deadline",
    "warmup_s": "time before the window, of which requests are not measured: the scenario's, for a trace taken whole "
    "at most 10 % of its length",
    "duration_s": "length of the window in which measured requests arrive",
    "ttft_s": "first token - arrival, of requests that got a first token",
    "tpot_s": "standard TPOT = (finish - first token) / (N - 1), of completed requests with N > 1 tokens",
    "joint_tpot_s": "joint TPOT = (t_P - t_a) + (t_J - t_P) + (t_F - t_J) / m of completed requests: t_a arrival, "
    "t_P first prefill end, t_J start of the first decode iteration with the request, t_F finish; m = N - 1, or N "
    "when decode emits the first token; parts 2 and 3 are 0 when m = 0. Its three parts are prefill_mean (queue "
    "and compute), transfer_mean (decode start - prefill end: exposed transfer and admission), decode_mean (a token)",
    "second_token_gap_s": "second token - first token",
    "itl_s": "every gap between consecutive tokens in the window, of all requests; percentiles to 2 %",
    "e2e_s": "finish - arrival, of completed requests",
    "transfer_s": "prefill end to end of the KV transfer: its exposed part, with the wait for the grant of decode "
    "memory",
    "transfer_wire_s": "start of the KV flow to end of the transfer",
    "admission_s": "(prefill end to grant of decode memory, where positive) + (transfer end to t_J); the wait for the "
    "grant is in transfer_s too, so the two do not add up",
    "goodput_rps": "completed requests that meet both the TTFT and the standard TPOT limit, a second of the window",
    "slo_attainment": "share of measured requests that meet both limits; rejected, failed and unfinished do not; "
    "a single token meets any TPOT limit",
    "prefill_utilisation": "time that prefill instances compute (stalls excluded) / time that they are active; on a "
    "leaderboard colocated_utilisation where there are no pools",
    "prefill_demanded_utilisation": "(compute + stalled for staging memory) / active time of prefill instances",
    "decode_memory_utilisation": "KV bytes held or reserved, over time / capacity of active decode instances; on a "
    "leaderboard colocated_memory_utilisation where there are no pools",
    "link_utilisation": "bytes carried / (achievable rate x window) over the ports of a tier; min_cut: KV bytes "
    "carried / what the narrowest cut between the pools can carry",
    "network_utilisation": "the largest link_utilisation: bytes carried / (achievable rate x window) over the ports of "
    "the busiest tier of links, or across the narrowest cut between the pools (min_cut) where that is busier",
    "busiest_tier": "which it is: nic, rack, spine, nvlink or min_cut",
    "wire_precision_share": "share of each wire precision among measured requests dispatched to a pair",
    "compressed_share": "share of measured requests dispatched to a pair whose KV is sent in less than BF16",
    "prefill_queue_depth": "mean number of requests queued at an active prefill instance",
    "receive_queue_depth": "mean number of requests that wait for memory at an active decode instance",
    "decode_starved_s": "instance-seconds of idle decode while any KV is in staging",
    "staging_stall_s": "instance-seconds that prefill waits for staging memory",
    "preemptions": "sequences evicted from a running batch",
    "gpu_hours": "GPUs x time that instances are not off (warming and draining included)",
    "cost_usd": "billed time x price of an instance",
    "energy_kwh": "busy power x busy time + idle power x the rest of billed time",
    "constraints": "prefill_busy: prefill utilisation > 0.80; decode_memory: decode memory utilisation < 0.70; "
    "network: line rate of the P-D cut at most 100 GB/s and KV offered below what the cut achieves. "
    "conflict: demanded prefill utilisation > 0.80 and KV offered >= achievable cut; near_conflict: the transfer "
    "part is more than half of joint TPOT. KV offered = measured arrivals/s x mean prompt KV bytes in the wire "
    "precision chosen (BF16 if never dispatched)",
    "colocated_utilisation": "time that co-located instances compute / time that they are active",
    "colocated_memory_utilisation": "KV bytes held, over time / capacity of co-located instances",
    "cost": "mean over measured arrivals of w_prefill x part 1 + w_transfer x part 2 + w_decode x part 3 of joint "
    "TPOT, as accrued until the request left, plus penalties: a step and a slope past the TTFT and the TPOT limit, "
    "rejection, failure (too large, out of memory, unfinished), the price of KV quality, GPU-hours and scaling. "
    "Mode standard: w_decode x standard TPOT instead of "
    "the parts; normalised: parts 1 and 2 in TTFT limits, part 3 in TPOT limits",
}
